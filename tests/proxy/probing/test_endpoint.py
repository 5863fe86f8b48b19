"""Endpoints that answer with no end, or with what is none of the formats that they say: a probe ends, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

import aiohttp
import pytest

from proxy.probing.endpoint import Endpoint, ProbeError, Target, session_of
from proxy.probing.outcome import printable

MODELS = b'{"data":[{"id":"m"}]}'
TOKEN = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
DEEP = b"[" * 100_000


def head(status: int, media: bytes = b"application/json") -> bytes:
    """The head of an answer that ends with its connection."""
    return b"HTTP/1.1 %d X\r\nContent-Type: %b\r\nConnection: close\r\n\r\n" % (status, media)


@asynccontextmanager
async def endpoint(models: bytes, answer: bytes, *, endless: bytes = b"", host: str = "127.0.0.1") -> AsyncIterator[Endpoint]:
    """One that lists models and answers so; what is ``endless`` follows again and again behind what has a Content-Type."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            request = await reader.readuntil(b"\r\n\r\n")
            said = models if request.startswith(b"GET") else answer
            writer.write(said)
            while said is answer and endless:
                writer.write(endless)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, session_of() as session:
        yield Endpoint(Target(url=f"http://{host}:{port}"), session, monotonic)


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_without_end_is_left(status: int) -> None:
    """When it is clear that nothing else will come; it is neither kept nor waited for."""
    async with (
        asyncio.timeout(20),
        endpoint(head(200) + MODELS, head(status, b"text/event-stream"), endless=TOKEN * 3000) as asked,
    ):
        if status == 200:
            await asked.prepare()
        else:
            with pytest.raises(ProbeError, match="status 500"):
                await asked.prepare()
        answer = await asked.ask("x", 4)
    assert answer.error is not None
    assert answer.error.startswith("no end of an answer of 4 tokens" if status == 200 else "status 500")


@pytest.mark.parametrize("coding", [b"none", b"base64", b"idna"])
async def test_texts_in_no_coding(coding: bytes) -> None:
    """Are read as UTF-8, whatever they say they are."""
    media = b"application/json; charset=" + coding
    async with endpoint(head(200, media) + MODELS, head(500, media) + b'{"error":{"message":"out of \xff order"}}') as asked:
        with pytest.raises(ProbeError, match=r"out of . order"):
            await asked.prepare()
    assert asked.model == "m"


async def test_documents_too_deep_to_be_read() -> None:
    """Say nothing, as what is no JSON does."""
    async with endpoint(head(200) + DEEP, b"") as asked:
        with pytest.raises(ProbeError, match="does not list any model"):
            await asked.prepare()
    async with endpoint(head(200) + MODELS, head(500) + DEEP) as asked:
        with pytest.raises(ProbeError, match="status 500"):
            await asked.prepare()


def test_what_an_endpoint_says_commands_no_terminal() -> None:
    """Escapes are shown, line ends are blanks."""
    assert printable("a\x1b[2J\nb\x07 é") == "a?[2J b? é"


async def test_connecting_is_no_part_of_ttft(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is found late, as any new connection, costs the client and not the worker."""
    finding = aiohttp.ThreadedResolver.resolve

    async def late(*arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0.3)
        return await finding(*arguments, **named)

    monkeypatch.setattr(aiohttp.resolver.DefaultResolver, "resolve", late)
    said = head(200, b"text/event-stream") + TOKEN + b"data: [DONE]\n\n"
    async with endpoint(head(200) + MODELS, said, host="localhost") as asked:
        began_at = monotonic()
        answer = await asked.ask("x", 1)
        took_seconds = monotonic() - began_at

    assert answer.ttft_seconds is not None
    assert took_seconds > 0.3
    assert answer.ttft_seconds < 0.2
