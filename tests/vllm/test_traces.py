"""The trace of a request goes through the gateway into a real vLLM: one tree from the client's span to the engine's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.gateway import Gateway, running_gateway
from tests.integration.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.integration.raw_client import RawClient
from tests.integration.scene import CHAT
from tests.vllm.answers import USAGE, chat, new_id, record_of
from tests.vllm.worker import RealWorker, Workers

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENGINE_SPAN = "llm_request"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def receiver() -> AsyncIterator[OtlpReceiver]:
    async with OtlpReceiver() as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(workers: Workers, receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """A gateway and a vLLM of its own that both send their spans to the receiver."""
    tracing = ("--otlp-traces-endpoint", f"{receiver.url}/v1/traces")
    environ = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    log_path = tmp_path_factory.mktemp("traced") / "vllm.log"
    worker = await asyncio.to_thread(RealWorker, log_path, *tracing, environ=environ)
    try:
        config = {"tracing": {"otlp_endpoint": receiver.url, "sample_ratio": 0}}
        async with running_gateway(config, workers=[worker.url]) as one:
            yield one
    finally:
        worker.stop()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_span_of_vllm_is_below_ours(gateway: Gateway, receiver: OtlpReceiver, *, stream: bool) -> None:
    """A sampled request of a client is one tree: the request's span, below it the attempt's, below that the engine's."""
    request_id = new_id()
    body = chat("tell me", 8, **({"stream": True, **USAGE} if stream else {}))
    trace_id = TRACE if stream else TRACE[::-1]
    headers = [("X-Request-Id", request_id), ("traceparent", f"00-{trace_id}-{PARENT}-01")]
    async with await RawClient.connect(gateway.base_url) as client:
        assert (await client.request("POST", CHAT, body, headers, timeout_seconds=60.0)).status == 200
    record = await record_of(gateway, request_id)

    def mine(spans: list[ReceivedSpan]) -> dict[str, ReceivedSpan]:
        return {span.name: span for span in spans if span.trace_id == trace_id}

    names = {"POST /v1/chat/completions", "chat tiny", ENGINE_SPAN}
    spans = mine(await receiver.spans_when(lambda spans: names <= mine(spans).keys(), 20.0))
    root, attempt, engine = (spans[name] for name in ("POST /v1/chat/completions", "chat tiny", ENGINE_SPAN))

    assert (root.parent_id, attempt.parent_id, engine.parent_id) == (PARENT, root.span_id, attempt.span_id)
    assert record["trace_id"] == trace_id
    assert engine.attributes["gen_ai.usage.prompt_tokens"] == attempt.attributes["gen_ai.usage.input_tokens"]
    assert engine.attributes["gen_ai.usage.completion_tokens"] == attempt.attributes["gen_ai.usage.output_tokens"] == 8
    slack = 20_000_000  # vLLM's instants come from two clocks
    assert attempt.started_unix_ns - slack <= engine.started_unix_ns <= engine.ended_unix_ns <= attempt.ended_unix_ns + slack
