"""Several gateways before the same simulated workers, clients that note what they were told, and a Service that knows who is
ready."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import aiohttp

from simulator.server import RunningWorker, WorkerSettings, start_worker
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.load import id_of, worker_of
from tests.integration.raw_client import Answer, End, RawClient
from tests.integration.scene import CHAT

MODEL = "llama-3.1-8b"
GATEWAYS, WORKERS = 3, 4


def body_of(beginning: str, ending: str, tokens: int) -> dict[str, Any]:
    """A stream of exactly so many tokens. Its first 512 characters tell its home, and the beginning alone fills them."""
    text = f"{beginning} " * (600 // len(beginning) + 1) + ending
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@dataclass(frozen=True, slots=True)
class Told:
    """What a client was told by an answer."""

    gateway: int
    request_id: str
    worker: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    began_at: float  # instant of the loop's clock
    ended_at: float


def read(answer: Answer, gateway: int, began_at: float) -> Told:
    """AssertionError unless it is a whole stream in which each token of its usage came."""
    assert (answer.end, answer.status) == (End.COMPLETE, 200), answer
    events = answer.body.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""], events[-3:]
    parts = [json.loads(event.removeprefix(b"data: ")) for event in events[:-2]]
    usage = parts[-1]["usage"]
    came = sum(bool(choice["delta"].get("content")) for part in parts for choice in part["choices"])
    assert came == usage["completion_tokens"], (came, usage)
    return Told(
        gateway=gateway,
        request_id=id_of(answer),
        worker=worker_of(answer),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"] if usage.get("prompt_tokens_details") else 0,
        completion_tokens=usage["completion_tokens"],
        began_at=began_at,
        ended_at=asyncio.get_running_loop().time(),
    )


@dataclass(slots=True)
class Replicas:
    """Made by `running_replicas`; remembers whatever clients were told."""

    gateways: list[Gateway]
    workers: list[RunningWorker]
    told: list[Told] = field(default_factory=list)

    async def ask(self, gateway: int, body: Mapping[str, Any]) -> Told:
        """One request on a connection of its own."""
        async with await RawClient.connect(self.gateways[gateway].base_url) as client:
            return await self.ask_on(client, gateway, body)

    async def ask_on(self, client: RawClient, gateway: int, body: Mapping[str, Any]) -> Told:
        """One request on this connection, which is closed if the gateway says so."""
        began_at = asyncio.get_running_loop().time()
        answer = await client.request("POST", CHAT, dict(body), timeout_seconds=30)
        told = read(answer, gateway, began_at)
        self.told.append(told)
        assert answer.head is not None
        if answer.head.get("connection") == "close":
            client.close()
        return told

    async def ask_all(self, asked: Sequence[tuple[int, Mapping[str, Any]]], at_once: int) -> list[Told]:
        """All of them, so many at a time, each by the gateway it says; in their order."""
        places = asyncio.Semaphore(at_once)

        async def one(gateway: int, body: Mapping[str, Any]) -> Told:
            async with places:
                return await self.ask(gateway, body)

        return list(await asyncio.gather(*(one(*each) for each in asked)))


@asynccontextmanager
async def running_replicas(*, speed: float = 1.0, **limits: float) -> AsyncIterator[Replicas]:
    """Gateways with the same configuration, which name the same workers alike."""
    async with AsyncExitStack() as stack:
        workers, named = [], []
        for number in range(WORKERS):
            settings = WorkerSettings(model=MODEL, gpu="h100-sxm", port=0, prompt_tokens_details=True, speed=speed)
            running, url = await start_worker(settings)
            stack.push_async_callback(running.cleanup)
            workers.append(running)
            named.append({"name": f"w-{number}", "url": url})
        config = {"models": [{"name": MODEL, "workers": named}], "limits": limits}
        gateways = [await stack.enter_async_context(running_gateway(config, wait_ready=False)) for _ in range(GATEWAYS)]
        await asyncio.gather(*(gateway.ready() for gateway in gateways))
        yield Replicas(gateways, workers)


class Service:
    """Who may get new connections: those whose ``/readyz`` said 200 when it was asked last, as Kubernetes decides it."""

    def __init__(self, gateways: Sequence[Gateway], every_seconds: float) -> None:
        self.ready: set[int] = set()
        self.draining_seen: set[int] = set()  # said themselves that they drain, as against refusing connections
        self._gateways = gateways
        self._every_seconds = every_seconds
        self._dice = Random(1)

    def pick(self) -> int:
        """One of those who are ready."""
        return self._dice.choice(sorted(self.ready))

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(len(self._gateways)):
                group.create_task(self._watch(number))

    async def _watch(self, number: int) -> None:
        while True:
            is_ready = False
            with suppress(OSError, aiohttp.ClientError, TimeoutError):
                status, text = await self._gateways[number].get(self._gateways[number].base_url + "/readyz", 1.0)
                is_ready = status == 200
                if text == "draining\n":
                    self.draining_seen.add(number)
            (self.ready.add if is_ready else self.ready.discard)(number)
            await asyncio.sleep(self._every_seconds)


class Client:
    """Asks one thing after another of whoever is ready, on a connection that it keeps or on a new one each time."""

    def __init__(self, replicas: Replicas, service: Service, bodies: Sequence[Mapping[str, Any]], *, keeps: bool) -> None:
        self.homes: dict[int, set[str]] = {}  # workers that answered, by the place of the body
        self.failures: list[str] = []
        self.has_to_end = False
        self._replicas = replicas
        self._service = service
        self._bodies = bodies
        self._keeps = keeps

    async def run(self) -> None:
        """Until told to end; who fails is asked no more."""
        kept: tuple[RawClient, int] | None = None
        try:
            for number in count():
                if self.has_to_end:
                    return
                if kept is None:
                    gateway = self._service.pick()
                    kept = await RawClient.connect(self._replicas.gateways[gateway].base_url), gateway
                place = number % len(self._bodies)
                client, gateway = kept
                told = await self._replicas.ask_on(client, gateway, self._bodies[place])
                self.homes.setdefault(place, set()).add(told.worker)
                if not self._keeps or client.is_closed:
                    client.close()
                    kept = None
        except (AssertionError, OSError, EOFError, TimeoutError, IndexError) as error:
            self.failures.append(
                f"by gateway {kept and kept[1]}, {'kept' if self._keeps else 'new'} connection: {error!r}"[:600]
            )
        finally:
            if kept is not None:
                kept[0].close()
