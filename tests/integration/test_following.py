"""What control makes of records beyond the log: call chains, exemplars, and OTLP metrics from the same snapshot."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from telemetry.catalog import CATALOG, Kind
from tests.integration.answers import chat_events, stream_of, usage_of
from tests.integration.gateway import ROOT, Metrics
from tests.integration.otlp_receiver import OtlpReceiver, attributes
from tests.integration.scene import Scene, Seen, running_scene

# They hold real processes against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def receiver() -> AsyncIterator[OtlpReceiver]:
    async with OtlpReceiver() as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(receiver: OtlpReceiver) -> AsyncIterator[Scene]:
    """A gateway that samples what clients sample, sends metrics each second, and knows chains by a header."""
    tracing = {
        "otlp_endpoint": f"{receiver.url}/v1/traces",
        "sample_ratio": 0,
        "metrics": True,
        "metrics_interval_seconds": 1,
        "semconv": "v1.41",
    }
    async with running_scene(config={"tracing": tracing, "chains": {"header": "X-Session-Id"}}) as one:
        yield one


def answering(prompt: int, completion: int) -> Any:
    events = chat_events(["a"] * completion, usage=usage_of(prompt, completion, prompt // 2))
    return stream_of(events, gap_seconds=0.002)


async def ask(scene: Scene, prompt: int, *headers: tuple[str, str]) -> Seen:
    return await scene.ask(answering(prompt, 5), headers=headers)


async def get(url: str, accept: str = "*/*") -> tuple[str, str]:
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.get(url, headers={"Accept": accept}) as answer,
    ):
        assert answer.status == 200
        return answer.headers["Content-Type"], await answer.text()


async def chains(scene: Scene) -> dict[str, Any]:
    _, text = await get(scene.gateway.admin_url + "/api/chains")
    found: dict[str, Any] = json.loads(text)
    return found


async def test_requests_with_the_same_header_are_a_chain(scene: Scene) -> None:
    """Their calls are numbered in the log and summed in the view; what the header says is in neither; the worker gets it."""
    seen = [await ask(scene, prompt, ("x-SESSION-id", "SESSION-SECRET")) for prompt in (100, 160, 250)]
    other = await ask(scene, 100, ("X-Session-Id", "another"))

    ids = {one.record["chain_id"] for one in seen}
    assert len(ids) == 1
    assert [one.record["chain_call"] for one in seen] == [1, 2, 3]
    assert (other.record["chain_call"], other.record["chain_id"] in ids) == (1, False)
    assert scene.arrivals(seen[0].record["request_id"])[0].headers["x-session-id"] == "SESSION-SECRET"

    (chain,) = (chain for chain in (await chains(scene))["newest"] if chain["chain_id"] in ids)
    assert (chain["calls"], chain["prompt_tokens"], chain["completion_tokens"], chain["cached_tokens"]) == (3, 510, 15, 255)
    assert chain["growth_tokens_per_call"] == 75
    assert chain["prefill_seconds"] == pytest.approx(sum(one.record["upstream_ttft_seconds"] for one in seen))
    assert chain["decode_seconds"] == pytest.approx(sum(4 * one.record["tpot_seconds"] for one in seen))
    assert [call["prompt_tokens"] for call in chain["newest_calls"]] == [100, 160, 250]
    assert "SESSION-SECRET" not in scene.gateway.log_path.read_text() + str(await chains(scene))


async def test_requests_of_one_trace_are_a_chain(scene: Scene) -> None:
    """Without the header requests belong together by the trace that their client gave them; others to none."""
    headers = [("traceparent", f"00-{TRACE}-{number:016x}-00") for number in (1, 2)]
    seen = [await ask(scene, 50, header) for header in headers]
    alone = await ask(scene, 50)

    assert [(one.record["chain_id"], one.record["chain_call"]) for one in seen] == [(TRACE, 1), (TRACE, 2)]
    assert (alone.record["chain_id"], alone.record["chain_call"]) == (None, None)


def series(metrics: Metrics) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {(sample.name, tuple(sample.labels.items())) for name in metrics for sample in metrics[name]}


async def test_series_do_not_grow_with_traces_and_chains(scene: Scene) -> None:
    """Ids that clients send become no labels."""
    before = series(await scene.quiet())
    for number in range(30):
        await ask(scene, 10, ("x-session-id", f"s-{number}"), ("traceparent", f"00-{number + 1:032x}-{PARENT}-01"))

    assert series(await scene.quiet()) == before


async def test_exemplars_lead_to_traces(scene: Scene) -> None:
    """A sampled request is the exemplar of its buckets in OpenMetrics, by its trace id; plain text has none."""
    trace_id = "5ca1ab1e" * 4
    seen = await ask(scene, 10, ("traceparent", f"00-{trace_id}-{PARENT}-01"))
    unsampled = await ask(scene, 10, ("traceparent", f"00-{'c0ffee00' * 4}-{PARENT}-00"))
    await scene.quiet()
    _, text = await get(scene.gateway.observe_url + "/metrics", OPENMETRICS)

    found = {
        sample.name: sample.exemplar
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.exemplar is not None and sample.exemplar.labels == {"trace_id": trace_id}
    }
    assert found.keys() == {
        f"ridgeline_{name}_seconds_bucket" for name in ("ttft", "ttft_visible", "upstream_ttft", "tpot", "e2e")
    }
    assert found["ridgeline_ttft_seconds_bucket"].value == pytest.approx(seen.record["ttft_seconds"])
    assert unsampled.record["trace_id"] not in text

    kind, plain = await get(scene.gateway.observe_url + "/metrics", "text/plain")
    assert kind.startswith("text/plain")
    assert trace_id not in plain


async def test_metrics_are_sent_from_the_same_snapshot(scene: Scene, receiver: OtlpReceiver) -> None:
    """Every family that is exposed arrives at the receiver with the same totals, at the path beside that of traces."""
    await ask(scene, 10)
    page = await scene.quiet()
    seen = len(receiver.metrics)
    await receiver.when(lambda: len(receiver.metrics) >= seen + 2)
    metrics = receiver.metrics[-1]

    assert "/v1/metrics" in receiver.paths
    exposed = {family.name for family in CATALOG if family.kind is not Kind.HISTOGRAM and family.name in page}
    assert exposed <= metrics.keys()
    for name in ("ridgeline_requests_total", "ridgeline_prompt_tokens_total", "ridgeline_routes_total"):
        assert sum(point.as_double for point in metrics[name].sum.data_points) == page.total(name)
    points = metrics["ridgeline_ttft_seconds"].histogram.data_points
    assert sum(point.count for point in points) == page.total("ridgeline_ttft_seconds_count")
    assert sum(point.sum for point in points) == pytest.approx(page.total("ridgeline_ttft_seconds_sum"))
    assert attributes(metrics["gen_ai.server.time_to_first_token"].histogram.data_points[0].attributes) == {
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "tiny",
        "ridgeline.pool": "default",
    }
    assert "gen_ai.client.token.usage" in metrics
    starts = {
        point.start_time_unix_nano for each in receiver.metrics for point in each["ridgeline_requests_total"].sum.data_points
    }
    assert len(starts) == 1


async def test_opentelemetry_is_loaded_only_where_it_is_used() -> None:
    """Serving processes never load it, and control does not either until a receiver is configured."""
    heavy = "[m for m in ('opentelemetry', 'requests') if m in sys.modules]"
    code = f"import sys, proxy.serving.process, proxy.control.process; print({heavy})"
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)

    assert done.stdout.strip() == b"[]"
