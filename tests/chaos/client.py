"""A client that knows what it should be told: every answer is compared with that of a worker without faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

import aiohttp

from tests.chaos.dialects import CHAT, Dialect
from tests.chaos.workers import MODEL


class Verdict(StrEnum):
    """What became of a request, from its client's point of view."""

    SERVED = "served"  # the whole answer, and the right one
    LEFT = "left"  # the client went away, with nothing wrong so far
    CUT = "cut"  # the beginning of the right answer, and the client was told or could tell
    REFUSED = "refused"  # an error before anything of an answer
    WRONG = "wrong"  # anything else: another text, a text twice, a whole answer that is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request and the one right answer."""

    body: dict[str, Any]
    text: str
    completion_tokens: int
    finish_reason: str  # in the words of a chat
    dialect: Dialect = CHAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One request. Instants are monotonic seconds."""

    verdict: Verdict
    started_at: float
    ended_at: float
    worker: str | None  # as the answer's head named it
    detail: str = ""
    request_id: str | None = None  # the same
    status: int | None = None  # None: no head came


def draw_bodies(count: int, prompt_tokens: tuple[int, int], seed: int) -> list[dict[str, Any]]:
    """Requests that are all different, so that an answer that went astray is known."""
    dice = Random(seed)
    bodies = []
    for number in range(count):
        words = " ".join(f"word{dice.randrange(10**4)}" for _ in range(dice.randint(*prompt_tokens) // 3))
        bodies.append(
            {
                "model": MODEL,
                "messages": [
                    {"role": "system", "content": f"You are assistant {number % 7}. Answer with care. " * 8},
                    {"role": "user", "content": f"Question {seed}-{number}: {words}"},
                ],
                "max_tokens": dice.randint(24, 96),
            }
        )
    return bodies


async def ask_oracle(url: str, bodies: Sequence[dict[str, Any]]) -> list[Question]:
    """The right answers, from a worker that nothing is done to."""
    places = asyncio.Semaphore(16)

    async def ask(session: aiohttp.ClientSession, body: dict[str, Any]) -> Question:
        async with places, session.post(url + CHAT.path, json=body) as answer:
            assert answer.status == 200, await answer.text()
            found = await answer.json()
        choice = found["choices"][0]
        return Question(
            body=body,
            text=choice["message"]["content"],
            completion_tokens=found["usage"]["completion_tokens"],
            finish_reason=choice["finish_reason"],
        )

    async with aiohttp.ClientSession(trust_env=False) as session:
        return list(await asyncio.gather(*(ask(session, body) for body in bodies)))


async def ask(
    session: aiohttp.ClientSession,
    base_url: str,
    question: Question,
    *,
    streams: bool,
    leaves_after_events: int | None,
    headers: Mapping[str, str] | None = None,
    asks_usage: bool = True,
) -> Result:
    """Ask once and judge. ``asks_usage``: a stream that has usage only on demand is to have it."""
    started_at = time.monotonic()
    dialect = question.dialect
    tells_usage = asks_usage or not dialect.asks_for_usage
    body = question.body | ({"stream": True} if streams else {})
    if streams and dialect.asks_for_usage and asks_usage:
        body["stream_options"] = {"include_usage": True}
    worker = request_id = status = None
    received = b""

    def result(verdict: Verdict, detail: str) -> Result:
        return Result(
            verdict=verdict,
            started_at=started_at,
            ended_at=time.monotonic(),
            worker=worker,
            detail=detail,
            request_id=request_id,
            status=status,
        )

    try:
        async with session.post(base_url + dialect.path, json=body, headers=headers) as answer:
            worker, request_id = (answer.headers.get(name) for name in ("x-ridgeline-worker", "x-request-id"))
            status = answer.status
            if answer.status != 200:
                return result(Verdict.REFUSED, f"{answer.status} {(await answer.text())[:200]}")
            if not streams:
                received = await answer.read()
                return result(*_judge_plain(received, question))
            async for data in answer.content.iter_any():
                received += data
                if leaves_after_events is not None and received.count(b"\n\n") >= leaves_after_events:
                    answer.close()
                    verdict, detail = _judge_stream(received, question, is_whole=False, tells_usage=tells_usage)
                    return result(Verdict.LEFT if verdict is Verdict.CUT else verdict, detail)
        return result(*_judge_stream(received, question, is_whole=True, tells_usage=tells_usage))
    except (aiohttp.ClientError, ConnectionError) as error:
        if not received:
            verdict = Verdict.CUT if worker is not None else Verdict.REFUSED
            return result(verdict, type(error).__name__)
        verdict, detail = (
            _judge_stream(received, question, is_whole=False, tells_usage=tells_usage) if streams else (Verdict.CUT, "")
        )
        return result(verdict, detail or type(error).__name__)
    except TimeoutError:
        return result(Verdict.WRONG, f"hung, with {len(received)} bytes")


def _judge_plain(received: bytes, question: Question) -> tuple[Verdict, str]:
    found = question.dialect.plain(received)
    got = (found.text, found.completion_tokens, found.finish)
    if got == (question.text, question.completion_tokens, question.dialect.finishes[question.finish_reason]):
        return Verdict.SERVED, ""
    return Verdict.WRONG, f"another answer: {str(got)[:200]}"


def _judge_stream(received: bytes, question: Question, *, is_whole: bool, tells_usage: bool) -> tuple[Verdict, str]:
    """A whole stream has to be the answer, unless it says that it is not; what came of a cut one has to be its beginning."""
    found = question.dialect.stream(received)
    if found.starts > 1 or found.ends > 1:
        return Verdict.WRONG, f"{found.starts} beginnings and {found.ends} ends"
    if not question.text.startswith(found.text):
        return Verdict.WRONG, f"another text: {found.text[:200]!r}"
    if not tells_usage and found.completion_tokens is not None:
        return Verdict.WRONG, "usage that nobody asked for"
    if found.error is not None:
        return Verdict.CUT, str(found.error)[:200]
    if not is_whole:
        return Verdict.CUT, "cut"
    tokens = question.completion_tokens if tells_usage else None
    got = (found.text, found.finish, found.completion_tokens, found.ends)
    if got == (question.text, question.dialect.finishes[question.finish_reason], tokens, 1):
        return Verdict.SERVED, ""
    ended = f"finish {found.finish}, {found.completion_tokens} tokens, {found.ends} ends, {len(found.text)} characters"
    return Verdict.WRONG, f"no error and no whole answer: {ended}"
