"""The text for Prometheus, with the parsers of its own client as the oracle."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import inf, nan

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.utils import floatToGoString

from routing.topology import Hedging, Topology
from telemetry.catalog import EXPOSED, Kind, Scope
from telemetry.exposition import OPENMETRICS_TYPE, TEXT_TYPE, Writer, bound_text, content_type
from telemetry.layout import Layout, bounds, combinations, most_series, offset, slot

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
FORMATS = pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])


def parse(text: bytes, *, openmetrics: bool = False) -> list[Metric]:
    return list((parse_openmetrics if openmetrics else parse_text)(text.decode()))


def series(families: Iterable[Metric]) -> Series:
    """Every sample by name and labels; a series that is there twice is an error."""
    found: Series = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def lines_of(family: str, page: bytes) -> bytes:
    """One family alone: reading the whole page back takes longer than writing it."""
    found = [line for line in page.splitlines(keepends=True) if family.encode() in line or line == b"# EOF\n"]
    return b"".join(found)


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def a_writer(topology: Topology) -> tuple[Writer, Layout]:
    layout = Layout.of(topology)
    return Writer(topology, layout, version="1.2.3"), layout


@FORMATS
def test_every_family_is_exported_once_and_nothing_else(a_topology, openmetrics):
    """The export has exactly the families of the catalogue, each with its help and type."""
    writer, layout = a_writer(a_topology())
    zeros = [0.0] * layout.size

    families = parse(writer.write_all([zeros], zeros, openmetrics=openmetrics), openmetrics=openmetrics)

    exported = [(family.name, family.type, family.documentation) for family in families]
    # The parsers name a counter without its suffix in both formats.
    assert exported == [(family.name.removesuffix("_total"), family.kind.value, family.help) for family in EXPOSED]


@FORMATS
def test_every_cell_reaches_the_text(a_topology, openmetrics):
    """With a different value in every cell, each value (cumulative for buckets) stands at its own series."""
    topology = a_topology()
    writer, layout = a_writer(topology)
    serving = [float(cell + 2) for cell in range(layout.size)]
    control = [value + layout.size for value in serving]

    found = series(parse(writer.write_all([serving], control, openmetrics=openmetrics), openmetrics=openmetrics))

    worker = topology.workers[2]
    base = layout.worker_base(2)
    labels = {"model": "llama", "pool": "long", "worker": worker.name}
    stale = base + slot("ridgeline_attempts_total", result="stale")
    assert found[key("ridgeline_attempts_total", **labels, result="stale")] == serving[stale]
    assert found[key("ridgeline_worker_up", **labels)] == control[base + offset("ridgeline_worker_up")]
    first = base + offset("ridgeline_worker_tpot_seconds")
    assert found[key("ridgeline_worker_tpot_seconds_bucket", **labels, le="0.02")] == sum(serving[first : first + 2])
    assert found[key("ridgeline_worker_tpot_seconds_bucket", **labels, le="+Inf")] == sum(serving[first : first + 7])
    assert found[key("ridgeline_worker_tpot_seconds_sum", **labels)] == serving[first + 7]
    route = layout.route_base(1) + slot("ridgeline_requests_total", endpoint="completions", outcome="stalled")
    route_labels = {"model": "llama", "pool": "none", "endpoint": "completions", "outcome": "stalled"}
    assert found[key("ridgeline_requests_total", **route_labels)] == serving[route]
    tokens = layout.key_base(1) + slot("ridgeline_key_tokens_total", kind="completion")
    assert found[key("ridgeline_key_tokens_total", key="app-b", kind="completion")] == serving[tokens]
    assert found[key("ridgeline_parse_errors_total")] == serving[offset("ridgeline_parse_errors_total")]
    assert found[key("ridgeline_loop_lag_seconds", process="0")] == serving[offset("ridgeline_loop_lag_seconds")]
    assert found[key("ridgeline_control_lag_seconds")] == control[offset("ridgeline_control_lag_seconds")]
    assert found[key("ridgeline_build_info", version="1.2.3")] == 1
    singles = [value for (name, _), value in found.items() if name.removesuffix("_total") in _singles()]
    assert len(set(singles)) == len(singles)


def _singles() -> set[str]:
    return {family.name.removesuffix("_total") for family in EXPOSED if family.kind is not Kind.HISTOGRAM}


def test_everything_countable_exists_at_zero(a_topology):
    """Before any process has started every counter and bucket is there at 0, and in-flight gauges too."""
    topology = a_topology()
    writer, layout = a_writer(topology)

    found = series(parse(writer.write_all([], None)))

    blocks = {family.name: len(layout.blocks(family.scope)) for family in EXPOSED}
    counters = sum(
        blocks[family.name] * sum(map(family.is_usual, combinations(family)))
        for family in EXPOSED
        if family.kind is Kind.COUNTER
    )
    counts = [value for (name, _), value in found.items() if name.endswith("_total")]
    assert counts == [0.0] * counters
    assert found[key("ridgeline_ttft_seconds_bucket", model="qwen", pool="default", le="0.25")] == 0
    assert found[key("ridgeline_in_flight_requests", model="qwen", pool="default", worker="w-3")] == 0


def test_only_pools_that_hedge_have_series_about_it(a_topology):
    """Who asks no second worker has no series that stay at 0 for ever."""
    writer, _ = a_writer(a_topology(hedging=Hedging()))

    assert b"ridgeline_hedge" not in b"".join(line for line in writer.write_all([], None).splitlines() if line[:1] != b"#")


@FORMATS
def test_unknown_gauges_are_absent(a_topology, openmetrics):
    """NaN in a gauge's cell is no series; the other workers keep theirs."""
    writer, layout = a_writer(a_topology())
    control = [0.0] * layout.size
    control[layout.worker_base(1) + offset("ridgeline_worker_waiting_requests")] = nan
    control[offset("ridgeline_control_lag_seconds")] = nan

    text = writer.write_all([None], control, openmetrics=openmetrics)
    found = series(parse(text, openmetrics=openmetrics))

    waiting = {dict(labels)["worker"] for name, labels in found if name == "ridgeline_worker_waiting_requests"}
    assert waiting == {"w-0", "w-2", "w-3"}
    assert key("ridgeline_control_lag_seconds") not in found
    assert not any(name == "ridgeline_loop_lag_seconds" for name, _ in found)
    assert b"NaN" not in text


