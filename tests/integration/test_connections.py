"""Connections to workers: kept, stale, closed, and how an answer on them is framed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.answers import plain
from tests.integration.gateway import running_gateway
from tests.integration.keyed_scene import ANSWER, BODY, STREAM, ids_once_quiet, running_keyed_scene
from tests.integration.raw_client import End, RawClient
from tests.integration.scene import CHAT, Scene, chat_body
from tests.integration.steps import Close, Reset, Send, Step, Wait

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway with keys, a worker key, and short limits for what clients send."""
    async with running_keyed_scene() as one:
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
    ids = await ids_once_quiet(scene)

    assert len(ids) == len(set(ids))
