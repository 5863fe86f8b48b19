"""Exemplars: one for each bucket, of sampled requests only, bounded; in OpenMetrics, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.samples import Sample

from telemetry.catalog import CATALOG, Scope
from telemetry.exemplars import FAMILIES, Exemplars
from telemetry.exposition import Writer
from telemetry.layout import Layout
from telemetry.record import RequestRecord, Trace

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def a_record(**fields: Any) -> RequestRecord:
    return RequestRecord(
        **{
            "request_id": "r",
            "ended_unix_seconds": 1_700_000_000.25,
            "model": "llama",
            "pool": "long",
            "endpoint": "chat",
            "trace_id": TRACE_ID,
            "trace": Trace(span_id="00000000000000aa"),
            **fields,
        }
    )


def test_the_families_are_kept_per_pool() -> None:
    """Only families of pools have exemplars, since a record says which pool it belongs to."""
    assert {family.scope for family in CATALOG if family.name in FAMILIES} == {Scope.POOL}
    assert {family.name for family in CATALOG} >= FAMILIES


def test_the_newest_of_a_bucket_stays() -> None:
    """A bucket keeps its newest observation; another bucket, combination or pool has one of its own."""
    exemplars = Exemplars()
    exemplars.add(a_record(ttft_seconds=0.21, trace_id="a" * 32))
    exemplars.add(a_record(ttft_seconds=0.22, trace_id="b" * 32))
    exemplars.add(a_record(ttft_seconds=5000.0, trace_id="c" * 32))
    exemplars.add(a_record(ttft_seconds=0.22, trace_id="d" * 32, pool="short"))

    found = exemplars.of("ridgeline_ttft_seconds", "llama", "long")

    assert sorted((each.trace_id, each.value) for each in found.values()) == [("b" * 32, 0.22), ("c" * 32, 5000.0)]
    assert len(exemplars) == 3


@pytest.mark.parametrize("change", [{"trace": None}, {"trace_id": None}])
def test_what_was_not_sampled_leaves_none(change: dict[str, Any]) -> None:
    """A trace that nobody recorded cannot be looked up, and so nothing points to it."""
    exemplars = Exemplars()
    exemplars.add(a_record(ttft_seconds=0.2, e2e_seconds=1.0, **change))

    assert len(exemplars) == 0


def test_they_are_bounded() -> None:
    """However many pools come and go, no more than the bound are kept, and the newest are."""
    exemplars = Exemplars(most=10)
    for number in range(1000):
        exemplars.add(a_record(ttft_seconds=0.2, tpot_seconds=0.02, pool=f"p-{number}"))

    assert len(exemplars) == 10
    assert exemplars.of("ridgeline_tpot_seconds", "llama", "p-999")
    assert not exemplars.of("ridgeline_tpot_seconds", "llama", "p-0")


def marked(text: bytes) -> list[Sample]:
    return [sample for family in parse_openmetrics(text.decode()) for sample in family.samples if sample.exemplar]


def test_they_stand_at_their_buckets(a_topology: Any) -> None:
    """The strict parser finds each exemplar at the bucket that holds its value, with the pool's and the endpoint's labels."""
    topology = a_topology()
    layout = Layout.of(topology)
    cells = [1.0] * layout.size
    exemplars = Exemplars()
    exemplars.add(a_record(ttft_seconds=0.21, tpot_seconds=0.0161, e2e_seconds=4000.0, endpoint="completions"))
    exemplars.add(a_record(model="gone", ttft_seconds=0.21))

    writer = Writer(topology, layout, version="1")
    text = b"".join(writer.write([cells], cells, openmetrics=True, exemplars=exemplars))

    found = {sample.name: sample for sample in marked(text)}
    assert {name: (sample.labels["pool"], sample.labels["le"], sample.exemplar.value) for name, sample in found.items()} == {
        "ridgeline_ttft_seconds_bucket": ("long", "0.25", 0.21),
        "ridgeline_tpot_seconds_bucket": ("long", "0.0165", 0.0161),
        "ridgeline_e2e_seconds_bucket": ("long", "+Inf", 4000.0),
    }
    assert found["ridgeline_e2e_seconds_bucket"].labels["endpoint"] == "completions"
    assert {tuple(sample.exemplar.labels.items()) for sample in found.values()} == {(("trace_id", TRACE_ID),)}
    assert {float(sample.exemplar.timestamp) for sample in found.values()} == {1_700_000_000.25}


def test_every_bucket_may_have_one(a_topology: Any) -> None:
    """With an exemplar in every bucket of a family the whole text still parses, each within its bucket."""
    topology = a_topology()
    layout = Layout.of(topology)
    cells = [1.0] * layout.size
    exemplars = Exemplars()
    (family,) = (family for family in CATALOG if family.name == "ridgeline_tpot_seconds")
    for pool in topology.pools:
        for bound in (*family.bounds, 10_000.0):
            exemplars.add(a_record(model=pool.model, pool=pool.name, tpot_seconds=bound))

    writer = Writer(topology, layout, version="1")
    text = b"".join(writer.write([cells], cells, openmetrics=True, exemplars=exemplars))

    found = marked(text)
    assert len(found) == len(topology.pools) * (len(family.bounds) + 1)
    assert all(sample.exemplar.value <= float(sample.labels["le"]) for sample in found)


def test_plain_text_has_none(a_topology: Any) -> None:
    """Text 0.0.4 is the same with and without exemplars: its parsers know none."""
    topology = a_topology()
    layout = Layout.of(topology)
    cells = [1.0] * layout.size
    exemplars = Exemplars()
    exemplars.add(a_record(ttft_seconds=0.21))
    writer = Writer(topology, layout, version="1")

    assert b"".join(writer.write([cells], cells, exemplars=exemplars)) == writer.write_all([cells], cells)
