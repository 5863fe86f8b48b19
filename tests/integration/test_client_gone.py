"""Clients that leave, in every phase and in every way: the worker stops at once, and the books are closed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.http1 import chunk
from tests.integration.answers import chat_answer, chat_events, event, plain, sse_head, stream_of, usage_of
from tests.integration.raw_client import RawClient
from tests.integration.scene import Scene, chat_body, running_scene, unreachable
from tests.integration.steps import Hang, Send, Step, Wait

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

WAYS = ["close", "reset", "half_close"]
ROLE, TOKEN = (chunk(event(item)) for item in chat_events(["a"])[:2])
STREAMING: list[Step] = [Send(sse_head()), Send(ROLE), *[step for _ in range(500) for step in (Send(TOKEN), Wait(0.02))]]
PLAIN_HALF = plain(200, b"x" * 5000)[:2000]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway whose second model has a worker that can be made unreachable."""
    async with running_scene({"tiny": {}, "far": {}}) as one:
        yield one


def gone(scene_metrics: Any, model: str, phase: str) -> float:
    return float(scene_metrics.total("ridgeline_client_gone_total", model=model, phase=phase))


async def leave(client: RawClient, way: str) -> float:
    """Leave at once and return when."""
    now = time.monotonic()
    getattr(client, way)()
    return now


async def check_gone(scene: Scene, request_id: str, phase: str, before: float, model: str = "tiny") -> dict[str, Any]:
    """One record with this phase, one count, nothing in flight."""
    record = await scene.record(request_id, timeout_seconds=2)
    metrics = await scene.quiet(timeout_seconds=2)

    assert (record["outcome"], record["phase"]) == ("client_gone", phase)
    assert gone(metrics, model, phase) == before + 1
    return record


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "script", "needle", "phase", "stream"),
    [
        ("before the head", [Hang()], b"", "wait", True),
        ("before a plain answer", [Hang()], b"", "wait", False),
        ("after the head, before the body", [Send(sse_head()), Hang()], b"", "wait", True),
        ("at the role", [Send(sse_head()), Send(ROLE), Hang()], b"\n\n\r\n", "answer", True),
        ("in the stream", STREAMING, b'"a"', "answer", True),
        ("in silence after a token", [Send(sse_head()), Send(ROLE), Send(TOKEN), Hang()], b'"a"', "answer", True),
        ("in a plain answer", [Send(PLAIN_HALF), Hang()], b"xxx", "answer", False),
    ],
)
async def test_the_worker_is_left_at_once(
    scene: Scene, name: str, script: list[Step], needle: bytes, phase: str, stream: bool, way: str
) -> None:
    """Within a second the worker's connection is closed, whether it was answering or not; one record says when it was."""
    before = gone(await scene.quiet(), "tiny", phase)
    request_id = scene.plays(script)

    async with await scene.connect() as client:
        await client.send(scene.request(request_id, chat_body(stream=stream)))
        request = await scene.arrival(request_id)
        if needle:
            await client.read_until(needle)
        else:
            await asyncio.sleep(0.1)  # for a head that may have been sent
        left_at = await leave(client, way)
        closed_at = await request.closed(timeout_seconds=1.5)

    assert closed_at - left_at < 1
    record = await check_gone(scene, request_id, phase, before)
    assert len(scene.arrivals(request_id)) == 1
    assert record["completion_is_estimate"] is (name in {"in the stream", "in silence after a token"})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_client_leaves_in_the_upload(scene: Scene, framing: str, way: str) -> None:
    """A request whose body never comes to its end reaches no worker and has its record."""
    before = gone(await scene.quiet(), "unknown", "upload")
    request_id = scene.plays([Hang()])
    field = ("Content-Length", "5000") if framing == "length" else ("Transfer-Encoding", "chunked")

    async with await scene.connect() as client:
        await client.send(
            scene.request(request_id, None, headers=[field]) + (b"2\r\n{ \r\n" if framing == "chunked" else b"{ ")
        )
        await asyncio.sleep(0.05)
        await leave(client, way)
        await check_gone(scene, request_id, "upload", before, model="unknown")

    assert scene.arrivals(request_id) == []


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_leaves_while_its_worker_is_being_connected(scene: Scene, way: str) -> None:
    """A connection that is being made for a client that left is given up, and the request is not sent anywhere."""
    worker = scene.workers["far"][0]
    await scene.gateway.metrics_when(
        lambda metrics: metrics.value("ridgeline_worker_up", worker=worker.url[7:]) == 1, timeout_seconds=15
    )
    before = gone(await scene.quiet(), "far", "connect")
    request_id = scene.plays([Send(plain(200, {}))])
    await worker.stop()
    try:
        with unreachable(worker.port):
            async with await scene.connect() as client:
                await client.send(scene.request(request_id, chat_body("far")))
                await scene.gateway.metrics_when(
                    lambda metrics: metrics.total("ridgeline_in_flight_requests", model="far") == 1
                )
                await leave(client, way)
                record = await check_gone(scene, request_id, "connect", before, model="far")
    finally:
        await worker.start()

    assert (record["attempts"], record["status"]) == (1, None)
    await asyncio.sleep(0.2)
    assert scene.arrivals(request_id) == []