def test_without_control_its_gauges_are_unknown(a_topology):
    """No control array: its counters are at 0, its gauges absent."""
    writer, layout = a_writer(a_topology())

    names = {name for name, _ in series(parse(writer.write_all([[0.0] * layout.size], None)))}

    assert "ridgeline_scrape_failures_total" in names
    assert "ridgeline_worker_up" not in names


def test_processes_are_summed(a_topology):
    """Counters, buckets, sums and in-flight work are totals over all serving processes; a missing one adds nothing."""
    writer, layout = a_writer(a_topology())
    arrays = [[float(factor)] * layout.size for factor in (1, 10, 100)]

    found = series(parse(writer.write_all([arrays[0], None, arrays[1], arrays[2]], None)))

    labels = {"model": "llama", "pool": "short"}
    buckets = len(bounds("ridgeline_tpot_seconds")) + 1
    assert found[key("ridgeline_prompt_tokens_total", **labels)] == 111
    assert found[key("ridgeline_in_flight_tokens", **labels, worker="w-0")] == 111
    assert found[key("ridgeline_tpot_seconds_bucket", **labels, le="0.0005")] == 111
    assert found[key("ridgeline_tpot_seconds_count", **labels)] == 111 * buckets
    assert found[key("ridgeline_tpot_seconds_sum", **labels)] == 111


def test_loop_lag_is_told_apart_by_process(a_topology):
    """A lag is never summed: each process has its own series, under its slot."""
    writer, layout = a_writer(a_topology())
    arrays = [[0.5] * layout.size, None, [0.25] * layout.size]

    found = series(parse(writer.write_all(arrays, None)))

    lags = {labels: value for (name, labels), value in found.items() if name == "ridgeline_loop_lag_seconds"}
    assert lags == {frozenset({("process", "0")}): 0.5, frozenset({("process", "2")}): 0.25}


