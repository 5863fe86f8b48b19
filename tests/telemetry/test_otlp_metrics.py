"""OTLP metrics: the same figures as the exposition, in the shape that the protocol wants."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.sdk.resources import Resource

from telemetry.catalog import EXPOSED, Kind, Writer
from telemetry.layout import Layout, bounds, offset, slot
from telemetry.points import Snapshot
from telemetry.sinks.otlp import Receiver
from telemetry.sinks.otlp_metrics import Instants, metrics_data
from telemetry.spans import Semconv

INSTANTS = Instants(began_unix_ns=1_700_000_000_000_000_000, read_unix_ns=1_700_000_060_000_000_000)
E2E, TTFT = "ridgeline_e2e_seconds", "ridgeline_ttft_seconds"


def labels(point: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


def encoded(snapshot: Snapshot, semconv: Semconv = Semconv.LATEST) -> dict[str, Metric]:
    """The metrics by name, as a receiver reads them."""
    request = encode_metrics(metrics_data(snapshot, INSTANTS, semconv, Resource({})))
    metrics = [metric for resource in request.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics]
    by_name = {metric.name: metric for metric in metrics}
    assert len(by_name) == len(metrics)
    return by_name


@pytest.fixture
def snapshot(a_topology: Any) -> Snapshot:
    """Two processes; the pool `llama long` has two streams of 0.2 and 7 s TTFT and one completion of 4000 s."""
    topology = a_topology()
    layout = Layout.of(topology)
    one, other, control = ([0.0] * layout.size for _ in range(3))
    base = layout.pool_base(1)
    for array, bucket, value in ((one, bounds(TTFT).index(0.25), 0.2), (other, bounds(TTFT).index(7.0), 7.0)):
        array[base + offset(TTFT) + bucket] += 1
        array[base + offset(TTFT) + len(bounds(TTFT)) + 1] += value
    first = base + slot(E2E, endpoint="completions")
    one[first + len(bounds(E2E))] += 1
    one[first + len(bounds(E2E)) + 1] += 4000.0
    one[base + offset("ridgeline_prompt_tokens_total")] = 30.0
    other[base + offset("ridgeline_prompt_tokens_total")] = 12.0
    return Snapshot(topology, (one, other), control, "1.2.3")


def test_every_family_is_there_as_its_kind(snapshot: Snapshot) -> None:
    """Families have their own names; counters and histograms are cumulative since the beginning of counting."""
    found = encoded(snapshot)

    for family in EXPOSED:
        metric = found[family.name]
        assert metric.description == family.help
        if family.kind is Kind.GAUGE:
            assert metric.WhichOneof("data") == "gauge"
            continue
        data = metric.sum if family.kind is Kind.COUNTER else metric.histogram
        assert data.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        assert {(point.start_time_unix_nano, point.time_unix_nano) for point in data.data_points} == {
            (INSTANTS.began_unix_ns, INSTANTS.read_unix_ns)
        }
        if family.kind is Kind.COUNTER:
            assert metric.sum.is_monotonic
        else:
            assert {tuple(point.explicit_bounds) for point in data.data_points} == {family.bounds}


def test_a_histogram_has_its_own_buckets(snapshot: Snapshot) -> None:
    """Bucket counts are per bucket and not cumulative, what is past the last bound is in the last, nothing else is invented."""
    (point,) = (point for point in encoded(snapshot)[TTFT].histogram.data_points if labels(point)["pool"] == "long")

    counts = list(point.bucket_counts)
    assert len(counts) == len(bounds(TTFT)) + 1
    assert (point.count, point.sum, sum(counts)) == (2, pytest.approx(7.2), 2)
    assert [counts[bounds(TTFT).index(bound)] for bound in (0.25, 7.0)] == [1, 1]
    assert not point.HasField("min")

    (long,) = (
        point
        for point in encoded(snapshot)[E2E].histogram.data_points
        if labels(point)["pool"] == "long" and labels(point)["endpoint"] == "completions"
    )
    assert (long.bucket_counts[-1], long.count) == (1, 1)


def test_processes_are_summed(snapshot: Snapshot) -> None:
    """A counter is the sum over the serving processes, and combinations that nothing happened in are there with 0."""
    points = encoded(snapshot)["ridgeline_prompt_tokens_total"].sum.data_points

    assert {labels(point)["pool"]: point.as_double for point in points} == {"short": 0, "long": 42, "default": 0}


def test_unset_gauges_are_absent(a_topology: Any) -> None:
    """A gauge that is not known is not there, rather than 0 or NaN."""
    topology = a_topology()
    found = encoded(Snapshot(topology, (), None, "1"))

    assert "ridgeline_worker_up" not in found
    assert all(family.name in found for family in EXPOSED if family.kind is Kind.COUNTER)


@pytest.mark.parametrize(
    ("semconv", "names"),
    [
        (Semconv.V1_41, {"gen_ai.client.token.usage"}),
        (
            Semconv.LATEST,
            {
                "gen_ai.client.inference.usage.input_tokens",
                "gen_ai.client.inference.usage.output_tokens",
                "gen_ai.client.inference.usage.cache_read.input_tokens",
            },
        ),
    ],
)
def test_the_names_of_the_conventions(snapshot: Snapshot, semconv: Semconv, names: set[str]) -> None:
    """Either version has its own names beside those of the server, and none of the other's."""
    server = {"gen_ai.server.request.duration", "gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token"}
    found = encoded(snapshot, semconv)

    assert {name for name in found if name.startswith("gen_ai")} == names | server


