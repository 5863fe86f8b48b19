"""A listener of the control process: what callers send badly is theirs to mend, and fills no log."""

from __future__ import annotations

import asyncio
import gzip

from aiohttp import web

from proxy.listener import open_listener
from proxy.observer import Site


async def answer_to(port: int, request: bytes) -> int:
    """The status of the answer to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


def post(body: bytes, *more: bytes) -> bytes:
    """A request with this body and these header lines."""
    return b"\r\n".join((b"POST / HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *more, b"", body))


async def test_what_is_no_request_is_refused_and_not_logged(caplog) -> None:
    """Anybody can send it, without a token; a fault of ours is logged with where it happened."""
    got = []

    async def take(request: web.Request) -> web.Response:
        got.append(await request.read())
        return web.Response(text=str(1 // (b"fault" not in got[-1])))

    app = web.Application()
    app.router.add_post("/", take)
    site, listener = Site(app), open_listener("127.0.0.1:0")
    port = listener.getsockname()[1]
    await site.start(listener)
    try:
        bad = (
            b"\x16\x03\x01\x00\r\n\r\n",
            b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        )
        assert [await answer_to(port, request) for request in bad] == [400] * len(bad)
        squeezed = gzip.compress(bytes(1_000_000))
        for body in (squeezed, b"none"):
            assert await answer_to(port, post(body, b"Content-Encoding: gzip")) == 200
        assert got[-2:] == [squeezed, b"none"]  # nothing is made larger than it came
        assert not caplog.records

        assert await answer_to(port, post(b"fault")) == 500
        assert "ZeroDivisionError" in caplog.text
    finally:
        await site.stop()
