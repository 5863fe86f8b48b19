"""What clients send and how: in pieces, pipelined, slowly, ambiguously, in an old version, and what frames their answers."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from tests.http1 import chunk, last_chunk
from tests.integration.answers import sse_head
from tests.integration.keyed_scene import ANSWER, BODY, KEY, STREAM, ids_once_quiet, running_keyed_scene
from tests.integration.raw_client import RawClient, request_bytes
from tests.integration.scene import CHAT, Scene, chat_body
from tests.integration.steps import Send, Until, Wait

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway with keys, a worker key, and short limits for what clients send."""
    async with running_keyed_scene() as one:
        yield one


async def test_pipelined_requests_are_answered_in_order(scene: Scene) -> None:
    """Three requests in one write are answered one after another, in order, each with its record."""
    scripts = [[Wait(0.1), *ANSWER], STREAM, ANSWER]
    ids = [scene.plays(script) for script in scripts]
    async with await scene.connect() as client:
        await client.send(b"".join(scene.request(one, chat_body(stream=at == 1)) for at, one in enumerate(ids)))
        answers = [await client.read_answer() for _ in ids]

    assert [answer.head.get("x-request-id") for answer in answers if answer.head] == ids
    assert [(await scene.record(one))["outcome"] for one in ids] == ["ok"] * 3
    assert scene.arrivals(ids[1])[0].arrived_at > (scene.arrivals(ids[0])[0].answered_at or 0)


async def test_a_request_in_small_pieces_is_read(scene: Scene) -> None:
    """A request that comes byte by byte in its head and in pieces in its body arrives whole."""
    request_id = scene.plays(ANSWER)
    data = scene.request(request_id, BODY)
    async with await scene.connect() as client:
        for at in range(0, len(data), 7):
            await client.send(data[at : at + 7])
            await asyncio.sleep(0.001)
        answer = await client.read_answer()

    assert (answer.status, json.loads(scene.arrivals(request_id)[0].body)) == (200, BODY)


@pytest.mark.parametrize(("stream", "keeps"), [(False, False), (False, True), (True, False), (True, True)])
async def test_an_old_client_gets_no_chunks(scene: Scene, stream: bool, keeps: bool) -> None:
    """An HTTP/1.0 client gets a length or the end of the connection, which is kept only where it asked and it can be."""
    request_id = scene.plays(STREAM if stream else ANSWER)
    extra = [("Connection", "keep-alive")] if keeps else []
    data = scene.request(request_id, chat_body(stream=stream), headers=extra).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    async with await scene.connect() as client:
        await client.send(data)
        answer = await client.read_answer()
        assert answer.head is not None
        assert answer.head.get("transfer-encoding") is None
        assert (await scene.record(request_id))["outcome"] == "ok"
        if stream:
            assert answer.body.endswith(b"data: [DONE]\n\n")
            assert answer.head.get("connection") == "close"
        elif keeps:
            again = await scene.ask(ANSWER, body=BODY, client=client)
            assert again.answer.status == 200
        else:
            assert await client.read_some() == b""


async def test_a_client_that_says_close_is_believed(scene: Scene) -> None:
    """The answer to ``Connection: close`` says so too, and the connection ends behind it."""
    async with await scene.connect() as client:
        seen = await scene.ask(ANSWER, body=BODY, client=client, headers=[("Connection", "close")])
        assert seen.answer.head is not None
        assert seen.answer.head.get("connection") == "close"
        assert await client.read_some() == b""


