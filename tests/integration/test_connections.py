"""Connections on both sides: kept, stale, pipelined, slow, and what may and may not pass between them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from tests.http1 import chunk, last_chunk
from tests.integration.answers import chat_answer, chat_events, plain, sse_head, stream_of, usage_of
from tests.integration.gateway import running_gateway
from tests.integration.raw_client import End, RawClient, request_bytes
from tests.integration.scene import CHAT, Scene, chat_body, running_scene
from tests.integration.scripted_worker import Received
from tests.integration.steps import Close, Reset, Send, Step, Wait

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

KEY, WORKER_KEY = "sk-client", "worker-s3cret"
ANSWER = [Send(chat_answer("x", usage=usage_of(5, 3)))]
STREAM = stream_of(chat_events(["a", "b"], usage=usage_of(5, 2)))
BODY = chat_body(stream=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway with keys, a worker key, and short limits for what clients send. Proxies in its environment lead nowhere."""
    dead_end = "http://127.0.0.1:9"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    config = {
        "limits": {"request_head_seconds": 1, "request_body_seconds": 1.5, "client_idle_seconds": 30},
        "keys": [{"name": "app", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
        "worker_key": WORKER_KEY,
    }
    headers = [("Authorization", f"Bearer {KEY}")]
    async with running_scene(config=config, headers=headers, environ=dict.fromkeys(names, dead_end)) as one:
        yield one


async def test_connections_are_kept_on_both_sides(scene: Scene) -> None:
    """Requests after one another on a client's connection go to the worker on one connection too, streams and plain alike."""
    async with await scene.connect() as client:
        seen = [
            await scene.ask(script, body=chat_body(stream=script is STREAM), client=client) for script in [ANSWER, STREAM] * 3
        ]
    numbers = {scene.arrivals(one.record["request_id"])[0].connection for one in seen}

    assert {one.record["outcome"] for one in seen} == {"ok"}
    assert len(numbers) == 1
    assert [one.record["connect_seconds"] for one in seen[1:]] == [0] * 5
    assert all(one.answer.head is not None and one.answer.head.keeps_alive for one in seen)


@pytest.mark.parametrize("last", [Close(), Reset()])
async def test_a_stale_connection_is_tried_again_once(scene: Scene, last: Step) -> None:
    """A kept connection that ends when it is written to is stale: the request goes out once more, on a fresh one."""
    await scene.ask(ANSWER, body=BODY)
    before = await scene.quiet()
    seen = await scene.ask([last], ANSWER, body=BODY)
    after = await scene.quiet()
    arrivals = scene.arrivals(seen.record["request_id"])

    assert (seen.answer.status, seen.record["outcome"], len(arrivals)) == (200, "ok", 2)
    assert arrivals[0].connection != arrivals[1].connection
    assert arrivals[0].body == arrivals[1].body
    for result, count in (("stale", 1), ("answered", 1), ("broken", 0)):
        name = "ridgeline_attempts_total"
        assert after.total(name, result=result) - before.total(name, result=result) == count


async def test_a_stale_connection_is_not_tried_again_twice(scene: Scene) -> None:
    """When the fresh connection ends without an answer as well, the worker has failed: 502 after two attempts."""
    await scene.ask(ANSWER, body=BODY)
    seen = await scene.ask([Close()], body=BODY)

    assert (seen.answer.status, seen.record["outcome"]) == (502, "worker_error")
    assert len(scene.arrivals(seen.record["request_id"])) == 2


async def test_a_worker_that_thinks_before_it_closes_is_not_asked_again(scene: Scene) -> None:
    """A kept connection that ends long after the write may have begun the work: the worker has failed, it was not stale."""
    await scene.ask(ANSWER, body=BODY)
    seen = await scene.ask([Wait(0.5), Close()], body=BODY)

    assert (seen.answer.status, len(scene.arrivals(seen.record["request_id"]))) == (502, 1)


async def test_a_broken_answer_is_not_asked_for_again(scene: Scene) -> None:
    """A kept connection that ends after a part of a head is no stale one."""
    await scene.ask(ANSWER, body=BODY)
    seen = await scene.ask([Send(b"HTTP/1.1 200"), Wait(0.02), Close()], body=BODY)

    assert (seen.answer.status, len(scene.arrivals(seen.record["request_id"]))) == (502, 1)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_bytes_behind_an_answer_are_nobodys(scene: Scene, stream: bool, late: bool) -> None:
    """What a worker sends behind the end reaches no client, and its connection is not used again."""
    extra = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstolen"
    script = [*(STREAM if stream else ANSWER)]
    script = [*script, Wait(0.05), Send(extra)] if late else [*script[:-1], Send(script[-1].data + extra)]  # type: ignore[union-attr]
    async with await scene.connect() as client:
        first = await scene.ask(script, body=chat_body(stream=stream), client=client)
        await asyncio.sleep(0.1)
        second = await scene.ask(ANSWER, body=BODY, client=client)
    numbers = [scene.arrivals(one.record["request_id"])[0].connection for one in (first, second)]

    assert (first.record["outcome"], second.record["outcome"]) == ("ok", "ok")
    assert b"stolen" not in first.answer.raw + second.answer.raw
    assert numbers[0] != numbers[1]


async def test_a_worker_that_says_close_is_believed(scene: Scene) -> None:
    """After an answer with ``connection: close`` the next request has a new connection; the client's own lives on."""
    closing = [Send(plain(200, {"choices": []}, [("connection", "close")])), Close()]
    async with await scene.connect() as client:
        first = await scene.ask(closing, body=BODY, client=client)
        second = await scene.ask(ANSWER, body=BODY, client=client)
    numbers = [scene.arrivals(one.record["request_id"])[0].connection for one in (first, second)]

    assert numbers[0] != numbers[1]
    assert first.answer.head is not None
    assert first.answer.head.keeps_alive


async def test_an_answer_without_a_length_is_framed_for_the_client(scene: Scene) -> None:
    """A worker's answer that ends with its connection becomes chunks, and the client's connection lives on."""
    body = b'{"choices": [{"index": 0, "finish_reason": "stop"}], "usage": null}'
    script = [
        Send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + body[:9]),
        Wait(0.05),
        Send(body[9:]),
        Close(),
    ]
    async with await scene.connect() as client:
        first = await scene.ask(script, body=BODY, client=client)
        second = await scene.ask(ANSWER, body=BODY, client=client)

    assert (first.answer.body, first.answer.end, first.record["outcome"]) == (body, End.COMPLETE, "ok")
    assert second.answer.status == 200


async def test_interim_answers_are_passed_over(scene: Scene) -> None:
    """A worker's 100 and 103 are not its answer, glued to it or not."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    glued = await scene.ask([Send(interim + ANSWER[0].data)], body=BODY)
    apart = await scene.ask([Send(interim), Wait(0.05), *STREAM])

    for seen in (glued, apart):
        assert (seen.answer.status, seen.record["outcome"], seen.record["worker_status"]) == (200, "ok", 200)
        assert b" 103 " not in seen.answer.raw


async def test_an_answer_without_a_body(scene: Scene) -> None:
    """A 204 ends with its head, and both connections live on."""
    async with await scene.connect() as client:
        first = await scene.ask([Send(b"HTTP/1.1 204 No Content\r\n\r\n")], body=BODY, client=client, timeout_seconds=3)
        second = await scene.ask(ANSWER, body=BODY, client=client)

    assert (first.answer.status, first.answer.body, second.answer.status) == (204, b"", 200)
    assert first.answer.head is not None
    assert first.answer.head.get("transfer-encoding") is None


async def test_an_old_worker_is_understood(scene: Scene) -> None:
    """A worker that speaks HTTP/1.0 ends its answers with the connection; the client gets HTTP/1.1 and a stream as ever."""
    events = b"".join(step.data.partition(b"\r\n")[2][:-2] for step in STREAM[1:-1] if isinstance(step, Send))
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    seen = await scene.ask([Send(head), Send(events), Close()])

    assert (seen.answer.body, seen.answer.end, seen.record["outcome"]) == (events, End.COMPLETE, "ok")
    assert seen.record["completion_tokens"] == 2
    assert seen.answer.raw.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_an_idle_worker_connection_is_dropped_before_the_worker_would(scene: Scene) -> None:
    """An unused connection is closed after four seconds, before the five after which workers close theirs."""
    seen = await scene.ask(ANSWER, body=BODY)
    request = scene.arrivals(seen.record["request_id"])[0]
    assert request.answered_at is not None
    closed_at = await request.closed(timeout_seconds=6)

    assert 3.5 < closed_at - request.answered_at < 4.9


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
    from tests.integration.steps import Until

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


async def sent_to_worker(scene: Scene, headers: list[tuple[str, str]]) -> Received:
    seen = await scene.ask(ANSWER, body=BODY, headers=headers)
    assert seen.answer.status == 200
    return scene.arrivals(seen.record["request_id"])[0]


async def test_headers_that_go_to_the_worker(scene: Scene) -> None:
    """End-to-end headers pass, equal names kept; those of the connection, credentials and cookies do not."""
    request = await sent_to_worker(
        scene,
        [
            ("X-Kept", "one"),
            ("X-Kept", "two"),
            ("X-Secret", "for the gateway"),
            ("Connection", "keep-alive, x-secret"),
            ("Keep-Alive", "timeout=5"),
            ("TE", "trailers"),
            ("Trailer", "X-Later"),
            ("Proxy-Authorization", "Basic abc"),
            ("Proxy-Connection", "keep-alive"),
            ("Upgrade", "h2c"),
            ("Cookie", "session=1"),
            ("Api-Key", "sk-azure"),
            ("X-Api-Key", "sk-anthropic"),
            ("Accept-Encoding", "gzip, br"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("User-Agent", "test/1"),
        ],
    )
    names = [name for name, _ in request.head.headers]

    assert [value for name, value in request.head.headers if name == "x-kept"] == ["one", "two"]
    assert request.headers["authorization"] == f"Bearer {WORKER_KEY}"
    assert request.headers["host"] == scene.worker.url[7:]
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["user-agent"] == "test/1"
    assert request.headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert request.headers["content-type"] == "application/json"
    for name in (
        *("x-secret", "keep-alive", "te", "trailer", "proxy-authorization", "proxy-connection", "upgrade"),
        *("cookie", "api-key", "x-api-key"),
    ):
        assert name not in names, name
    for name in ("authorization", "host", "content-length", "x-request-id", "accept-encoding"):
        assert names.count(name) == 1, name
    assert KEY.encode() not in request.head.raw


async def test_headers_that_come_from_the_worker(scene: Scene) -> None:
    """The same on the way back; what the gateway says itself is not doubled."""
    headers = [
        ("x-kept", "one"),
        ("x-kept", "two"),
        ("x-secret", "for the gateway"),
        ("connection", "keep-alive, x-secret"),
        ("keep-alive", "timeout=5"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("proxy-authenticate", "Basic"),
        ("trailer", "x-later"),
        ("upgrade", "h2c"),
        ("x-request-id", "the-workers"),
        ("x-ridgeline-worker", "forged"),
        ("server-timing", "x;dur=1"),
        ("retry-after", "3"),
    ]
    seen = await scene.ask([Send(plain(200, {"choices": []}, headers))], body=BODY)
    assert seen.answer.head is not None
    got = list(seen.answer.head.headers)
    names = [name for name, _ in got]

    assert [value for name, value in got if name == "x-kept"] == ["one", "two"]
    for name in ("x-secret", "keep-alive", "set-cookie", "proxy-authenticate", "trailer", "upgrade"):
        assert name not in names, name
    assert [value for name, value in got if name == "x-request-id"] == [seen.record["request_id"]]
    assert [value for name, value in got if name == "x-ridgeline-worker"] == [seen.record["worker"]]
    assert names.count("server-timing") == 1
    assert names.count("content-length") + names.count("transfer-encoding") == 1
    assert seen.answer.head.get("retry-after") == "3"
    assert WORKER_KEY.encode() not in seen.answer.raw


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        (["abc-DEF_1.2:3"], True),
        (["x" * 128], True),
        (["x" * 129], False),
        (["has blank"], False),
        (["a\tb"], False),
        (["caf\xe9"], False),
        (["x" * 7000], False),
        (["../../etc"], False),
        (['"quoted"'], False),
        ([""], False),
        (["one", "two"], False),
    ],
)
async def test_a_request_id_is_kept_only_if_it_is_safe(scene: Scene, given: list[str], is_kept: bool) -> None:
    """A short plain id goes through to the worker, the answer and the record; any other is replaced by a new one."""
    before = len(scene.worker.requests)
    fields = [*(("X-Request-Id", text) for text in given), *scene.headers]
    async with await scene.connect() as client:
        answer = await client.request("POST", CHAT, BODY, fields)
    assert answer.head is not None
    used = answer.head.get("x-request-id")
    assert used is not None
    [request] = scene.worker.requests[before:]

    assert answer.status == 200
    assert (used in given) is is_kept
    assert [value for name, value in request.head.headers if name == "x-request-id"] == [used]
    assert (await scene.record(used))["status"] == 200
    assert used.isascii()
    assert used.replace("-", "").replace("_", "").replace(".", "").replace(":", "").isalnum()


async def test_new_request_ids_differ(scene: Scene) -> None:
    """Each request without an id gets one of its own."""
    ids = set()
    async with await scene.connect() as client:
        for _ in range(5):
            answer = await client.request("POST", CHAT, BODY, scene.headers)
            assert answer.head is not None
            ids.add(answer.head.get("x-request-id"))

    assert len(ids) == 5


@pytest.mark.parametrize("host", ["http://elsewhere.test", "https://elsewhere.test:444", "http://127.0.0.1:1"])
async def test_the_host_of_a_target_decides_nothing(scene: Scene, host: str) -> None:
    """A target in absolute form is answered like its path; nothing goes to the host that it names."""
    seen = await scene.ask(ANSWER, body=BODY, path=host + CHAT)

    assert seen.answer.status == 200
    [request] = scene.arrivals(seen.record["request_id"])
    assert (request.path, request.headers["host"]) == (CHAT, scene.worker.url[7:])


TRICKS = [
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/v1/chat/completions/",
    "/v1/chat/../chat/completions",
    "/v1/./chat/completions",
    "/x/../v1/chat/completions",
    "/%761/chat/completions",
    "/v1%2Fchat/completions",
    "/v1/chat%2fcompletions",
    "/v1/%2e%2e/v1/chat/completions",
    "/v1/chat/completions%00",
    "/v1/chat/completions%20",
    "/v1/chat/completions;x=1",
    "/V1/chat/completions",
    "/v1/chat/Completions",
    "/v1/chat/completions.",
    "/v1/chat/completions/../../../metrics",
    "/metrics",
    "/sleep",
    "/v1/load_lora_adapter",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/",
    "/v1",
    "/..",
    "http://x//v1/chat/completions",
    "http://x",
]


@pytest.mark.parametrize("path", TRICKS)
async def test_only_the_plain_paths_exist(scene: Scene, path: str) -> None:
    """Any other spelling of a path, and any path that only workers know, is 404 or 401 and reaches no worker."""
    for method in ("POST", "GET"):
        seen = await scene.ask(ANSWER, body=BODY, path=path, method=method)
        assert (seen.answer.status, seen.answer.json()["error"]["code"]) == (404, "not_found")
        assert seen.record["endpoint"] == "other"
        assert scene.arrivals(seen.record["request_id"]) == []
    async with await scene.connect() as client:
        answer = await client.request("POST", path, BODY)
    assert answer.status in (401, 404)


@pytest.mark.parametrize(
    "name", ["", "nobody", "..", "%2e%2e", "%2e%2e%2fchat%2fcompletions", "tiny/", "tiny%00", "%ff", "%zz"]
)
async def test_a_model_that_is_not_there(scene: Scene, name: str) -> None:
    """The name behind the models' path is only looked up: any that is not configured is 404 and reaches no worker."""
    seen = await scene.ask(ANSWER, path=f"/v1/models/{name}", method="GET")

    assert seen.answer.status == 404
    assert seen.answer.json()["error"]["code"] in {"model_not_found", "not_found"}
    assert scene.arrivals(seen.record["request_id"]) == []


async def test_a_query_is_not_part_of_the_path(scene: Scene) -> None:
    """A query does not hide a path, and does not travel to the worker."""
    seen = await scene.ask(ANSWER, body=BODY, path=CHAT + "?api-version=1&x=/../")

    assert seen.answer.status == 200
    assert scene.arrivals(seen.record["request_id"])[0].path == CHAT


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


async def test_models_and_probes(scene: Scene) -> None:
    """The models are listed and shown to those with a key; the probes of the process need none and have no record."""
    async with await scene.connect() as client:
        listed = await client.request("GET", "/v1/models", headers=scene.headers)
        shown = await client.request("GET", "/v1/models/tiny", headers=scene.headers)
        hidden = await client.request("GET", "/v1/models")
        probes = [await client.request("GET", path) for path in ("/livez", "/readyz", "/health")]

    assert [model["id"] for model in listed.json()["data"]] == ["tiny"]
    assert shown.json() == listed.json()["data"][0]
    assert hidden.status == 401
    assert [probe.status for probe in probes] == [200] * 3


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


async def test_an_answer_that_comes_before_the_request_is_sent() -> None:
    """A worker that refuses a large body without reading it is heard, and its connection, still full, is not used again."""
    heads: list[bytes] = []
    stop = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET "):  # a probe
            writer.write(plain(200))
        else:
            heads.append(head)
            writer.write(plain(413, {"error": {"message": "too much"}}))
            await stop.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=65536)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    body = b'{"model": "tiny", "messages": [{"content": "%b"}]}' % (b"x" * 30_000_000)
    try:
        async with running_gateway({"limits": {"drain_seconds": 1}}, workers=[url]) as gateway:
            async with await RawClient.connect(gateway.base_url) as client:
                large = await client.request("POST", CHAT, body)
                small = await client.request("POST", CHAT, BODY, timeout_seconds=3)
            records = await gateway.records(2)
    finally:
        stop.set()
        server.close()
        await server.wait_closed()

    assert (large.status, small.status, len(heads)) == (413, 413, 2)
    assert [record["outcome"] for record in records] == ["client_error"] * 2


async def test_nothing_is_left_in_flight(scene: Scene) -> None:
    """After all of the above every count is back at zero and each record stands for one request."""
    await scene.quiet()
    ids = [record["request_id"] for record in await scene.gateway.records(0)]

    assert len(ids) == len(set(ids))
