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
from tests.chaos.dialects import EMBEDDINGS
from tests.integration.gateway import Gateway
from tests.soak.leaving import Leaving, leave_early
from tests.soak.questions import make_question

MARK = re.compile(rb"q[0-9a-f]{20}")
_ID_PREFIX = "soak-"
_TIMEOUT_SECONDS = 60.0
_LEAVES_EARLY_RATIO = 0.06


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
    endpoint: str  # the label
    completion_tokens: int  # of the right answer
    result: Result
    left: Leaving | None = None  # before anything was read

    @property
    def is_limited(self) -> bool:
        """Whether the gateway refused it because of a quota, as far as its client can tell."""
        return self.result.verdict is Verdict.REFUSED and self.result.status == 429


async def send_traffic(gateway: Gateway, *, seconds: float, per_second: float, seed: int) -> list[Sent]:
    """Ask at random instants for so long, with all keys, and wait for the last answer."""
    dice = Random(seed)
    ends_at = time.monotonic() + seconds
    tasks: list[asyncio.Task[Sent]] = []
    async with AsyncExitStack() as stack:
        sessions = {key.name: await stack.enter_async_context(_session(key)) for key in KEYS}
        while time.monotonic() < ends_at:
            await asyncio.sleep(dice.expovariate(per_second))
            number = len(tasks)
            question = make_question(number, seed, dice)
            leaving = dice.choice(tuple(Leaving)) if dice.random() < _LEAVES_EARLY_RATIO else None
            (key,) = dice.choices(KEYS, [key.share for key in KEYS])
            if leaving is not None:
                request = _leave(gateway, number, question, leaving, dice)
            else:
                request = _send(sessions[key.name], key, gateway, number, question, dice)
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
    session: aiohttp.ClientSession, key: Key, gateway: Gateway, number: int, question: Question, dice: Random
) -> Sent:
    """Most stream; one in ten leaves in the middle of that, and one in three asks for no usage."""
    request_id = f"{_ID_PREFIX}{number}"
    can_stream = question.dialect is not EMBEDDINGS
    leaves = dice.randint(1, 20) if can_stream and dice.random() < 0.1 else None
    result = await ask(
        session,
        gateway.base_url,
        question,
        streams=can_stream and (leaves is not None or dice.random() < 0.7),
        leaves_after_events=leaves,
        headers={"x-request-id": request_id},
        asks_usage=dice.random() > 1 / 3,
    )
    return Sent(
        request_id=request_id,
        key=key.name,
        endpoint=question.dialect.endpoint,
        completion_tokens=question.completion_tokens,
        result=result,
    )


async def _leave(gateway: Gateway, number: int, question: Question, when: Leaving, dice: Random) -> Sent:
    """With the key that is never refused: whoever reads nothing cannot tell."""
    request_id = f"{_ID_PREFIX}{number}"
    streams = question.dialect is not EMBEDDINGS and dice.random() < 0.7
    result = await leave_early(gateway, question, request_id, KEYS[0].text, when, dice, streams=streams)
    return Sent(
        request_id=request_id,
        key=KEYS[0].name,
        endpoint=question.dialect.endpoint,
        completion_tokens=question.completion_tokens,
        result=result,
        left=when,
    )


def strays(sent: Sequence[Sent]) -> list[Sent]:
    """Those whose answer named another request, or showed any mark in an error."""
    return [
        one
        for one in sent
        if one.result.request_id not in (None, one.request_id)
        or (one.result.verdict is Verdict.REFUSED and MARK.search(one.result.detail.encode()))
    ]
