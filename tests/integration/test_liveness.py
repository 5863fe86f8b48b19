"""A gateway that is busy with streams and long prompts still says at once that it lives."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.http1 import chunk, last_chunk
from tests.integration.answers import DONE, chat_events, event, sse_head
from tests.integration.raw_client import RawClient, request_bytes
from tests.integration.scene import CHAT, chat_body, running_scene
from tests.integration.steps import Send, Step, Wait

pytestmark = [pytest.mark.asyncio, pytest.mark.flaky(reruns=2)]

STREAMS, PROMPTS = 200, 10


async def test_a_probe_is_answered_while_streams_run_and_long_prompts_arrive() -> None:
    """Of two hundred streams and ten prompts of a megabyte no probe of ``/livez`` notices more than a moment."""
    events = [chunk(event(item)) for item in chat_events(["a"] * 30)]
    slow: list[Step] = [Send(sse_head())]
    for each in events:
        slow += [Send(each), Wait(0.05)]
    slow += [Send(chunk(DONE)), Send(last_chunk())]

    async with running_scene() as scene:
        scene.worker.script = lambda _request: slow
        is_over = asyncio.Event()
        waits: list[float] = []

        async def probe() -> None:
            while not is_over.is_set():
                began_at = time.monotonic()
                status, _ = await scene.gateway.get(scene.gateway.base_url + "/livez", timeout_seconds=1.0)
                assert status == 200
                waits.append(time.monotonic() - began_at)
                await asyncio.sleep(0.03)

        async def ask(body: dict[str, object]) -> int:
            async with await RawClient.connect(scene.gateway.base_url) as client:
                await client.send(request_bytes("POST", CHAT, body))
                answer = await client.read_answer(timeout_seconds=30)
                assert answer.head is not None
                return answer.head.status

        probing = asyncio.create_task(probe())
        streams = [asyncio.create_task(ask(chat_body())) for _ in range(STREAMS)]
        await asyncio.sleep(0.5)
        long = chat_body() | {"messages": [{"role": "user", "content": "many words and 12 numbers, " * 40_000}]}
        prompts = [asyncio.create_task(ask(long)) for _ in range(PROMPTS)]
        statuses = await asyncio.gather(*streams, *prompts)
        is_over.set()
        await probing

    assert statuses == [200] * (STREAMS + PROMPTS)
    assert len(waits) > 20
    assert max(waits) < 0.5
