"""A gateway with scripted workers that many tests share: each request has an id, which finds all that belongs to it."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.integration.answers import METRICS_PAGE, plain
from tests.integration.gateway import Gateway, Metrics, running_gateway
from tests.integration.raw_client import Answer, RawClient, request_bytes
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Script, Send

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
Body = bytes | dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Seen:
    """One request from both ends, and what the gateway wrote down about it."""

    answer: Answer
    record: dict[str, Any]
    sent_at: float  # `time.monotonic` after the last byte of the request


def chat_body(model: str = "tiny", *, stream: bool = True, **fields: Any) -> dict[str, Any]:
    """A chat request that asks for usage itself when it streams."""
    streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], **streaming, **fields}


class Scene:
    """Made by `running_scene`. Workers play, for each request, what its id was given; for other ids an empty answer."""

    def __init__(self, workers: Mapping[str, list[ScriptedWorker]], headers: Iterable[tuple[str, str]]) -> None:
        self.workers = workers  # by model
        self.headers = tuple(headers)  # sent with each request
        self.gateway: Gateway  # once it runs
        self._scripts: dict[str, deque[Script]] = {}
        self._ids = itertools.count(1)
        for worker in itertools.chain.from_iterable(workers.values()):
            worker.script = self._script_of

    def __repr__(self) -> str:
        return f"<Scene {self.gateway!r}>"

    @property
    def worker(self) -> ScriptedWorker:
        """The first worker of the first model."""
        return next(iter(self.workers.values()))[0]

    def plays(self, *scripts: Script) -> str:
        """A new request id, for whose attempts the workers play these scripts in turn, the last one again and again."""
        request_id = f"test-{next(self._ids)}"
        self._scripts[request_id] = deque(scripts)
        return request_id

    def request(
        self, request_id: str, body: Body, *, path: str = CHAT, method: str = "POST", headers: Iterable[tuple[str, str]] = ()
    ) -> bytes:
        """The bytes of a request with this id."""
        return request_bytes(method, path, body, [("X-Request-Id", request_id), *self.headers, *headers])

    async def connect(self, **options: Any) -> RawClient:
        """A client of the gateway."""
        return await RawClient.connect(self.gateway.base_url, **options)

    async def ask(
        self,
        *scripts: Script,
        body: Body = None,
        path: str = CHAT,
        method: str = "POST",
        headers: Iterable[tuple[str, str]] = (),
        client: RawClient | None = None,
        timeout_seconds: float = 10.0,
    ) -> Seen:
        """Send one request, on a connection of its own unless one is given, read its answer, and wait for its record."""
        request_id = self.plays(*scripts)
        own = client or await self.connect()
        try:
            sent_at = await own.send(
                self.request(request_id, chat_body() if body is None else body, path=path, method=method, headers=headers)
            )
            answer = await own.read_answer(timeout_seconds)
        finally:
            if client is None:
                own.close()
        return Seen(answer, await self.record(request_id), sent_at)

    async def record(self, request_id: str, timeout_seconds: float = 5.0) -> dict[str, Any]:
        """The one record of a request. TimeoutError when none comes, AssertionError when there are several."""
        ends_at = time.monotonic() + timeout_seconds
        while True:
            found = [line for line in self.gateway.log_lines() if line.get("request_id") == request_id]
            if found:
                assert len(found) == 1, found
                return found[0]
            if time.monotonic() > ends_at:
                raise TimeoutError(f"no record of {request_id}\n{self.gateway.stderr}")
            await asyncio.sleep(0.02)

    def arrivals(self, request_id: str) -> list[Received]:
        """The requests with this id that workers have seen, oldest first."""
        workers = itertools.chain.from_iterable(self.workers.values())
        found = [each for worker in workers for each in worker.requests if each.headers.get("x-request-id") == request_id]
        return sorted(found, key=lambda each: each.arrived_at)

    async def arrival(self, request_id: str, timeout_seconds: float = 5.0, *, count: int = 1) -> Received:
        """Wait until a worker has the request, or so many have; return the first. TimeoutError when that never is."""
        workers = list(itertools.chain.from_iterable(self.workers.values()))
        ends_at = time.monotonic() + timeout_seconds
        while True:
            if len(found := self.arrivals(request_id)) >= count:
                return found[0]
            if time.monotonic() > ends_at:
                raise TimeoutError(f"{request_id} reached {len(found)} of {workers}")
            await asyncio.sleep(0.002)

    async def quiet(self, timeout_seconds: float = 5.0) -> Metrics:
        """Wait until nothing is in flight, exactly, and return that scrape. TimeoutError when something stays."""

        def holds(metrics: Metrics) -> bool:
            names = ("ridgeline_in_flight_requests", "ridgeline_in_flight_tokens")
            return all(sample.value == 0 for name in names for sample in metrics[name])

        return await self.gateway.metrics_when(holds, timeout_seconds)

    def _script_of(self, request: Received) -> Script:
        scripts = self._scripts.get(request.headers.get("x-request-id", ""))
        if not scripts:
            return [Send(plain(200, {}))]
        return scripts.popleft() if len(scripts) > 1 else scripts[0]


@asynccontextmanager
async def running_scene(
    pools: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    workers: int | Mapping[str, int] = 1,
    aliases: Sequence[str] = (),
    headers: Iterable[tuple[str, str]] = (),
    environ: Mapping[str, str] | None = None,
    metrics_page: bytes | None = METRICS_PAGE,
) -> AsyncIterator[Scene]:
    """Start scripted workers and a gateway whose models each have one pool of them.

    ``pools`` gives the settings of each model's pool (default: one model ``tiny`` without any), ``workers`` how many it has.
    ``aliases`` are further names of the first model.
    """
    pools = {"tiny": {}} if pools is None else pools
    async with AsyncExitStack() as stack:
        started: dict[str, list[ScriptedWorker]] = {}
        for model in pools:
            count = workers if isinstance(workers, int) else workers.get(model, 1)
            started[model] = [await stack.enter_async_context(ScriptedWorker()) for _ in range(count)]
        scene = Scene(started, headers)
        for worker in itertools.chain.from_iterable(started.values()):
            worker.metrics_page = metrics_page
        models: list[dict[str, Any]] = [
            {
                "name": model,
                # By load: requests of these tests are alike, and would all have one home.
                "pools": [
                    {
                        "name": "default",
                        "policy": "least-load",
                        "workers": [worker.url for worker in started[model]],
                        **settings,
                    }
                ],
            }
            for model, settings in pools.items()
        ]
        models[0]["aliases"] = list(aliases)
        scene.gateway = await stack.enter_async_context(running_gateway({"models": models, **(config or {})}, environ=environ))
        await scene.gateway.ready(scene.gateway.observe_url)
        yield scene


@contextmanager
def unreachable(port: int) -> Iterator[None]:
    """A port that takes no more connections: SYNs to a listener whose queue is full are dropped without an answer."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                with suppress(BlockingIOError):
                    filler.connect(("127.0.0.1", port))
            yield
        finally:
            for filler in fillers:
                filler.close()


def events_of(body: bytes) -> list[Any]:
    """The JSON data of a stream's events, the end marker as its text; comments are left out."""
    found: list[Any] = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        for line in block.split(b"\n"):
            if line.startswith(b"data:"):
                text = line[5:].strip()
                found.append("[DONE]" if text == b"[DONE]" else json.loads(text))
    return found
