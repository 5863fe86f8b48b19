"""The harness itself: the scripted worker and the raw client, played against each other."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.http1 import chunk, last_chunk
from tests.integration.answers import DONE, chat_answer, chat_events, event, plain, sse_head, stream_of, usage_of
from tests.integration.gateway import GatewayError, Metrics, running_gateway
from tests.integration.raw_client import End, RawClient, request_bytes
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import ByteByByte, Close, Hang, Reset, Script, Send, Until, Wait


async def test_a_stream_arrives_event_by_event(worker: ScriptedWorker) -> None:
    """Events come when the script sends them, and the client sees the instant of each."""
    worker.enqueue(stream_of(chat_events(["one", "two"], usage=usage_of(5, 2, 0)), gap_seconds=0.05))

    async with await RawClient.connect(worker.url) as client:
        sent_at = await client.send(request_bytes("POST", "/v1/chat/completions", {"stream": True}))
        answer = await client.read_answer()

    assert (answer.status, answer.end) == (200, End.COMPLETE)
    assert answer.body.count(b"data: ") == 6
    assert answer.body.endswith(DONE)
    assert answer.at(b'"one"') - sent_at == pytest.approx(0.1, abs=0.04)
    assert answer.at(b'"two"') - answer.at(b'"one"') == pytest.approx(0.05, abs=0.04)
    assert worker.requests[0].body == b'{"stream": true}'
    assert worker.requests[0].headers["content-type"] == "application/json"
    assert worker.requests[0].arrived_at == pytest.approx(sent_at, abs=0.05)


async def test_a_connection_is_kept(worker: ScriptedWorker) -> None:
    """Two requests, even when sent at once, are answered in order on one connection; a request that says close ends it."""
    worker.enqueue([Send(plain(200, {"n": 1}))], [Send(plain(200, {"n": 2}))], [Send(chat_answer("x", usage=usage_of(1, 1)))])

    async with await RawClient.connect(worker.url) as client:
        await client.send(request_bytes("POST", "/a", {}) + request_bytes("POST", "/b", {}))
        first = await client.read_answer()
        second = await client.read_answer()
        third = await client.request("GET", "/c", headers=[("Connection", "close")])
        at_end = await client.read_some()

    assert (first.json(), second.json(), third.json()["usage"]["total_tokens"]) == ({"n": 1}, {"n": 2}, 2)
    assert at_end == b""
    assert [(request.path, request.connection) for request in worker.requests] == [("/a", 0), ("/b", 0), ("/c", 0)]


@pytest.mark.parametrize(("last", "end"), [(Close(), End.CUT), (Reset(), End.RESET)])
async def test_a_worker_that_dies_is_seen(worker: ScriptedWorker, last: Close | Reset, end: End) -> None:
    """A close and a reset in mid-stream look different to the client, and what came before is there."""
    may_die = asyncio.Event()
    worker.enqueue([Send(sse_head()), Send(chunk(event({"a": 1}))), Until(may_die), last])

    async with await RawClient.connect(worker.url) as client:
        await client.send(request_bytes("POST", "/", {}))
        start = await client.read_until(b"\n\n")
        may_die.set()
        answer = await client.read_answer(start=start)

    assert (answer.body, answer.end) == (b'data: {"a":1}\n\n', end)
    assert worker.requests[0].closed_at is None


async def test_bytes_one_by_one(worker: ScriptedWorker) -> None:
    """A body sent one byte at a time arrives whole, in many reads."""
    worker.enqueue([Send(sse_head()), ByteByByte(chunk(b"hello") + last_chunk(), 0.001)])

    async with await RawClient.connect(worker.url) as client:
        answer = await client.request("POST", "/", {})

    assert answer.body == b"hello"
    assert len(answer.reads) > 3


@pytest.mark.parametrize("way", ["close", "half_close", "reset"])
async def test_a_client_that_leaves_is_noticed(worker: ScriptedWorker, way: str) -> None:
    """Closing, half-closing and resetting while the worker hangs end the script, and the instant is noted."""
    worker.enqueue([Hang()])

    async with await RawClient.connect(worker.url) as client:
        await client.send(request_bytes("POST", "/", {}))
        request = (await worker.received())[0]
        left_at = time.monotonic()
        getattr(client, way)()
        closed_at = await request.closed()

    assert closed_at - left_at < 0.2
    assert request.was_reset is (way == "reset")
    assert request.answered_at is None


async def test_a_client_that_leaves_after_the_answer_is_noticed(worker: ScriptedWorker) -> None:
    """The end of a kept connection is noted for the requests that it carried."""
    worker.enqueue([Send(plain())])

    async with await RawClient.connect(worker.url) as client:
        await client.request("POST", "/", {})
        assert worker.requests[0].closed_at is None

    await worker.requests[0].closed()
    assert worker.requests[0].answered_at is not None


async def test_a_client_that_stops_reading_holds_the_worker_up(worker: ScriptedWorker) -> None:
    """A client that does not read makes the worker's writes wait, until it reads again."""
    worker.enqueue([Send(sse_head()), *[Send(chunk(b"x" * 65536))] * 256, Send(last_chunk())])

    async with await RawClient.connect(worker.url, receive_buffer_bytes=4096) as client:
        await client.send(request_bytes("POST", "/", {}))
        await worker.received()
        await asyncio.sleep(0.2)
        assert worker.requests[0].answered_at is None
        answer = await client.read_answer(timeout_seconds=20)

    assert len(answer.body) == 256 * 65536