@FORMATS
@given(observed=st.lists(st.floats(min_value=0, max_value=1e6) | st.sampled_from(bounds("ridgeline_e2e_seconds")), max_size=50))
def test_histogram_agrees_with_its_observations(a_topology, openmetrics, observed):
    """Each bucket counts what is at most its bound, `_count` is the +Inf bucket, and `_sum` is the sum."""
    writer, layout = a_writer(a_topology(pools=(("m", "p", ("w",)),), keys=()))
    array = [0.0] * layout.size
    limits = bounds("ridgeline_e2e_seconds")
    first = layout.pool_base(0) + slot("ridgeline_e2e_seconds", endpoint="completions")
    for value in observed:
        array[first + bisect_left(limits, value)] += 1
        array[first + len(limits) + 1] += value

    page = writer.write_all([array], None, openmetrics=openmetrics)
    found = series(parse(lines_of("ridgeline_e2e_seconds", page), openmetrics=openmetrics))

    labels = {"model": "m", "pool": "p", "endpoint": "completions"}
    for bound in (*limits, inf):
        bucket = key("ridgeline_e2e_seconds_bucket", **labels, le=floatToGoString(bound))
        assert found[bucket] == sum(value <= bound for value in observed)
    assert found[key("ridgeline_e2e_seconds_count", **labels)] == len(observed)
    assert found[key("ridgeline_e2e_seconds_sum", **labels)] == array[first + len(limits) + 1]


def test_every_histogram_counts_what_is_in_its_last_bucket(a_topology):
    """For every histogram and every label set `_count` equals the +Inf bucket and buckets never fall."""
    writer, layout = a_writer(a_topology())

    families = parse(writer.write_all([[float(cell % 7) for cell in range(layout.size)]], None))

    for family in families:
        last: dict[frozenset[tuple[str, str]], float] = {}
        for sample in family.samples:
            labels = frozenset((name, value) for name, value in sample.labels.items() if name != "le")
            if sample.name.endswith("_bucket"):
                assert sample.value >= last.get(labels, 0)
                last[labels] = sample.value
            elif family.type == "histogram" and sample.name.endswith("_count"):
                assert sample.value == last[labels]


@given(value=st.floats(allow_nan=False) | st.integers(-(2**60), 2**60).map(float))
def test_numbers_read_back_as_they_were(a_topology, value):
    """Every float survives the text; whole numbers that are exact are written without point and exponent."""
    writer, layout = a_writer(a_topology(pools=(("m", "p", ("w",)),), keys=()))
    control = [value] * layout.size

    text = writer.write_all([], control)

    [line] = [line for line in text.decode().splitlines() if line.startswith("ridgeline_control_lag_seconds ")]
    written = line.split(" ")[1]
    assert float(written) == value
    if value.is_integer() and abs(value) <= 2**53:
        assert written.lstrip("-").isdigit()


@pytest.mark.parametrize(("value", "written"), [(inf, "+Inf"), (-inf, "-Inf"), (1e300, "1e+300"), (-0.0, "0"), (0.1, "0.1")])
def test_odd_numbers_are_spelt_as_prometheus_does(a_topology, value, written):
    """Infinities carry their sign, and the shortest text is used."""
    writer, layout = a_writer(a_topology())

    assert f"ridgeline_control_lag_seconds {written}\n".encode() in writer.write_all([], [value] * layout.size)


@pytest.mark.parametrize("bound", sorted({bound for family in EXPOSED for bound in (*family.bounds, inf, 1e6, 1e7, 1.5e15)}))
def test_bounds_are_written_as_by_the_usual_client(bound):
    """`le` is matched as text in queries and must be what Prometheus' own client writes."""
    assert bound_text(bound) == floatToGoString(bound)


