"""A request of the gateway's own to a worker: a whole answer, or an error that says what was wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from proxy.upstream.lone_request import UnreachableError, ask
from proxy.wire.framing import FramingError
from routing.topology import Worker
from tests.integration.gateway import free_ports
from tests.routing.topologies import a_pool, a_worker

REQUEST = (b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n", b"{}")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


@asynccontextmanager
async def a_server(*writes: bytes) -> AsyncIterator[tuple[Worker, list[bytes]]]:
    """Reads a request, answers with these writes and closes; with what it was sent."""
    got: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readexactly(len(b"".join(REQUEST))))
        for piece in writes:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield replace(a_worker(0), port=server.sockets[0].getsockname()[1]), got


@pytest.mark.parametrize("writes", [(HEAD + b"body",), (HEAD[:20], HEAD[20:], b"bo", b"dy"), (HEAD + b"bo", b"dy and more")])
async def test_an_answer_is_read_however_it_comes(writes: tuple[bytes, ...]) -> None:
    """Head and body in one piece or in many; what lies behind its length is nobody's."""
    async with a_server(*writes) as (worker, got):
        assert await ask(worker, a_pool(0), None, REQUEST, 4) == (200, b"body")

    assert got == [b"".join(REQUEST)]


@pytest.mark.parametrize(
    ("writes", "error"),
    [
        ((), FramingError),
        ((HEAD[:20],), FramingError),
        ((b"HTTP/1.1 200 OK\r\n\r\nbody",), FramingError),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nlong!",), FramingError),
        ((b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n",), FramingError),
        ((HEAD + b"bo",), asyncio.IncompleteReadError),
        ((b"x-long: " + b"y" * 2**20,), FramingError),
    ],
    ids=["nothing", "half a head", "no length", "too long", "redirect", "cut", "a head without end"],
)
async def test_what_is_no_whole_answer_is_an_error(writes: tuple[bytes, ...], error: type[Exception]) -> None:
    """Whoever asks tells these from an answer, and never waits for more of it."""
    async with a_server(*writes) as (worker, _):
        with pytest.raises(error):
            await asyncio.wait_for(ask(worker, a_pool(0), None, REQUEST, 4), 5.0)


async def test_a_worker_that_is_not_there_is_told_from_one_that_fails() -> None:
    """Health counts the two apart."""
    worker = replace(a_worker(0), port=free_ports(1)[0])

    with pytest.raises(UnreachableError):
        await ask(worker, a_pool(0), None, REQUEST, 4)