async def test_probes_are_set_apart(worker: ScriptedWorker) -> None:
    """Health and metrics are answered without a script and do not count as requests."""
    async with await RawClient.connect(worker.url) as client:
        healthy = await client.request("GET", "/health")
        worker.health_status = 503
        unhealthy = await client.request("GET", "/health")
        page = await client.request("GET", "/metrics")
        worker.metrics_page = None
        missing = await client.request("GET", "/metrics")

    assert (healthy.status, unhealthy.status, missing.status) == (200, 503, 404)
    assert Metrics(page.body.decode()).value("vllm:num_requests_running", engine="0") == 2
    assert (len(worker.requests), len(worker.probes)) == (0, 4)


async def test_a_chunked_request_is_read(worker: ScriptedWorker) -> None:
    """A request body without a length is read by its chunks, after the go-ahead that the client asked for."""
    worker.script = [Send(plain())]
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"

    async with await RawClient.connect(worker.url) as client:
        await client.send(head)
        interim = await client.read_until(b"\r\n\r\n")
        await client.send(chunk(b"ab") + chunk(b"c") + last_chunk())
        answer = await client.read_answer(start=interim)

    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (answer.status, worker.requests[0].body) == (200, b"abc")


async def test_a_script_may_depend_on_the_request(worker: ScriptedWorker) -> None:
    """A function chooses the script by what was asked."""

    def script(request: Received) -> Script:
        return [Wait(0.01), Send(plain(200 if request.path == "/good" else 429))]

    worker.script = script

    async with await RawClient.connect(worker.url) as client:
        statuses = [(await client.request("POST", path, {})).status for path in ("/good", "/bad")]

    assert statuses == [200, 429]


async def test_a_worker_can_go_and_come_back() -> None:
    """A stopped worker refuses connections and resets the open ones; started again, it listens on the same port."""
    async with ScriptedWorker([Send(plain())]) as worker:
        async with await RawClient.connect(worker.url) as client:
            await client.request("POST", "/", {})
            await worker.stop()
            with pytest.raises(ConnectionResetError):
                await client.read_some()
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(worker.url)
        await worker.start()
        async with await RawClient.connect(worker.url) as client:
            assert (await client.request("POST", "/", {})).status == 200


async def test_a_request_without_a_script_is_a_fault() -> None:
    """A worker that was asked for more than the test foresaw says so when it stops."""
    worker = ScriptedWorker()
    await worker.start()
    async with await RawClient.connect(worker.url) as client:
        answer = await client.request("POST", "/surprise", {})

    assert answer.end is End.CUT
    with pytest.raises(ExceptionGroup, match="scripted worker failed") as raised:
        await worker.stop()
    assert "/surprise" in str(raised.value.exceptions[0])


def test_metrics_are_told_apart() -> None:
    """A value is found by some of its labels, and a name or labels that fit none or several raise."""
    metrics = Metrics('a_total{x="1",y="1"} 2\na_total{x="1",y="2"} 3\nb 4\n')

    assert (metrics.value("a_total", y="2"), metrics.total("a_total", x="1"), metrics.value("b")) == (3, 5, 4)
    for labels in ({"x": "1"}, {"x": "9"}):
        with pytest.raises(LookupError, match="samples for a_total"):
            metrics.value("a_total", **labels)
    with pytest.raises(KeyError):
        metrics.total("c")


async def test_a_gateway_that_cannot_start_is_reported() -> None:
    """A configuration that is refused ends the start at once, with what the command had to say."""
    with pytest.raises(GatewayError, match="while starting"):
        async with running_gateway({"modles": []}):
            pytest.fail("it started")
