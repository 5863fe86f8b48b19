"""An HTTP/1.1 server as plain callbacks: what a simulated worker needs, in the manners of uvicorn.

There is no task per connection or request: a handler is called with a request that is complete, and answers when it likes.
That keeps hundreds of streams cheap, and leaves the bytes on the wire in our hands.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

import httptools

KEEP_ALIVE_SECONDS = 5.0  # uvicorn's
_MOST_PIPELINED = 64


@dataclass(slots=True, kw_only=True)
class Request:
    """A request that has been read to its end."""

    method: str
    path: str  # without the query
    headers: dict[str, str]  # by lower-case name; of equal ones the last
    body: bytes
    keeps_alive: bool = True
    received_at: float = field(default_factory=time.monotonic)


class Handler(Protocol):
    """What answers requests; the answer may be given later."""

    def __call__(self, request: Request, reply: Reply) -> None:
        """Take a request; an exception is a fault of ours and becomes a bare 500."""


class Reply:
    """The answer to one request. Begin with `answer` or with `begin`; `end` ends what `begin` began."""

    def __init__(self, connection: Connection, *, keeps_alive: bool, has_body: bool = True) -> None:
        self._connection = connection
        self._keeps_alive = keeps_alive
        self._has_body = has_body  # False: HEAD
        self.has_begun = False
        self.is_over = False  # by us or by the client
        self.on_gone: Callable[[], None] | None = None  # the client has left before the end
        self.on_resume: Callable[[], None] | None = None  # the client reads again
        self.on_over: Callable[[], None] | None = None  # the answer has ended, however it did
        self.status: int | None = None  # once it has begun
        self.size = 0  # the length of the body as it was declared
        self.is_bytewise = False  # each byte is a write of its own

    def __repr__(self) -> str:
        return f"<Reply {'over' if self.is_over else 'begun' if self.has_begun else 'waiting'}>"

    @property
    def is_paused(self) -> bool:
        """Whether the client reads too slowly for more to be written now."""
        return self._connection.is_paused

    def answer(self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """A whole answer. ``headers`` stand behind its length, but for ``allow``."""
        headers = list(headers)
        first = [pair for pair in headers if pair[0] == "allow"]
        rest = [pair for pair in headers if pair[0] != "allow"]
        self.size = len(body)
        self._head(status, [*first, ("content-length", str(len(body))), *rest], b"")
        self._connection.write(body if self._has_body else b"")
        self.end(b"")

    def begin(self, headers: Iterable[tuple[str, str]], status: int = 200) -> None:
        """The head of an answer that comes in chunks."""
        self._head(status, headers, b"transfer-encoding: chunked\r\n")

    def promise(self, size: int, headers: Iterable[tuple[str, str]], status: int = 200) -> None:
        """The head of an answer of ``size`` bytes, which follow with `raw`."""
        self._head(status, [("content-length", str(size)), *headers], b"")

    def send(self, data: bytes) -> None:
        """One chunk; must not be empty."""
        self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def raw(self, data: bytes) -> None:
        """Bytes as they are, framing or not."""
        self._connection.write(data)

    def end(self, last: bytes = b"0\r\n\r\n") -> None:
        """The answer is whole."""
        if not self.is_over:
            self.over()
            self._connection.answered(closes=not self._keeps_alive, last=last)

    def reset(self) -> None:
        """End the connection with a RST."""
        self.over()
        self._connection.reset()

    def close(self) -> None:
        """End the connection with a FIN."""
        self.over()
        self._connection.close()

    def over(self, *, is_gone: bool = False) -> None:
        """Note the end; only the first time counts. ``is_gone``: the client has left."""
        if self.is_over:
            return
        self.is_over = True
        for tell in (self.on_gone if is_gone else None, self.on_over):
            if tell is not None:
                tell()

    def _head(self, status: int, headers: Iterable[tuple[str, str]], framing: bytes) -> None:
        self.has_begun, self.status = True, status
        close = [] if self._keeps_alive else [("connection", "close")]
        pairs = [("date", _http_date(int(time.time()))), ("server", "uvicorn"), *headers, *close]
        lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
        first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase if status in _STATUSES else ''}\r\n"
        self._connection.is_bytewise = self.is_bytewise
        self._connection.write((first + lines).encode("latin-1") + framing + b"\r\n")


_STATUSES = frozenset(int(status) for status in HTTPStatus)


class Connection(asyncio.Protocol):
    """One connection: reads requests, has them answered one after another, and ends when it has been idle too long."""

    def __init__(self, handle: Handler, connections: set[Connection], keep_alive_seconds: float = KEEP_ALIVE_SECONDS) -> None:
        self.is_paused = False
        self.is_bytewise = False
        self._handle = handle
        self._connections = connections
        self._keep_alive_seconds = keep_alive_seconds
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()
        self._reply: Reply | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._trickle: deque[int] = deque()
        self._closes = False
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    def __repr__(self) -> str:
        return f"<Connection {self._reply!r}, {len(self._waiting)} waiting>"

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer here."""
        return self._reply is None and not self._waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._loop = asyncio.get_running_loop()
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._stop_idling()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self._reply is None:
                reply = Reply(self, keeps_alive=False)
                reply.answer(400, b"Invalid HTTP request received.", [("content-type", "text/plain; charset=utf-8")])
            else:
                self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Whoever was to be answered here is gone."""
        self._connections.discard(self)
        self._stop_idling()
        self._waiting.clear()
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.over(is_gone=True)

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """The client has read what was waiting."""
        self.is_paused = False
        if self._reply is not None and self._reply.on_resume is not None:
            self._reply.on_resume()

    def write(self, data: bytes) -> None:
        """Send bytes, at once or one by one."""
        if self._transport.is_closing():
            return
        if not self.is_bytewise:
            self._transport.write(data)
            return
        is_running = bool(self._trickle)
        self._trickle.extend(data)
        if not is_running and data:
            self._loop.call_soon(self._write_byte)

    def answered(self, *, closes: bool, last: bytes) -> None:
        """The answer that was under way is whole, once ``last`` has been sent; the next request may be answered."""
        if last:
            self.write(last)
        self._closes = self._closes or closes
        if not self._trickle:
            self._advance()

    def close(self) -> None:
        """Close with a FIN once everything is sent."""
        self._closes = True
        if not self._trickle:
            self._transport.close()

    def reset(self) -> None:
        """Close with a RST; what the kernel has not sent yet is lost."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _write_byte(self) -> None:
        if not self._trickle or self._transport.is_closing():
            return
        self._transport.write(bytes((self._trickle.popleft(),)))
        if self._trickle:
            self._loop.call_soon(self._write_byte)
        elif self._reply is None or self._reply.is_over:
            self._advance()

    def _advance(self) -> None:
        """Turn to the next request, if there is one and the connection lives on."""
        self._reply = None
        self.is_bytewise = False
        if self._closes:
            self._transport.close()
        elif self._waiting:
            self._loop.call_soon(self._serve_next)
        else:
            self._idle = self._loop.call_later(self._keep_alive_seconds, self.close)

    def _serve_next(self) -> None:
        if self._reply is not None or not self._waiting or self._transport.is_closing():
            return
        request = self._waiting.popleft()
        if len(self._waiting) < _MOST_PIPELINED:
            self._transport.resume_reading()
        self._reply = reply = Reply(self, keeps_alive=request.keeps_alive, has_body=request.method != "HEAD")
        try:
            self._handle(request, reply)
        except Exception as error:  # a fault of ours; httptools would take it for one of the client's
            self._loop.call_exception_handler({"message": f"{request.method} {request.path} failed", "exception": error})
            if not reply.has_begun:
                reply.answer(500, b"Internal Server Error", [("content-type", "text/plain; charset=utf-8")])
            else:
                reply.close()

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    # What httptools calls while it reads.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url, self._headers, self._body = b"", {}, bytearray()

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is there."""
        if self._headers.get("expect", "").lower() == "100-continue" and self._reply is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """The request is whole: answer it, or have it wait for its turn."""
        self._waiting.append(
            Request(
                method=self._parser.get_method().decode("latin-1"),
                path=self._url.partition(b"?")[0].decode("latin-1"),
                headers=self._headers,
                body=bytes(self._body),
                keeps_alive=self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1",
            )
        )
        if len(self._waiting) >= _MOST_PIPELINED:
            self._transport.pause_reading()
        self._serve_next()


@lru_cache(maxsize=1)
def _http_date(second: int) -> str:
    """The date as HTTP writes it."""
    return formatdate(second, usegmt=True)