async def expecting(
    scene: Scene, body: bytes, headers: list[tuple[str, str]], *, length: int | None = None
) -> tuple[bytes, Any, str]:
    """Send a head that expects the go-ahead; what came first, the final answer, the request id."""
    request_id = scene.plays(ANSWER)
    fields = [
        *headers,
        ("Content-Length", str(length or len(body))),
        ("Expect", "100-continue"),
        ("Content-Type", "application/json"),
    ]
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: x", f"X-Request-Id: {request_id}", *(f"{n}: {v}" for n, v in fields)]
    async with await scene.connect() as client:
        await client.send("\r\n".join([*lines, "", ""]).encode())
        first = await client.read_until(b"\r\n\r\n")
        if first.startswith(b"HTTP/1.1 100"):
            await client.send(body)
        answer = await client.read_answer(start=first)
    return first, answer, request_id


async def test_a_client_that_waits_for_the_go_ahead(scene: Scene) -> None:
    """A good request gets 100 and then its answer; the worker is not asked to expect anything."""
    body = json.dumps(BODY).encode()
    first, answer, request_id = await expecting(scene, body, list(scene.headers))

    assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.status == 200
    [request] = scene.arrivals(request_id)
    assert (request.body, "expect" in request.headers) == (body, False)


@pytest.mark.parametrize(
    ("headers", "length", "status"),
    [
        ([("Authorization", "Bearer wrong")], None, 401),
        ([], None, 401),
        ([("Authorization", f"Bearer {KEY}")], 80_000_000, 413),
    ],
)
async def test_a_client_is_refused_instead_of_the_go_ahead(
    scene: Scene, headers: list[tuple[str, str]], length: int | None, status: int
) -> None:
    """A bad key or too large a body is refused before the body is asked for."""
    first, answer, request_id = await expecting(scene, b"{}", headers, length=length)

    assert first.startswith(b"HTTP/1.1 %d " % status)
    assert answer.status == status
    assert (await scene.record(request_id))["status"] == status


