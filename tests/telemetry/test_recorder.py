"""Every figure of a record ends in its own cell, seen through the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from operator import ge

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_text

from routing.topology import Topology
from telemetry.catalog import CATALOG, EXPOSED, Kind, Scope, Writer
from telemetry.exposition import Writer as TextWriter
from telemetry.layout import Layout
from telemetry.measurements import Measurements
from telemetry.record import CountResult, Misroute, NoToken, Outcome, Phase, PrefillResult, Rejection, RequestRecord
from telemetry.recorder import GAP_BOUNDS, Recorder

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
POOL = {"model": "llama", "pool": "long"}
WORKER = POOL | {"worker": "w-2"}


class Book:
    """A recorder with its array, and what an observer sees of it."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.layout = Layout.of(topology)
        self.cells = memoryview(bytearray(8 * self.layout.size)).cast("d")
        self.recorder = Recorder(self.cells, self.layout, topology)

    def count(self, record: RequestRecord, found: Measurements | None = None) -> None:
        """Count a record."""
        self.recorder.count(record, found)

    def series(self) -> Series:
        """All samples that are not 0."""
        text = TextWriter(self.topology, self.layout, version="1").write_all([self.cells], None, openmetrics=False)
        told = b"".join(line for line in text.splitlines(keepends=True) if not line.endswith(b" 0\n"))  # most of it is 0
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in parse_text(told.decode())
            for sample in family.samples
            if sample.value and sample.name != "ridgeline_build_info"
        }


@pytest.fixture
def book(a_topology: Callable[..., Topology]) -> Book:
    return Book(a_topology())


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"ridgeline_{name}", frozenset(labels.items())


def a_record(**more: object) -> RequestRecord:
    """A record that reached the long pool; more fields as given."""
    fields: dict[str, object] = {
        "request_id": "r",
        "ended_unix_seconds": 1.0,
        "model": "llama",
        "pool": "long",
        "worker": "w-2",
        "endpoint": "chat",
        "outcome": Outcome.OK,
    }
    return RequestRecord(**fields | more)  # type: ignore[arg-type]


FIGURES = {
    "ttft_seconds": 0.3,
    "ttft_visible_seconds": 0.4,
    "upstream_ttft_seconds": 0.26,
    "tpot_seconds": 0.021,
    "stall_ratio": 4.0,
    "e2e_seconds": 7.0,
    "queue_seconds": 0.02,
    "connect_seconds": 0.002,
    "client_wait_seconds": 0.2,
    "overhead_seconds": 0.00012,
}


def test_a_whole_stream(book):
    """Each family that a good stream touches has its figure, under its labels, and no other family moves."""
    found = Measurements(gap_counts=[0] * (len(GAP_BOUNDS) + 1), gap_sum_seconds=2.5, gaps_are_per_token=True, faults=2)
    assert found.gap_counts is not None
    found.gap_counts[3] = 7
    book.count(
        a_record(
            stream=True,
            key="app-b",
            prompt_tokens=100,
            completion_tokens=40,
            cached_tokens=64,
            estimated_prompt_tokens=80,
            **FIGURES,
        ),
        found,
    )

    series = book.series()
    sums = {name: value for (name, _), value in series.items() if name.endswith("_sum")}
    assert sums == {
        **{f"ridgeline_{name}_sum": pytest.approx(value) for name, value in FIGURES.items()},
        "ridgeline_itl_seconds_sum": 2.5,
        "ridgeline_prompt_length_tokens_sum": 100,
        "ridgeline_completion_length_tokens_sum": 40,
        "ridgeline_estimate_error_ratio_sum": 1.25,
        "ridgeline_worker_ttft_seconds_sum": pytest.approx(0.26),
        "ridgeline_worker_tpot_seconds_sum": pytest.approx(0.021),
    }
    counts = {name: value for (name, _), value in series.items() if name.endswith("_count")}
    assert counts == {name.replace("_sum", "_count"): 7 if "itl" in name else 1 for name in sums}
    assert {name: value for name, value in series.items() if not name[0].endswith(("_sum", "_count", "_bucket"))} == {
        key("requests_total", **POOL, endpoint="chat", outcome="ok"): 1,
        key("prompt_tokens_total", **POOL): 100,
        key("completion_tokens_total", **POOL): 40,
        key("cached_tokens_total", **POOL): 64,
        key("cache_known_prompt_tokens_total", **POOL): 100,
        key("key_requests_total", key="app-b", outcome="ok"): 1,
        key("key_tokens_total", key="app-b", kind="prompt"): 100,
        key("key_tokens_total", key="app-b", kind="completion"): 40,
        key("key_tokens_total", key="app-b", kind="cached"): 64,
        key("parse_errors_total"): 2,
    }
    labels = {frozenset(labels) - {"le"} for _, labels in ((name, dict(labels)) for name, labels in series)}
    assert frozenset(WORKER) in labels


