"""Responses that a real vLLM computes in the background, asked for by the official client."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.integration.gateway import Gateway
from tests.vllm.worker import RealWorker

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKED: dict[str, Any] = {"model": "tiny", "background": True, "store": True}
ENDLESS = {"ignore_eos": True}


async def test_a_response_in_the_background(gateway: Gateway, worker: RealWorker) -> None:
    """It is looked at until it is done, gone on from, and another one is cancelled, which ends it in vLLM."""
    async with openai.AsyncOpenAI(base_url=f"{gateway.base_url}/v1", api_key="none", max_retries=0) as client:
        made = await client.responses.create(input="the people", max_output_tokens=12, **ASKED)
        for _ in range(200):
            done = await client.responses.retrieve(made.id)
            if done.status not in ("queued", "in_progress"):
                break
            await asyncio.sleep(0.05)
        after = await client.responses.create(model="tiny", input="and?", previous_response_id=made.id, max_output_tokens=12)
        long = await client.responses.create(input="on", max_output_tokens=20_000, extra_body=ENDLESS, **ASKED)
        cancelled = await client.responses.cancel(long.id)
        await worker.quiet()

    assert (made.status, cancelled.status) == ("queued", "cancelled")
    assert done.status in ("completed", "incomplete")
    assert done.usage is not None
    assert done.usage.output_tokens > 0
    assert after.usage is not None
    assert after.usage.input_tokens > done.usage.input_tokens
