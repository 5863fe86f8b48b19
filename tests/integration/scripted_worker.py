"""A real little HTTP server that plays a script for each request: what a worker sends, when, and how it dies.

Scripts are lists of steps (steps.py; answers.py has the bytes for them). They come from a function of the request
(`ScriptedWorker.script`) or from a queue (`ScriptedWorker.enqueue`), which goes first. What a worker answers to probes is set
apart, and needs no script.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.http1 import Head, Message
from tests.integration.answers import METRICS_PAGE, plain
from tests.integration.steps import ByteByByte, Close, Hang, Reset, Script, Send, Step, Until, Wait


@dataclass(slots=True, eq=False)
class Received:
    """A request as it arrived. Instants are of `time.monotonic`."""

    head: Head
    body: bytes
    arrived_at: float  # its last byte was read
    connection: int  # 0 for the worker's first connection, 1 for the next, …
    answered_at: float | None = None  # the script was played to its end
    closed_at: float | None = None  # the peer closed or reset the connection; None while it has not, or if we did
    was_reset: bool = False
    _closed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def method(self) -> str:
        """GET, POST, …"""
        return self.head.first_line.split(" ")[0]

    @property
    def path(self) -> str:
        """The request target as it was sent."""
        return self.head.first_line.split(" ")[1]

    @property
    def headers(self) -> dict[str, str]:
        """Headers by lower-case name; of equal ones the last."""
        return dict(self.head.headers)

    async def closed(self, timeout_seconds: float = 5.0) -> float:
        """Wait until the peer has closed this request's connection and return when. TimeoutError if it does not."""
        async with asyncio.timeout(timeout_seconds):
            await self._closed.wait()
        assert self.closed_at is not None
        return self.closed_at

    def peer_closed(self, now: float, *, was_reset: bool) -> None:
        """Note that the peer closed; only the first time counts."""
        if self.closed_at is None:
            self.closed_at, self.was_reset = now, was_reset
            self._closed.set()


