"""What the gateway does with requests under way when it is told to end: those that can, end well; the others are told."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.http1 import chunk, last_chunk
from tests.integration.answers import DONE, chat_events, event, sse_head
from tests.integration.gateway import running_gateway
from tests.integration.raw_client import End, RawClient, request_bytes
from tests.integration.scene import CHAT, chat_body, events_of
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.steps import Hang, Send, Step, Wait

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

ROLE, FIRST, SECOND, FINISH = (chunk(event(item)) for item in chat_events(["a", "b"], finish_reason="stop"))
STARTED = [Send(sse_head()), Send(ROLE), Send(FIRST)]


async def stopping(drain_seconds: float, script: list[Step]) -> tuple[Any, dict[str, Any], float]:
    """Stop a gateway in the middle of a stream: the answer, the record, and how long the gateway took to end."""
    loop = asyncio.get_running_loop()
    async with ScriptedWorker(script) as worker:
        config = {"limits": {"drain_seconds": drain_seconds}}
        async with (
            running_gateway(config, workers=[worker.url]) as gateway,
            await RawClient.connect(gateway.base_url) as client,
        ):
            await client.send(request_bytes("POST", CHAT, chat_body()))
            start = await client.read_until(b'"a"')
            began = loop.time()
            gateway.supervisor.send_signal(signal.SIGTERM)
            answer = await client.read_answer(start=start)
            await asyncio.wait_for(gateway.supervisor.wait(), 10)
            took = loop.time() - began
            [record] = await gateway.records(1)
    return answer, record, took


async def test_a_stream_that_outlasts_the_drain_time_is_ended() -> None:
    """After SIGTERM and the drain time a stream ends with an error event and without an end, as a shutdown."""
    answer, record, took = await stopping(1, [*STARTED, Hang()])

    assert (record["outcome"], answer.end) == ("shutdown", End.CUT)
    assert events_of(answer.body)[-1]["error"]["code"] == "shutting_down"
    assert 1 <= took < 4


async def test_a_request_that_waits_is_told_when_the_gateway_stops() -> None:
    """A request without an answer at the end of the drain time gets 503, and one on a kept idle connection finds it closed."""
    async with ScriptedWorker([Hang()]) as worker:
        config = {"limits": {"drain_seconds": 0.5}}
        async with running_gateway(config, workers=[worker.url]) as gateway, await RawClient.connect(gateway.base_url) as idle:
            async with await RawClient.connect(gateway.base_url) as client:
                await client.send(request_bytes("POST", CHAT, chat_body()))
                await worker.received()
                assert (await idle.request("GET", "/readyz")).status == 200
                gateway.supervisor.send_signal(signal.SIGTERM)
                answer = await client.read_answer()
            assert await idle.read_some() == b""
            [record] = await gateway.records(1)

    assert (answer.status, answer.json()["error"]["code"], answer.end) == (503, "shutting_down", End.COMPLETE)
    assert (record["outcome"], record["status"]) == ("shutdown", 503)


async def test_a_stream_finishes_within_the_drain_time() -> None:
    """After SIGTERM a running stream still gets its whole answer, and the gateway ends as soon as it has."""
    answer, record, took = await stopping(
        20, [*STARTED, Wait(1.0), Send(SECOND), Send(FINISH), Send(chunk(DONE)), Send(last_chunk())]
    )

    assert (record["outcome"], answer.end) == ("ok", End.COMPLETE)
    assert answer.body.endswith(DONE)
    assert took < 10