@pytest.mark.parametrize("ahead_bytes", [100, 200_000])
@pytest.mark.parametrize("way", ["close", "reset"])
async def test_a_client_leaves_that_had_sent_more(way: str, ahead_bytes: int) -> None:
    """A client whose next request is already on its way is seen to leave as well, while its worker is silent."""
    async with running_scene(config={"limits": {"drain_seconds": 0.5}}) as scene:
        before = gone(await scene.quiet(), "tiny", "wait")
        request_id = scene.plays([Hang()])
        next_one = scene.request(scene.plays([Hang()]), b"x" * ahead_bytes)

        async with await scene.connect() as client:
            await client.send(scene.request(request_id, chat_body()) + next_one)
            request = await scene.arrival(request_id)
            await asyncio.sleep(0.1)
            left_at = await leave(client, way)
            closed_at = await request.closed(timeout_seconds=1.5)

        assert closed_at - left_at < 1
        await check_gone(scene, request_id, "wait", before)


async def test_a_hundred_clients_leave_and_twenty_stay(scene: Scene) -> None:
    """After a hundred aborts at any moment the next twenty are answered, each request has its record, nothing is in flight."""
    chance = random.Random(7)
    good = stream_of(chat_events(list("abcdef"), usage=usage_of(5, 6)), gap_seconds=0.01)

    async def abort(number: int) -> str:
        request_id = scene.plays([Wait(chance.random() * 0.05), *good])
        data = scene.request(request_id, chat_body())
        async with await scene.connect() as client:
            await client.send(data if number % 4 else data[: chance.randrange(len(data) - 300, len(data))])
            await asyncio.sleep(chance.random() * 0.15)
            await leave(client, WAYS[number % 3])
            if number % 3 == 2:
                await asyncio.sleep(0.05)
        return request_id

    ids: list[str] = []
    for first in range(0, 100, 20):
        ids += await asyncio.gather(*(abort(number) for number in range(first, first + 20)))
    stayed = await asyncio.gather(*(scene.ask(good) for _ in range(20)))
    metrics = await scene.quiet()
    records = await scene.gateway.records(0)
    ours = [record for record in records if record["request_id"] in ids]

    assert {one.record["outcome"] for one in stayed} == {"ok"}
    assert len(ours) == len({record["request_id"] for record in ours}) <= 100
    assert {record["outcome"] for record in ours} <= {"client_gone", "ok"}
    assert sum(record["outcome"] == "client_gone" for record in ours) > 50
    assert metrics.total("ridgeline_requests_total") == len(records)
    in_records = sum(record["outcome"] == "client_gone" for record in records)
    assert metrics.total("ridgeline_client_gone_total") == in_records
    plain_one = await scene.ask([Send(chat_answer("x", usage=usage_of(1, 1)))], body=chat_body(stream=False))
    assert plain_one.record["outcome"] == "ok"