@pytest.mark.parametrize("size", [1_000_000, 30_000_000])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_large_body_arrives_unchanged(scene: Scene, size: int, framing: str) -> None:
    """Bodies of 1 MB and 30 MB reach the worker byte for byte, with a length, however they were framed."""
    text = os.urandom(size // 2).hex()
    body = b'{"model": "tiny",  "messages": [{"role": "user", "content": "%b"}], "x\\u00e9": 1e2}' % text.encode()
    request_id = scene.plays(ANSWER)
    head = [("Content-Type", "application/json")]
    async with await scene.connect() as client:
        if framing == "length":
            await client.send(scene.request(request_id, body, headers=head))
        else:
            await client.send(scene.request(request_id, None, headers=[*head, ("Transfer-Encoding", "chunked")]))
            for at in range(0, len(body), 500_000):
                await client.send(chunk(body[at : at + 500_000]))
            await client.send(last_chunk())
        answer = await client.read_answer()
    [request] = scene.arrivals(request_id)

    assert answer.status == 200
    assert request.body == body
    assert (request.headers.get("content-length"), request.headers.get("transfer-encoding")) == (str(len(body)), None)


@pytest.mark.parametrize("sent", [b"POST /v1/chat", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"])
async def test_a_slow_head_is_given_up(scene: Scene, sent: bytes) -> None:
    """A head that is not complete in time gets 408 and the end of the connection, although bytes still trickle in."""
    async with await scene.connect() as client:
        began = time.monotonic()
        await client.send(sent)
        trickle = asyncio.create_task(drip(client))
        answer = await client.read_answer()
        took = time.monotonic() - began
        trickle.cancel()

    assert (answer.status, answer.json()["error"]["code"]) == (408, "request_timeout")
    assert 0.9 < took < 2


async def drip(client: RawClient) -> None:
    with suppress(OSError):
        while True:
            await client.send(b"x")
            await asyncio.sleep(0.2)


async def test_a_slow_body_is_given_up(scene: Scene) -> None:
    """A body that is not complete in time gets 408, although bytes still trickle in; no worker is asked."""
    request_id = scene.plays(ANSWER)
    async with await scene.connect() as client:
        await client.send(scene.request(request_id, None, headers=[("Content-Length", "100000")]) + b"{")
        trickle = asyncio.create_task(drip(client))
        answer = await client.read_answer()
        trickle.cancel()
    record = await scene.record(request_id)

    assert (answer.status, record["outcome"], record["reason"]) == (408, "client_error", "request_timeout")
    assert scene.arrivals(request_id) == []


async def test_small_writes_do_not_wait_for_each_other(scene: Scene) -> None:
    """Neither side holds small packets back: thirty round trips of a token each never take the 40 ms of a delayed ACK."""
    gates = [asyncio.Event() for _ in range(30)]
    token = chunk(b'data: {"choices":[{"index":0,"delta":{"content":"t"}}]}\n\n')
    steps = [step for gate in gates for step in (Until(gate), Send(token[:20]), Send(token[20:]))]
    request_id = scene.plays([Send(sse_head()), *steps, Send(last_chunk())])
    delays = []
    async with await scene.connect() as client:
        data = scene.request(request_id, chat_body())
        await client.send(data[:-50])
        await client.send(data[-50:])
        for gate in gates:
            began = time.monotonic()
            gate.set()
            await client.read_until(b"\n\n")
            delays.append(time.monotonic() - began)

    assert sorted(delays)[-2] < 0.03, delays


SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
AMBIGUOUS = {
    "both lengths": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}",
    "two equal lengths": b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a list of lengths": b"Content-Length: 2, 2\r\n\r\n{}",
    "a signed length": b"Content-Length: +2\r\n\r\n{}",
    "a hexadecimal length": b"Content-Length: 0x2\r\n\r\n{}",
    "a blank before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "another coding": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": b"X-A: 1\r\n folded\r\nContent-Length: 2\r\n\r\n{}",
    "bare line feeds": b"X-A: 1\nContent-Length: 2\r\n\r\n{}",
    "a bare carriage return": b"X-A: 1\rX-B: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a null byte": b"X-A: 1\0\r\nContent-Length: 2\r\n\r\n{}",
    "no name": b": x\r\nContent-Length: 2\r\n\r\n{}",
    "two hosts": b"Host: y\r\nContent-Length: 2\r\n\r\n{}",
    "a bad chunk size": b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than its size": b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    "a line feed in a chunk extension": b"Transfer-Encoding: chunked\r\n\r\n2;\nx\r\n{}\r\n0\r\n\r\n",
    "a chunk size without carriage return": b"Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_a_request_that_two_could_read_differently_is_refused(scene: Scene, name: str) -> None:
    """Framing that is not plain gets 400 or 501 and the end of the connection; what lies behind is not read."""
    before = len(scene.worker.requests)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n" % KEY.encode()
    async with await scene.connect() as client:
        await client.send(head + AMBIGUOUS[name] + SMUGGLED)
        answer = await client.read_answer()
        with suppress(ConnectionResetError):
            assert await client.read_some() == b""

    assert answer.status in (400, 501)
    assert len(scene.worker.requests) == before


@pytest.mark.parametrize("path", ["/v1/models", CHAT, "/nowhere", "/livez"])
async def test_an_answer_to_head_has_no_body(scene: Scene, path: str) -> None:
    """HEAD gets a head alone, so that the next answer on the connection begins where a client looks for it."""
    async with await scene.connect() as client:
        await client.send(scene.request(scene.plays([]), None, path=path, method="HEAD"))
        head = await client.read_until(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        if b"connection: close" in head.lower():
            assert head.endswith(b"\r\n\r\n")
            assert await client.read_some() == b""
        else:
            await client.send(request_bytes("GET", "/livez"))
            following = await client.read_until(b"ok\n")
            assert (head + following).partition(b"\r\n\r\n")[2].startswith(b"HTTP/1.1 200")


async def test_nothing_is_left_in_flight(scene: Scene) -> None:
    """After all of the above every count is back at zero and each record stands for one request."""
    ids = await ids_once_quiet(scene)

    assert len(ids) == len(set(ids))