def test_the_attributes_of_the_conventions(snapshot: Snapshot) -> None:
    """Figures of the conventions are ours under their names: same buckets, the model, and the operation where it is known."""
    found = encoded(snapshot, Semconv.V1_41)
    ours = [point for point in found[E2E].histogram.data_points if point.count]
    theirs = [point for point in found["gen_ai.server.request.duration"].histogram.data_points if point.count]

    assert [list(point.bucket_counts) for point in theirs] == [list(point.bucket_counts) for point in ours]
    assert labels(theirs[0]) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "llama",
        "ridgeline.pool": "long",
    }
    kinds = {labels(point)["gen_ai.token.type"] for point in found["gen_ai.client.token.usage"].histogram.data_points}
    assert kinds == {"input", "output"}
    assert found["gen_ai.server.request.duration"].unit == "s"
    assert found["gen_ai.client.token.usage"].unit == "{token}"


def test_series_are_bounded(snapshot: Snapshot) -> None:
    """There are as many points as there are series in the exposition's sense: closed sets only."""
    found = encoded(snapshot)
    points = sum(len(getattr(metric, metric.WhichOneof("data") or "").data_points) for metric in found.values())
    blocks = Layout.of(snapshot.topology)

    assert points < 200 * (blocks.routes + blocks.pools + blocks.workers + blocks.keys)
    assert {family.name for family in EXPOSED if family.writer is Writer.EXPOSITION} <= found.keys()


@pytest.mark.parametrize(
    ("endpoint", "traces", "metrics"),
    [
        ("http://c:4318", "http://c:4318/v1/traces", "http://c:4318/v1/metrics"),
        ("http://c:4318/", "http://c:4318/v1/traces", "http://c:4318/v1/metrics"),
        ("https://c/otlp", "https://c/otlp/v1/traces", "https://c/otlp/v1/metrics"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces", "https://c/otlp/v1/metrics"),
        ("https://c/v1/metrics/", "https://c/v1/traces", "https://c/v1/metrics"),
    ],
)
def test_urls_of_signals(endpoint: str, traces: str, metrics: str) -> None:
    """A base URL gets the signal's path; the whole URL of one signal is taken as it is, and the other's stands beside it."""
    receiver = Receiver(endpoint=endpoint, headers={"authorization": "secret"})

    assert (receiver.url("traces"), receiver.url("metrics")) == (traces, metrics)
    assert "secret" not in repr(receiver)


def test_a_clock_that_was_set_back_does_not_let_counters_end_before_they_began() -> None:
    """A receiver would refuse them; otherwise both instants are as they were read."""
    assert Instants.of(5, 3) == Instants(3, 3)
    assert Instants.of(3, 5) == Instants(3, 5)
