"""Light mixed traffic for a demo: shared prefixes, now and then a long prompt, plain requests, clients that leave early."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from simulator.engine.prefix import BYTES_PER_TOKEN
from simulator.text import WORDS

_MOST_AT_ONCE = 64
_ASSISTANT_TOKENS = (900, 1500, 2200, 3000)  # system prompts that many requests share
_DOCUMENT_TOKENS = (22_000, 25_000, 28_000)  # long texts, above what the short pool accepts
_KINDS: Mapping[str, int] = {"stream": 60, "plain": 12, "completion": 8, "long": 10, "leaver": 10}  # shares of 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to make."""

    path: str
    body: Mapping[str, Any]
    leaves_after_chunks: int | None = None  # the client closes its connection then; None: it stays to the end


class Script:
    """Draws calls, the same for the same seed."""

    def __init__(self, model: str, seed: int = 0) -> None:
        self._model = model
        self._random = Random(seed)  # noqa: S311 -- made-up traffic
        self._assistants = [self._prose(tokens) for tokens in _ASSISTANT_TOKENS]
        self._documents = [self._prose(tokens) for tokens in _DOCUMENT_TOKENS]

    def pause_seconds(self, per_second: float) -> float:
        """Time until the next call, if calls come at random at this rate."""
        return self._random.expovariate(per_second)

    def draw(self) -> Call:
        """The next call."""
        kind = self._random.choices(list(_KINDS), list(_KINDS.values()))[0]
        if kind == "completion":
            body = {"prompt": self._question(), "max_tokens": self._random.randint(32, 128), "stream": True}
            return Call(path="/v1/completions", body={"model": self._model, **body})
        context = self._random.choice(self._documents if kind == "long" else self._assistants)
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": context}, {"role": "user", "content": self._question()}],
            "max_tokens": self._random.randint(64, 256),
            "stream": kind != "plain",
        }
        leaves = self._random.randint(1, 20) if kind == "leaver" else None
        return Call(path="/v1/chat/completions", body=body, leaves_after_chunks=leaves)

    def _question(self) -> str:
        return self._prose(self._random.randint(20, 300))

    def _prose(self, tokens: int) -> str:
        """Words of about this many tokens, and none of them fewer."""
        size = tokens * BYTES_PER_TOKEN
        words = self._random.choices(WORDS, k=size // min(len(word) + 1 for word in WORDS))
        return " ".join(words)[:size]


async def drive_traffic(base_url: str, script: Script, per_second: float) -> None:
    """Make calls until cancelled; those that are under way then are dropped. What fails is the gateway's to count."""
    places = asyncio.Semaphore(_MOST_AT_ONCE)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session, asyncio.TaskGroup() as calls:
        while True:
            await asyncio.sleep(script.pause_seconds(per_second))
            await places.acquire()
            call = calls.create_task(make_call(session, base_url, script.draw()))
            call.add_done_callback(lambda _: places.release())


async def make_call(session: aiohttp.ClientSession, base_url: str, call: Call) -> None:
    """Make one call and read its answer, or leave when its time has come."""
    try:
        async with session.post(base_url + call.path, json=call.body) as response:
            chunks = 0
            async for _ in response.content.iter_any():
                chunks += 1
                if chunks == call.leaves_after_chunks:
                    response.close()
                    return
    except (aiohttp.ClientError, TimeoutError):
        return