class ScriptedWorker:
    """Create, `start`, and `stop`; or use it as an async context manager."""

    def __init__(
        self,
        script: Callable[[Received], Script] | Script = (),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls = tls
        self.script = script  # for requests that find the queue empty
        self.requests: list[Received] = []  # in the order of their arrival, without probes
        self.probes: list[Received] = []  # GET /health, /metrics, /version and /v1/models
        self.health_status: int | None = 200  # None: /health hangs
        self.metrics_page: bytes | None = METRICS_PAGE  # None: /metrics answers 404
        self.models_page: bytes | None = None  # None: /v1/models answers 404
        self.version = "0.32.0"  # of vLLM, as /version says
        self.connections = 0  # accepted so far
        self.faults: list[Exception] = []  # what went wrong in a script or in reading a request; raised by `stop`
        self.arrival = asyncio.Condition()
        self.host = host
        self.port = port
        self._queue: deque[Script] = deque()
        self._open: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<ScriptedWorker {self.url}: {len(self.requests)} requests, {len(self._open)} open connections>"

    @property
    def url(self) -> str:
        """The base URL, also while the worker does not listen."""
        return f"{'http' if self.tls is None else 'https'}://{self.host}:{self.port}"

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._open)

    def enqueue(self, *scripts: Script) -> None:
        """Play each of these once, in this order, before `script` is asked."""
        self._queue.extend(scripts)

    async def start(self) -> None:
        """Listen; after `stop` on the same port as before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop_listening(self) -> None:
        """Refuse new connections; those that are open live on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await asyncio.sleep(0)

    async def stop(self) -> None:
        """Refuse new connections and reset those that are open. Raises what went wrong in a script."""
        await self.stop_listening()
        tasks = [connection.task for connection in self._open if connection.task is not None]
        for connection in tuple(self._open):
            connection.reset()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.faults:
            raise ExceptionGroup("the scripted worker failed", self.faults)

    async def received(self, count: int = 1, timeout_seconds: float = 5.0) -> list[Received]:
        """Wait until so many requests have arrived since the start; return all. TimeoutError if they do not."""
        async with asyncio.timeout(timeout_seconds), self.arrival:
            await self.arrival.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    def script_for(self, request: Received) -> Script:
        """What to play for this request."""
        if request.method == "GET" and request.path == "/health":
            return [Hang()] if self.health_status is None else [Send(plain(self.health_status))]
        if request.method == "GET" and request.path == "/metrics":
            page = self.metrics_page
            return [Send(plain(404) if page is None else plain(200, page, content_type="text/plain; version=1.0.0"))]
        if request.method == "GET" and request.path == "/version":
            return [Send(plain(200, {"version": self.version}))]
        if request.method == "GET" and request.path == "/v1/models":
            return [Send(plain(404) if self.models_page is None else plain(200, self.models_page))]
        if self._queue:
            return self._queue.popleft()
        return self.script(request) if callable(self.script) else self.script

    async def __aenter__(self) -> ScriptedWorker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class _Connection(asyncio.Protocol):
    """One connection: reads while it plays, so that a closing peer is seen at once and ends the script."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self.worker = worker
        self.number = worker.connections
        self.requests: list[Received] = []
        self.message = Message(is_request=True)
        self.arrived = asyncio.Event()  # bytes came, or the end
        self.writable = asyncio.Event()
        self.writable.set()
        self.is_closing = False  # by us
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.worker.connections += 1
        self.worker._open.add(self)
        self.task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self.message.rest += data
        self.arrived.set()

    def eof_received(self) -> None:
        self._peer_closed(was_reset=False)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_closing:
            self._peer_closed(was_reset=isinstance(error, ConnectionError))
        self.worker._open.discard(self)
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def reset(self) -> None:
        """Close with a RST."""
        self.is_closing = True
        if (sock := self.transport.get_extra_info("socket")) is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _peer_closed(self, *, was_reset: bool) -> None:
        now = time.monotonic()
        for request in self.requests:
            request.peer_closed(now, was_reset=was_reset)
        if self.task is not None:
            self.task.cancel()

    async def _serve(self) -> None:
        with suppress(asyncio.CancelledError):
            try:
                while await self._answer_next():
                    pass
            except Exception as error:  # a mistake in a test or in this file: `stop` raises it
                self.worker.faults.append(error)
            self.is_closing = True
            self.transport.close()

    async def _answer_next(self) -> bool:
        """Read one request and play its script; whether the connection lives on."""
        request = await self._read()
        is_probe = request.method == "GET" and request.path in ("/health", "/metrics", "/version", "/v1/models")
        script = self.worker.script_for(request)
        self.requests.append(request)
        async with self.worker.arrival:
            (self.worker.probes if is_probe else self.worker.requests).append(request)
            self.worker.arrival.notify_all()
        if not script:
            raise LookupError(f"no script for {request.head.first_line}")
        for step in script:
            if not await self._play(step):
                return False
        request.answered_at = time.monotonic()
        return request.head.keeps_alive

    async def _read(self) -> Received:
        message, was_asked = self.message, False
        while True:
            message.feed(b"")
            if message.is_complete and message.head is not None:
                break
            if message.head is not None and message.head.get("expect") == "100-continue" and not was_asked:
                was_asked = True
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.arrived.clear()
            await self.arrived.wait()
        self.message = Message(is_request=True, rest=message.rest)
        return Received(message.head, bytes(message.body), time.monotonic(), self.number)

    async def _play(self, step: Step) -> bool:
        """Play one step; whether the connection lives on."""
        match step:
            case Send(data):
                self.transport.write(data)
                await self.writable.wait()
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Until(event):
                await event.wait()
            case ByteByByte(data, gap_seconds):
                for byte in data:
                    self.transport.write(bytes([byte]))
                    await asyncio.sleep(gap_seconds)
                    await self.writable.wait()
            case Close():
                return False
            case Reset():
                self.reset()
                return False
            case Hang():
                await asyncio.Event().wait()
        return True
