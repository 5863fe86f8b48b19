"""A client on a bare socket: sends any bytes, sees each read with its time, stops reading, half-closes, resets."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from tests.http1 import Head, Message


class End(Enum):
    """How an answer ended, as its client sees it."""

    COMPLETE = "complete"  # by its own framing
    CUT = "cut"  # the connection was closed before the framing said so
    RESET = "reset"  # the same, by a RST


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request."""

    head: Head | None  # None when the connection ended before a whole head
    body: bytes  # without chunk sizes
    end: End
    raw: bytes  # head and body as they came
    reads: tuple[tuple[float, bytes], ...]  # instant of `time.monotonic` and bytes of each read

    @property
    def status(self) -> int:
        """The status; AssertionError when no head came."""
        assert self.head is not None, f"no head: {self.end}"
        return self.head.status

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def at(self, needle: bytes) -> float:
        """The instant at which the raw bytes up to the end of ``needle``'s first place had come. ValueError without one."""
        last = self.raw.index(needle) + len(needle)
        seen = 0
        for instant, data in self.reads:
            seen += len(data)
            if seen >= last:
                return instant
        raise ValueError("reads and raw differ")


def request_bytes(
    method: str, path: str, body: bytes | dict[str, Any] | None = None, headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """A request of HTTP/1.1; a dict is sent as JSON, and a body with its length."""
    lines = [f"{method} {path} HTTP/1.1", "Host: gateway.test", *(f"{name}: {value}" for name, value in headers)]
    if isinstance(body, dict):
        lines.append("Content-Type: application/json")
        body = json.dumps(body).encode()
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class RawClient:
    """One connection. Reads only when told to, so not calling a read method is how a client stops reading."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._ahead = b""  # read, and behind the end of the last answer

    def __repr__(self) -> str:
        return f"<RawClient {'closed' if self.is_closed else self._socket.getsockname()}>"

    @property
    def is_closed(self) -> bool:
        """Whether this side has closed it."""
        return self._socket.fileno() < 0

    @classmethod
    async def connect(cls, url: str, *, receive_buffer_bytes: int | None = None) -> RawClient:
        """Connect to the host and port of a URL; a small receive buffer makes a slow reader felt soon."""
        parts = urlsplit(url)
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def send(self, data: bytes) -> float:
        """Send all bytes and return the instant after the last of them was handed to the kernel."""
        await asyncio.get_running_loop().sock_sendall(self._socket, data)
        return time.monotonic()

    async def read_some(self, timeout_seconds: float = 5.0) -> bytes:
        """One read; empty at the end of the stream. TimeoutError, or ConnectionResetError after a RST."""
        async with asyncio.timeout(timeout_seconds):
            return await asyncio.get_running_loop().sock_recv(self._socket, 65536)

    async def read_until(self, needle: bytes, timeout_seconds: float = 5.0) -> bytes:
        """Read until the bytes read by this call end with or contain ``needle``. EOFError when the stream ends before."""
        async with asyncio.timeout(timeout_seconds):
            data = self._ahead
            self._ahead = b""
            while needle not in data:
                more = await self.read_some(timeout_seconds)
                if not more:
                    raise EOFError(data)
                data += more
            return data

    async def read_answer(self, timeout_seconds: float = 10.0, *, start: bytes = b"") -> Answer:
        """Read one answer to its end, however it ends. ``start``: bytes of it that were read before."""
        message = Message(is_request=False)
        reads = [(time.monotonic(), data)] if (data := start + self._ahead) else []
        message.feed(data)
        message = _without_interim(message)
        end = None
        async with asyncio.timeout(timeout_seconds):
            while not message.is_complete and end is None:
                try:
                    data = await self.read_some(timeout_seconds)
                except ConnectionResetError:
                    end = End.RESET
                    continue
                if data:
                    reads.append((time.monotonic(), data))
                    message.feed(data)
                    message = _without_interim(message)
                else:
                    message.closed()
                    end = None if message.is_complete else End.CUT
        raw = b"".join(data for _, data in reads)
        self._ahead = bytes(message.rest) if message.is_complete else b""
        raw = raw[: len(raw) - len(self._ahead)]
        return Answer(message.head, bytes(message.body), end or End.COMPLETE, raw, tuple(reads))

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: Iterable[tuple[str, str]] = (),
        *,
        timeout_seconds: float = 10.0,
    ) -> Answer:
        """Send one request and read its answer."""
        await self.send(request_bytes(method, path, body, headers))
        return await self.read_answer(timeout_seconds)

    def half_close(self) -> None:
        """Send a FIN and go on reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with a RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        """Close with a FIN (the kernel makes it a RST when unread bytes are left); again does nothing."""
        self._socket.close()

    async def __aenter__(self) -> RawClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _without_interim(message: Message) -> Message:
    """Step over complete 1xx answers."""
    while message.is_complete and message.head is not None and message.head.status < 200:
        rest, message = bytes(message.rest), Message(is_request=False)
        message.feed(rest)
    return message