@FORMATS
@settings(max_examples=25)  # of four names each; a whole page is written and read back for every one
@example(names=['"', "\\", "\n", "{} ,=#"])
@example(names=['\\"', "\\\\n", 'a="b"}', ""])
@given(
    names=st.lists(
        st.text(alphabet=st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n{},= #'), max_size=20),
        min_size=4,
        max_size=4,
        unique=True,
    )
)
def test_any_name_survives_as_a_label(a_topology, openmetrics, names):
    """Quotes, backslashes, newlines and everything else in a name come back from the parser as they were."""
    model, pool, worker, api_key = names
    writer, layout = a_writer(a_topology(pools=((model, pool, (worker,)),), keys=(api_key,)))
    array = [1.0] * layout.size

    found = series(parse(writer.write_all([array], array, openmetrics=openmetrics), openmetrics=openmetrics))

    assert found[key("ridgeline_worker_up", model=model, pool=pool, worker=worker)] == 1
    assert found[key("ridgeline_ttft_seconds_bucket", model=model, pool=pool, le="0.0005")] == 1
    assert found[key("ridgeline_key_requests_total", key=api_key, outcome="ok")] == 1


def test_half_a_surrogate_pair_does_not_break_the_text(a_topology):
    """A name that UTF-8 cannot hold is shown with a question mark, and all other families are there."""
    writer, _ = a_writer(a_topology(pools=(("m\ud83d", "p", ("w",)),)))

    assert len(parse(writer.write_all([], None))) == len(EXPOSED)


@FORMATS
def test_a_large_fleet_stays_in_budget_and_comes_in_small_pieces(a_topology, openmetrics):
    """600 workers in 30 pools with 20 keys without quotas take under 50,000 series, and no piece holds much of them."""
    pools = tuple((f"m-{at // 2}", f"p-{at % 2}", tuple(f"w-{at * 20 + of}" for of in range(20))) for at in range(30))
    a_fleet = a_topology(pools=pools, keys=tuple(f"k-{at}" for at in range(20)), quota=None, hedging=Hedging())
    writer, layout = a_writer(a_fleet)
    zeros = [0.0] * layout.size
    control = list(zeros)
    for base in layout.blocks(Scope.WORKER):  # each is left out, and for one reason
        first = base + offset("ridgeline_worker_left_out")
        control[first : first + 4] = [1.0, nan, nan, nan]

    pieces = list(writer.write([zeros] * 4, control, openmetrics=openmetrics))

    lines = [[line for line in piece.splitlines() if not line.startswith(b"#")] for piece in pieces]
    assert sum(map(len, lines)) == most_series(layout, 4, a_fleet) < 50_000
    assert max(map(len, lines)) <= 1300
    assert all(pieces)


@FORMATS
def test_what_cannot_occur_is_there_once_it_was_counted(a_topology, openmetrics):
    """Reasons that a policy cannot give are no series, unless one was counted all the same."""
    writer, layout = a_writer(a_topology())
    zeros = [0.0] * layout.size
    odd = layout.pool_base(0) + slot("ridgeline_routes_total", policy="round-robin", reason="affinity")

    def routes() -> set[tuple[str, str]]:
        page = lines_of("ridgeline_routes_total", writer.write_all([zeros], zeros, openmetrics=openmetrics))
        samples = series(parse(page, openmetrics=openmetrics))
        return {(labels["policy"], labels["reason"]) for _, pairs in samples for labels in [dict(pairs)]}

    assert ("round-robin", "affinity") not in routes()
    assert {("round-robin", "turn"), ("fastest", "retry")} <= routes()
    zeros[odd] = 1.0
    assert ("round-robin", "affinity") in routes()


def test_openmetrics_ends_as_it_must(a_topology):
    """OpenMetrics has its end marker as the last line, the text format has none."""
    writer, _ = a_writer(a_topology())

    assert writer.write_all([], None, openmetrics=True).endswith(b"\n# EOF\n")
    assert b"# EOF" not in writer.write_all([], None)


PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        ("application/openmetrics-text", True),
        ('Application/OpenMetrics-Text; version="1.0.0"', True),
        ("application/openmetrics-text; version=1.0.0, */*", True),
        ("text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5", False),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=much", False),
        ("application/openmetrics-text;q=nan", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("*/*", False),
        (";;,=,;q=", False),
        ("", False),
        (None, False),
    ],
)
def test_format_follows_the_accept_header(accept, openmetrics):
    """OpenMetrics for those who name it and rank it no lower than text; text for everybody else."""
    assert content_type(accept) == (openmetrics, OPENMETRICS_TYPE if openmetrics else TEXT_TYPE)