@pytest.mark.parametrize(
    ("field", "family"),
    [(name, name) for name in FIGURES if name != "e2e_seconds"]
    + [("upstream_ttft_seconds", "worker_ttft_seconds"), ("tpot_seconds", "worker_tpot_seconds")],
)
def test_each_figure_falls_into_its_bucket(book, field, family):
    """A value on a bound lies in that bucket, one above it in the next, and one above all in +Inf."""
    bounds = next(each.bounds for each in CATALOG if each.name == f"ridgeline_{family}")
    for value in (0.0, bounds[2], bounds[2] * 1.001, bounds[-1] * 2):
        book.count(a_record(stream=True, **{field: value}))

    labels = WORKER if family.startswith("worker_") else POOL
    series = book.series()
    buckets = {
        float(dict(labels)["le"]): value for (name, labels), value in series.items() if name == f"ridgeline_{family}_bucket"
    }
    assert buckets[bounds[0]] == buckets[bounds[1]] == 1
    assert (buckets[bounds[2]], buckets[bounds[3]], buckets[bounds[-1]], buckets[float("inf")]) == (2, 3, 3, 4)
    assert series[key(f"{family}_count", **labels)] == 4


@pytest.mark.parametrize(
    ("field", "family"), [("queue_seconds", "queue_seconds"), ("connect_seconds", "connect_seconds"), ("ttft_seconds",) * 2]
)
def test_zero_and_unknown_differ(book, field, family):
    """A measured 0 is an observation; what was not reached is none."""
    book.count(a_record(stream=True, **{field: None}))
    assert key(f"{family}_count", **POOL) not in book.series()

    book.count(a_record(stream=True, **{field: 0.0}))
    assert book.series()[key(f"{family}_count", **POOL)] == 1


def test_plain_answers_have_no_token_times(book):
    """What a meter may have found of a plain answer is not taken for a stream's."""
    book.count(a_record(endpoint="completions", **FIGURES))

    families = {name.removesuffix("_count") for name, _ in book.series() if name.endswith("_count")}
    assert families == {
        f"ridgeline_{name}"
        for name in ("e2e_seconds", "queue_seconds", "connect_seconds", "client_wait_seconds", "overhead_seconds")
    }


@pytest.mark.parametrize(
    ("more", "known", "unknown", "cached"),
    [
        ({"prompt_tokens": 10, "cached_tokens": 4}, 10, 0, 4),
        ({"prompt_tokens": 10, "cached_tokens": 0}, 10, 0, 0),
        ({"prompt_tokens": 10, "cached_tokens": None}, 0, 1, 0),
        ({}, 0, 0, 0),
    ],
)
def test_unknown_hits_are_counted_apart(book, more, known, unknown, cached):
    """0 cached tokens are part of the hit share, unknown ones are not."""
    book.count(a_record(**more))

    series = book.series()
    names = ("cache_known_prompt_tokens_total", "cache_unknown_requests_total", "cached_tokens_total")
    assert [series.get(key(name, **POOL), 0) for name in names] == [known, unknown, cached]


