"""Requests that nobody else makes: each has a mark of its own, and its one right answer is made of that mark."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any

import aiohttp

from tests.chaos.client import Question, Result, Verdict, ask
from tests.chaos.workers import MODEL
from tests.integration.gateway import Gateway

OTHER_MODEL = "another-model"
MARK = re.compile(rb"q[0-9a-f]{20}")
_TOKEN = re.compile(r" ?[A-Za-z0-9]+")  # what a simulated worker takes for one token of such a text
_ID_PREFIX = "soak-"
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A client's key and what it may do."""

    name: str
    quota: dict[str, int]
    share: float  # of the traffic

    @property
    def text(self) -> str:
        """What the client sends."""
        return f"sk-soak-{self.name}"

    def listed(self) -> dict[str, Any]:
        """As the configuration has it."""
        return {"name": self.name, "sha256": sha256(self.text.encode()).hexdigest(), "quota": self.quota}


KEYS = (
    Key(name="free", quota={}, share=0.7),
    Key(name="by-rate", quota={"requests_per_minute": 60}, share=0.15),
    Key(name="one-at-a-time", quota={"concurrent_requests": 1}, share=0.15),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request and what came of it."""

    request_id: str
    key: str
    completion_tokens: int  # of the right answer
    result: Result

    @property
    def is_limited(self) -> bool:
        """Whether the gateway refused it because of a quota, as far as its client can tell."""
        return self.result.verdict is Verdict.REFUSED and self.result.status == 429


def make_question(number: int, seed: int, dice: Random) -> Question:
    """The question of this number: three in four short, one in ten of a long prompt, one in four for the other model."""
    mark = "q" + sha256(f"{seed}:{number}".encode()).hexdigest()[:20]
    answer = " ".join(mark if place % 8 == 0 else f"w{dice.randrange(100)}" for place in range(dice.choice((8, 24, 64, 160))))
    is_long = dice.random() < 0.1
    words = " ".join(f"{mark}-{dice.randrange(10**4)}" for _ in range(2500 if is_long else dice.randint(4, 120)))
    body = {
        "model": MODEL if is_long or dice.random() < 0.75 else OTHER_MODEL,
        "messages": [
            {"role": "system", "content": f"You are assistant {number % 7}. Answer with care. " * 8},
            {"role": "user", "content": words},
        ],
        "structured_outputs": {"choice": [answer]},
        "max_tokens": 200,
    }
    # the end of the text is a token too
    return Question(body=body, text=answer, completion_tokens=len(_TOKEN.findall(answer)) + 1, finish_reason="stop")


async def send_traffic(gateway: Gateway, *, seconds: float, per_second: float, seed: int) -> list[Sent]:
    """Ask at random instants for so long, with all keys, and wait for the last answer."""
    dice = Random(seed)
    ends_at = time.monotonic() + seconds
    tasks: list[asyncio.Task[Sent]] = []
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(_session(key)) for key in KEYS]
        while time.monotonic() < ends_at:
            await asyncio.sleep(dice.expovariate(per_second))
            (place,) = dice.choices(range(len(KEYS)), [key.share for key in KEYS])
            leaves = dice.randint(1, 20) if dice.random() < 0.1 else None
            streams = leaves is not None or dice.random() < 0.7
            number = len(tasks)
            question = make_question(number, seed, dice)
            request = _send(sessions[place], KEYS[place], gateway, number, question, streams=streams, leaves=leaves)
            tasks.append(asyncio.create_task(request))
        return list(await asyncio.gather(*tasks))


def _session(key: Key) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS),
        connector=aiohttp.TCPConnector(limit=0),
        headers={"authorization": f"Bearer {key.text}"},
    )


async def _send(
    session: aiohttp.ClientSession,
    key: Key,
    gateway: Gateway,
    number: int,
    question: Question,
    *,
    streams: bool,
    leaves: int | None,
) -> Sent:
    request_id = f"{_ID_PREFIX}{number}"
    result = await ask(
        session,
        gateway.base_url,
        question,
        streams=streams,
        leaves_after_events=leaves,
        headers={"x-request-id": request_id},
    )
    return Sent(request_id=request_id, key=key.name, completion_tokens=question.completion_tokens, result=result)


def strays(sent: Sequence[Sent]) -> list[Sent]:
    """Those whose answer named another request, or showed any mark in an error."""
    return [
        one
        for one in sent
        if one.result.request_id not in (None, one.request_id)
        or (one.result.verdict is Verdict.REFUSED and MARK.search(one.result.detail.encode()))
    ]
