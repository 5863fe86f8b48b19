"""Load on a gateway and a watch on its counters, for tests that disturb it meanwhile."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from tests.integration.answers import chat_events, stream_of, usage_of
from tests.integration.gateway import Gateway
from tests.integration.raw_client import Answer, RawClient, request_bytes
from tests.integration.scene import CHAT, chat_body
from tests.integration.steps import Step

_COUNTER = re.compile(r"^(ridgeline_\w+(?:_total|_bucket|_count|_sum)(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


class Watch:
    """Scrapes all the time and notes whatever is wrong with what it sees."""

    def __init__(self, gateway: Gateway, every_seconds: float) -> None:
        self.scrapes = 0
        self.went_back: list[str] = []  # counters that were smaller than before, with both values
        self.misses: list[float] = []  # instants at which there was no page
        self.answered_at = 0.0  # of the last page
        self._url = gateway.observe_url + "/metrics"
        self._every_seconds = every_seconds
        self._seen: dict[str, float] = {}

    async def run(self) -> None:
        """Scrape until cancelled."""
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(trust_env=False, timeout=timeout) as session:
            while True:
                try:
                    async with session.get(self._url) as answer:
                        text = await answer.text()
                    if answer.status == 200:
                        self._take(text)
                    else:
                        self.misses.append(time.monotonic())
                except (OSError, aiohttp.ClientError, TimeoutError):
                    self.misses.append(time.monotonic())
                await asyncio.sleep(self._every_seconds)

    def _take(self, text: str) -> None:
        self.scrapes += 1
        self.answered_at = time.monotonic()
        before, self._seen = self._seen, {name: float(figure) for name, figure in _COUNTER.findall(text)}
        # What was not on the last page, such as a worker that was removed, may begin anew.
        self.went_back += [
            f"{name}: {before[name]} -> {value} in scrape {self.scrapes}"
            for name, value in self._seen.items()
            if value < before.get(name, 0.0)
        ]


@asynccontextmanager
async def watched(gateway: Gateway, every_seconds: float = 0.05) -> AsyncIterator[Watch]:
    """Watch the counters while the block runs."""
    watch = Watch(gateway, every_seconds)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def paced(tokens: int, gap_seconds: float) -> list[Step]:
    """A stream of so many tokens with usage at its end."""
    texts = [f"t{number} " for number in range(tokens)]
    return stream_of(chat_events(texts, usage=usage_of(5, tokens, 0)), gap_seconds=gap_seconds)


async def stream(gateway: Gateway, timeout_seconds: float = 30.0, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """One stream on a connection of its own, read to its end, whatever that is."""
    async with await RawClient.connect(gateway.base_url) as client:
        return await client.request("POST", CHAT, chat_body(), headers, timeout_seconds=timeout_seconds)


async def client_of(gateway: Gateway) -> tuple[RawClient, str]:
    """A kept connection, and a text that tells which serving process has it: all its request ids begin with it."""
    client = await RawClient.connect(gateway.base_url)
    return client, process_of(await client.request("GET", "/v1/models"))


async def clients_of_each(gateway: Gateway, stack: AsyncExitStack, count: int, processes: int = 2) -> list[list[RawClient]]:
    """So many kept connections to each serving process. TimeoutError when one of them gets too few."""
    found: dict[str, list[RawClient]] = {}
    async with asyncio.timeout(20):
        while len(found) < processes or min(map(len, found.values())) < count:
            client, process = await client_of(gateway)
            if len(found.setdefault(process, [])) < count:
                found[process].append(await stack.enter_async_context(client))
            else:
                client.close()
    return list(found.values())


def id_of(answer: Answer) -> str:
    """The id that the gateway gave the request."""
    assert answer.head is not None, answer
    found = answer.head.get("x-request-id")
    assert found is not None
    return found


def process_of(answer: Answer) -> str:
    """What tells the serving process that answered from all others, also from the one before it in its place."""
    return id_of(answer)[:16]


def worker_of(answer: Answer) -> str:
    """The name of the worker that answered."""
    assert answer.head is not None, answer
    return answer.head.get("x-ridgeline-worker") or ""


async def all_up(gateway: Gateway, processes: int) -> None:
    """Wait until so many serving processes take connections and control shows their figures."""
    await gateway.metrics_when(lambda metrics: len(metrics.matching("ridgeline_loop_lag_seconds")) == processes, 20.0)
    await eventually(lambda: "ridgeline is up" in gateway.stderr)


def rss_bytes(gateway: Gateway) -> int:
    """Resident memory of the serving process."""
    [pid] = gateway.processes.serving
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def volume(usual: int, full: int) -> int:
    """How many, or how much: as every change is tried with, or with FULL_VOLUME=1 as users of such software have reported."""
    return full if os.environ.get("FULL_VOLUME") == "1" else usual


async def eventually(holds: Callable[[], bool], timeout_seconds: float = 10.0) -> None:
    """Wait until it holds. TimeoutError if it never does."""
    async with asyncio.timeout(timeout_seconds):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


async def requests_in_turn(client: RawClient, count: int) -> list[Answer]:
    """So many plain requests on one connection, one after another."""
    body = chat_body(stream=False)
    return [await client.request("POST", CHAT, body) for _ in range(count)]


def chat_bytes(*headers: tuple[str, str], stream: bool = True, **fields: object) -> bytes:
    """The bytes of a chat request without an id of its own."""
    return request_bytes("POST", CHAT, chat_body(stream=stream, **fields), headers)