def test_estimated_completions_are_no_lengths(book):
    """Tokens that were counted because usage did not come add up, but are no length of an answer."""
    book.count(a_record(stream=True, completion_tokens=7, completion_is_estimate=True))

    series = book.series()
    assert series[key("completion_tokens_total", **POOL)] == 7
    assert key("completion_length_tokens_count", **POOL) not in series


def test_estimated_prompts_are_no_measurements(book):
    """What was estimated adds to the total, and tells nothing of lengths, of the estimate or of the cache."""
    book.count(a_record(stream=True, prompt_tokens=70, prompt_is_estimate=True, estimated_prompt_tokens=70))

    series = book.series()
    assert series[key("prompt_tokens_total", **POOL)] == 70
    others = ("prompt_length_tokens_count", "estimate_error_ratio_count", "cache_unknown_requests_total")
    assert not {name for name in others if key(name, **POOL) in series}


@pytest.mark.parametrize("per_token", [True, False])
def test_gaps_go_to_the_family_they_belong_to(book, per_token):
    """Gaps that may stand for several tokens are never mixed with those that do not."""
    found = Measurements(gap_counts=[1] * (len(GAP_BOUNDS) + 1), gap_sum_seconds=5.0, gaps_are_per_token=per_token)
    book.count(a_record(stream=True), found)

    series = book.series()
    used, other = ("itl_seconds", "chunk_gap_seconds") if per_token else ("chunk_gap_seconds", "itl_seconds")
    assert series[key(f"{used}_count", **POOL)] == len(GAP_BOUNDS) + 1
    assert series[key(f"{used}_bucket", **POOL, le="0.001")] == 2
    assert key(f"{other}_count", **POOL) not in series


def test_both_families_of_gaps_have_the_meters_buckets():
    """The meter counts in one set of buckets, whichever family they go to."""
    gaps = [family.bounds for family in CATALOG if family.name in {"ridgeline_itl_seconds", "ridgeline_chunk_gap_seconds"}]

    assert gaps == [GAP_BOUNDS, GAP_BOUNDS]


@pytest.mark.parametrize("reason", Rejection)
def test_rejections(book, reason):
    """Each reason of a refusal has its own count, under the model without a pool."""
    book.count(a_record(pool="none", worker=None, outcome=Outcome.REJECTED, reason=reason))

    series = book.series()
    assert series == {
        key("requests_total", model="llama", pool="none", endpoint="chat", outcome="rejected"): 1,
        key("rejections_total", model="llama", pool="none", reason=reason): 1,
    }


@pytest.mark.parametrize("phase", Phase)
def test_clients_that_left(book, phase):
    """Each phase has its own count."""
    book.count(a_record(outcome=Outcome.CLIENT_GONE, phase=phase))

    assert book.series()[key("client_gone_total", **POOL, phase=phase)] == 1


@pytest.mark.parametrize("reason", NoToken)
def test_streams_without_a_token(book, reason):
    """Each cause has its own count."""
    book.count(a_record(stream=True, no_token=reason))

    assert book.series()[key("no_token_total", **POOL, reason=reason)] == 1


def test_what_is_known_of_nobody(book):
    """A request that could not be read is counted under the unknown model, with the reason of no refusal."""
    book.count(
        RequestRecord(request_id="r", ended_unix_seconds=1.0, outcome=Outcome.CLIENT_ERROR, reason="bad_request", **FIGURES)
    )

    assert book.series() == {key("requests_total", model="unknown", pool="none", endpoint="other", outcome="client_error"): 1}


def test_slow_clients(book):
    """Streams left out of TPOT are counted."""
    book.recorder.count_slow_client()

    assert book.series() == {key("slow_client_streams_total"): 1}


TIMES = st.none() | st.just(0.0) | st.floats(0, 4000)
TOKENS = st.none() | st.integers(0, 10**6)


