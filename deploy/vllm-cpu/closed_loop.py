"""A closed loop of clients on bare sockets: so many streams at once, the next one as soon as one has ended.

A client in Python that parsed events would be the slowest of the three; this one notes when bytes came and counts events.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from urllib.parse import urlsplit

_END = b"0\r\n\r\n"
_QUEUE = re.compile(rb'"queue_time_ms": ?([0-9.e-]+)')
_FIRST_TOKEN = re.compile(rb'"time_to_first_token_ms": ?([0-9.e-]+)')  # from its first step on
_LARGEST_TOKEN = 400  # of the tiny model's vocabulary; none of its special tokens are below


@dataclass(frozen=True, slots=True)
class Shape:
    """A request: tokens in and out."""

    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Stream:
    """One answer, by the instants at which its events came; a server that is late puts several tokens into one."""

    shape: Shape
    sent_at: float = 0.0
    event_at: list[float] = field(default_factory=list)
    engine_seconds: float | None = None  # in the engine's queue and to its first token, if the server tells

    @property
    def ttft_seconds(self) -> float:
        """Sent to first token."""
        return self.event_at[0] - self.sent_at

    @property
    def tpot_seconds(self) -> float:
        """Mean time from one token to the next."""
        return (self.event_at[-1] - self.event_at[0]) / (self.shape.output_tokens - 1)


class _Client(asyncio.Protocol):
    """One connection, one stream after another until there are none left."""

    def __init__(self, host: str, next_stream: Callable[[], tuple[Stream, bytes] | None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._host = host
        self._next = next_stream
        self._stream: Stream | None = None
        self._last = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._begin()

    def data_received(self, data: bytes) -> None:
        now, stream = time.perf_counter(), self._stream
        if stream is None:
            return
        if not stream.event_at and b"HTTP/1.1 200" not in data[:16] and not self._last:
            self._fail(data.decode(errors="replace"))
            return
        stream.event_at += [now] * data.count(b'"text":')
        if b'"time_to_first_token_ms"' in data:
            told = [_QUEUE.search(data), _FIRST_TOKEN.search(data)]
            stream.engine_seconds = sum(float(one[1]) for one in told if one is not None) / 1e3
        self._last = (self._last + data)[-len(_END) :]
        if self._last == _END:
            self._last = b""
            self._begin()

    def connection_lost(self, _: Exception | None) -> None:
        if self._stream is not None:
            self._fail("the connection was closed in the middle of an answer")

    def _begin(self) -> None:
        drawn = self._next()
        self._stream = None if drawn is None else drawn[0]
        if drawn is None:
            self._transport.close()
            if not self.ended.done():
                self.ended.set_result(None)
            return
        stream, body = drawn
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        stream.sent_at = time.perf_counter()
        self._transport.write(request)  # type: ignore[attr-defined]  # asyncio's connections are transports that write

    def _fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(RuntimeError(f"no stream of tokens: {why[:500]}"))


async def run_closed_loop(url: str, model: str, shapes: Sequence[Shape], concurrency: int, seed: str) -> list[Stream]:
    """Send requests of these shapes, ``concurrency`` at a time; every prompt is another one. RuntimeError if one fails."""
    address, draws = urlsplit(url), Random(seed)  # noqa: S311 -- prompts, not secrets
    streams: list[Stream] = []
    rest: Iterator[Shape] = iter(shapes)

    def next_stream() -> tuple[Stream, bytes] | None:
        shape = next(rest, None)
        if shape is None:
            return None
        stream = Stream(shape)
        streams.append(stream)
        prompt = [draws.randrange(100, _LARGEST_TOKEN) for _ in range(shape.prompt_tokens)]
        asked = {"model": model, "prompt": prompt, "max_tokens": shape.output_tokens, "ignore_eos": True, "stream": True}
        return stream, json.dumps({**asked, "temperature": 0, "stream_options": {"include_usage": True}}).encode()

    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(concurrency):
        _, client = await loop.create_connection(
            lambda: _Client(address.netloc, next_stream), address.hostname, address.port or 80
        )
        clients.append(client)
    await asyncio.gather(*(client.ended for client in clients))
    for stream in streams:
        if not 1 <= len(stream.event_at) <= stream.shape.output_tokens:
            raise RuntimeError(f"{len(stream.event_at)} events came of {stream.shape}")
    return streams
