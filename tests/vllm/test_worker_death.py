"""A vLLM that is stopped or killed in the middle of its answers: what clients see, and what is written down.

These tests end the worker that the others share; whoever needs it next gets a new one.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.gateway import Gateway, running_gateway
from tests.integration.raw_client import Answer, End
from tests.integration.scene import events_of
from tests.vllm.answers import ask, chat, new_id, record_of
from tests.vllm.worker import RUNNING, RealWorker, Workers

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = chat("go on", 32_000)
TOKEN_GAP_SECONDS, FIRST_BYTE_SECONDS = 3.0, 8.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One request, from its client's end and in the gateway's record."""

    answer: Answer
    record: dict[str, Any]


async def end_in_the_middle(gateway: Gateway, worker: RealWorker, number: signal.Signals) -> tuple[Seen, Seen]:
    """Send the signal while a streamed and a plain answer are being made; what became of both."""
    ids = [new_id(), new_id()]
    tasks = [
        asyncio.create_task(ask(gateway.base_url, {**BODY, "stream": stream}, request_id))
        for request_id, stream in zip(ids, (True, False), strict=True)
    ]
    await worker.metrics_when(lambda page: page.total(RUNNING) == 2, 20.0)
    await asyncio.sleep(0.3)  # so that some tokens have gone out
    worker.kill(number)
    answers = await asyncio.gather(*tasks)
    streamed, plain = [
        Seen(answer, await record_of(gateway, request_id)) for answer, request_id in zip(answers, ids, strict=True)
    ]
    return streamed, plain


async def assert_all_is_over(gateway: Gateway, seen: Seen) -> None:
    """Nothing is in flight any more, and a new request is told that there is nobody."""
    assert (await gateway.metrics()).total("ridgeline_in_flight_requests") == 0
    assert (await ask(gateway.base_url, BODY)).status in (502, 503)
    assert seen.record["worker"] is not None


async def test_a_killed_worker(workers: Workers) -> None:
    """After SIGKILL a stream ends with an error event and without its end, a plain request gets a 502; both are recorded so."""
    worker = workers.running()
    async with running_gateway(workers=[worker.url]) as gateway:
        streamed, plain = await end_in_the_middle(gateway, worker, signal.SIGKILL)

        assert streamed.answer.end is not End.COMPLETE
        assert b"[DONE]" not in streamed.answer.body
        assert b'"code":"worker_disconnected"' in streamed.answer.body.rstrip().rpartition(b"\n\n")[2]
        assert (streamed.record["outcome"], streamed.record["reason"]) == ("truncated", "worker_disconnected")
        assert streamed.record["completion_is_estimate"] is True
        assert streamed.record["completion_tokens"] > 0
        assert (plain.answer.status, plain.answer.end) == (502, End.COMPLETE)
        assert plain.answer.json()["error"]["code"] == "worker_failed"
        assert (plain.record["outcome"], plain.record["reason"]) == ("worker_error", "worker_failed")
        await assert_all_is_over(gateway, streamed)
    assert await worker.ended() == 128 + signal.SIGKILL


async def test_a_stopped_worker(workers: Workers) -> None:
    """After SIGTERM no client waits for ever and none takes a cut for an end.

    What vLLM does is a race: it ends answers with the finish reason `abort` or with an error event, or lets them stand without
    another byte until the clients have gone; then the limits on silence end them.
    """
    worker = workers.running()
    limits = {"token_gap_seconds": TOKEN_GAP_SECONDS, "first_byte_seconds": FIRST_BYTE_SECONDS}
    async with running_gateway({"limits": limits}, workers=[worker.url]) as gateway:
        streamed, plain = await end_in_the_middle(gateway, worker, signal.SIGTERM)

        match streamed.record["outcome"]:
            case "aborted":
                assert b'"finish_reason":"abort"' in streamed.answer.body
            case "worker_error":  # vLLM's own error event, its end marker behind it
                assert [event for event in events_of(streamed.answer.body)[-2:-1] if "error" in event]
            case outcome:
                assert outcome in ("stalled", "truncated")
                assert streamed.answer.end is not End.COMPLETE
                assert b"[DONE]" not in streamed.answer.body
        assert streamed.record["completion_tokens"] > 0
        assert plain.record["outcome"] in ("aborted", "timeout", "worker_error")
        assert (plain.answer.status == 200) == (plain.record["outcome"] == "aborted")
        await assert_all_is_over(gateway, streamed)
    await worker.ended()
