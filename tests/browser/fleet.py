"""A gateway before simulated workers, for the page to look at, and requests for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from itertools import count

import aiohttp

from tests.chaos.workers import MODEL, SimulatedWorker, simulated_workers
from tests.integration.gateway import Gateway, running_gateway

MARKUP = "<img src=x onerror=alert(1)>"
KEY = "key-of-app-a"
SYSTEM = "You answer politely and at length. " * 120


class Fleet:
    """Made by `running_fleet`."""

    def __init__(self, gateway: Gateway, workers: dict[str, SimulatedWorker]) -> None:
        self.gateway = gateway
        self.workers = workers
        self._numbers = count()

    async def ask(self, requests: int, *, text: str = "Hello", max_tokens: int = 8, at_once: int = 4) -> None:
        """Send streams, some at once, and read their answers whatever they are."""
        slots = asyncio.Semaphore(at_once)
        async with aiohttp.ClientSession(trust_env=False) as session:
            await asyncio.gather(*(self._one(session, slots, text, max_tokens) for _ in range(requests)))

    async def _one(self, session: aiohttp.ClientSession, slots: asyncio.Semaphore, text: str, max_tokens: int) -> None:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{text} {next(self._numbers)}"}]
        body = {"model": MODEL, "stream": True, "max_tokens": max_tokens, "messages": messages}
        url = f"{self.gateway.base_url}/v1/chat/completions"
        async with slots, session.post(url, json=body, headers={"Authorization": f"Bearer {KEY}"}) as answer:
            await answer.read()


@asynccontextmanager
async def running_fleet() -> AsyncIterator[Fleet]:
    """Two workers in one pool, one in another, and a model and a worker with nasty names."""
    options = ("--gpu", "h100-sxm", "--max-model-len", "16384", "--enable-prompt-tokens-details")
    workers = {name: SimulatedWorker(name, port=0, options=options) for name in ("short-1", "short-2", "spare-1")}
    async with simulated_workers(*workers.values()):

        def pool(name: str, most: int, *names: str) -> dict[str, object]:
            chosen = [{"name": each, "url": workers[each].url} for each in names]
            return {"name": name, "max_total_tokens": most, "gpu": "h100-sxm", "policy": "round-robin", "workers": chosen}

        config = {
            "health": {"silence_seconds": 3},
            "keys": [{"name": "app-a", "sha256": sha256(KEY.encode()).hexdigest()}],
            "models": [
                {"name": MODEL, "pools": [pool("short", 8192, "short-1", "short-2"), pool("spare", 16384, "spare-1")]},
                {
                    "name": MARKUP,
                    "pools": [{"name": "odd", "workers": [{"name": "<b>odd</b>", "url": workers["spare-1"].url}]}],
                },
            ],
        }
        async with running_gateway(config) as gateway:
            yield Fleet(gateway, workers)