@st.composite
def records(draw: st.DrawFn) -> tuple[RequestRecord, Measurements | None]:
    model, pool, worker = draw(
        st.sampled_from(
            [
                ("unknown", "none", None),
                ("llama", "none", None),
                ("qwen", "none", None),
                ("llama", "short", None),
                ("llama", "short", "w-1"),
                ("llama", "long", "w-2"),
                ("qwen", "default", "w-3"),
            ]
        )
    )
    outcome = draw(st.sampled_from(Outcome))
    record = a_record(
        model=model,
        pool=pool,
        worker=worker,
        outcome=outcome,
        key=draw(st.sampled_from([None, "app-a", "app-b"])),
        endpoint=draw(st.sampled_from(["chat", "completions", "models", "other"])),
        reason=draw(st.sampled_from(Rejection)) if outcome is Outcome.REJECTED else draw(st.sampled_from([None, "x"])),
        stream=draw(st.booleans()),
        **{name: draw(TIMES) for name in FIGURES},
        **{name: draw(TOKENS) for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "estimated_prompt_tokens")},
    )
    found = draw(st.sampled_from([None, Measurements(), Measurements(gap_counts=[1] * (len(GAP_BOUNDS) + 1), faults=1)]))
    return record, found


@settings(deadline=None, max_examples=60)
@given(counted=st.lists(records(), max_size=6))
def test_nothing_is_lost_and_nothing_is_odd(a_topology, counted):
    """The sums over outcomes are the requests, per key too, and every cell is finite and no counter falls."""
    book = Book(a_topology())
    before = book.cells.tolist()
    for record, found in counted:
        book.count(record, found)
        now = book.cells.tolist()
        assert all(map(isfinite, now))
        assert all(map(ge, now, before))
        before = now

    series = book.series()
    totals = {
        name: sum(value for (each, _), value in series.items() if each == f"ridgeline_{name}")
        for name in ("requests_total", "key_requests_total", "rejections_total", "prompt_tokens_total")
    }
    assert totals == {
        "requests_total": len(counted),
        "key_requests_total": sum(record.key is not None for record, _ in counted),
        "rejections_total": sum(record.outcome is Outcome.REJECTED for record, _ in counted),
        "prompt_tokens_total": sum(record.prompt_tokens or 0 for record, _ in counted if record.pool != "none"),
    }


def test_every_family_of_the_record_is_written(book):
    """A record with every figure touches all families that serving processes write, but those of routing and the process."""
    found = Measurements(gap_counts=[1] * (len(GAP_BOUNDS) + 1), gap_sum_seconds=1.0, faults=1)
    everything = {
        "prefill_result": PrefillResult.COMPUTED,
        "prefill_leg_seconds": 0.5,
        "stream": True,
        "key": "app-a",
        "prompt_tokens": 9,
        "completion_tokens": 9,
        "cached_tokens": 3,
        "estimated_prompt_tokens": 9,
        "misroute": Misroute.TOO_SMALL,
        "count_result": CountResult.COUNTED,
        **FIGURES,
    }
    book.count(
        a_record(**everything, outcome=Outcome.REJECTED, reason=Rejection.FIT, phase=Phase.WAIT, no_token=NoToken.CUT), found
    )
    found.gaps_are_per_token = True
    book.count(a_record(**everything | {"cached_tokens": None}), found)
    book.recorder.count_slow_client()

    written = {name for name, _ in book.series()}
    elsewhere = {"routes_total", "attempts_total", "retries_refused_total", "records_dropped_total"}
    elsewhere |= {"hedges_total", "hedges_withheld_total", "hedge_wasted_seconds_total", "hedge_wasted_prompt_tokens_total"}
    elsewhere |= {"quota_requests_total", "quota_tokens_total", "quota_refusals_total"}
    for family in EXPOSED:
        if family.writer is Writer.SERVING and family.kind is not Kind.GAUGE and family.scope in Scope:
            name = family.name + ("_count" if family.kind is Kind.HISTOGRAM else "")
            assert (name in written) is (family.name.removeprefix("ridgeline_") not in elsewhere), family.name
