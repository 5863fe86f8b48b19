"""A listener of the control process: what callers send badly is theirs to mend, and fills no log."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from pathlib import Path

import pytest
from aiohttp import web

from proxy.control.site import MAX_CONNECTIONS, Site
from proxy.listener import open_listener
from tests.certificates import Authority


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


async def test_silent_connections_are_bounded_before_their_handshake(tmp_path: Path) -> None:
    """Those beyond the bound are closed at once; others are served again when the silent ones have gone."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("a", "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    site, listener = Site(web.Application(), tls), open_listener("127.0.0.1:0")
    where = listener.getsockname()[:2]
    await site.start(listener)
    silent = []
    try:
        silent += [await asyncio.open_connection(*where) for _ in range(MAX_CONNECTIONS)]
        one_too_many, writer = await asyncio.open_connection(*where)
        async with asyncio.timeout(5):
            assert await one_too_many.read() == b""
        writer.close()
        for _, connected in silent:
            connected.close()
        await asyncio.sleep(0.2)
        trust = ssl.create_default_context(cafile=str(authority.file))
        reader, writer = await asyncio.open_connection(*where, ssl=trust)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 404 " in await reader.readline()
        writer.close()
    finally:
        await site.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*where)
