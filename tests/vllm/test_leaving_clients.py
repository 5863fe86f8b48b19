"""A client that leaves ends its request in vLLM at once, whose time is the dearest there is."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.integration.gateway import Gateway
from tests.integration.raw_client import RawClient, request_bytes
from tests.vllm.answers import chat, completion, new_id, path_of, record_of
from tests.vllm.worker import RUNNING, RealWorker

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDLESS_TOKENS = 32_000  # half a minute of vLLM's time
BODIES = {
    "chat": chat("go on", ENDLESS_TOKENS, stream=True),
    "completion": completion("go on", ENDLESS_TOKENS, stream=True),
    "plain": chat("go on", ENDLESS_TOKENS),
}


@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset, RawClient.half_close], ids=["fin", "rst", "half"])
@pytest.mark.parametrize("name", BODIES)
async def test_a_client_that_leaves_ends_its_request(gateway: Gateway, worker: RealWorker, name: str, leave: Any) -> None:
    """Within a second of the client's leaving, nothing runs in vLLM; the record says so, and claims no measured count."""
    body, request_id = BODIES[name], new_id()
    await worker.quiet()
    async with await RawClient.connect(gateway.base_url) as client:
        await client.send(request_bytes("POST", path_of(body), body, [("X-Request-Id", request_id)]))
        if body.get("stream"):
            await client.read_until(b"data: ", timeout_seconds=20.0)
            await client.read_some(20.0)
        await worker.metrics_when(lambda page: page.total(RUNNING) == 1)
        left_at = time.monotonic()
        leave(client)
        await worker.quiet()
        took_seconds = time.monotonic() - left_at
        record = await record_of(gateway, request_id)

    assert took_seconds < 1.0
    assert record["outcome"] == "client_gone"
    assert record["phase"] == ("answer" if body.get("stream") else "wait")
    assert record["completion_is_estimate"] is bool(body.get("stream"))
    assert (await gateway.metrics()).total("ridgeline_in_flight_requests") == 0
