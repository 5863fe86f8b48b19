"""The last hour, from counters."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.live.hour import MINUTES, Hour, histogram_quantile
from telemetry.layout import Layout, bounds, slot
from telemetry.points import Snapshot
from tests.proxy.fleets import a_topology

TWO = a_topology({"default": ["w-0", "w-1"]})
LAYOUT = Layout.of(TWO)
ROUTE, POOL = LAYOUT.route_base(TWO.routes.index(("m", "default"))), LAYOUT.pool_base(0)


class Counters:
    """A serving process' array and control's."""

    def __init__(self) -> None:
        self.cells, self.control = [0.0] * LAYOUT.size, [0.0] * LAYOUT.size

    def request(self, outcome: str = "ok", ttft: int = 0) -> None:
        self.cells[ROUTE + slot("ridgeline_requests_total", endpoint="chat", outcome=outcome)] += 1
        self.cells[POOL + slot("ridgeline_ttft_seconds") + ttft] += 1

    def tokens(self, cached: int, known: int) -> None:
        self.cells[POOL + slot("ridgeline_cached_tokens_total")] += cached
        self.cells[POOL + slot("ridgeline_cache_known_prompt_tokens_total")] += known

    def deviation(self) -> None:
        self.control[POOL + slot("ridgeline_deviations_total", figure="e2e", cause="unexplained")] += 1

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(TWO, (self.cells, None), self.control, "1")


def test_a_minute_is_what_counters_grew_by() -> None:
    """What was there before the first look belongs to no minute; the minute that is not over is shown as far as it is."""
    hour, counters = Hour(), Counters()
    counters.request()
    assert hour.look(counters.snapshot, 30.0)
    counters.request(ttft=12)
    counters.request("truncated", ttft=12)
    counters.request("client_gone", ttft=12)
    counters.tokens(300, 400)
    counters.deviation()
    assert not hour.look(counters.snapshot, 59.9)
    assert hour.look(counters.snapshot, 60.0)
    counters.request()

    whole, current = hour.view(counters.snapshot)["m", "default"]

    assert (whole.begins_unix_seconds, whole.requests, whole.failed, whole.deviations) == (0.0, 3, 1, 1)
    assert whole.hit_ratio == 0.75
    lower, upper = bounds("ridgeline_ttft_seconds")[11:13]
    assert whole.ttft_p50_seconds is not None
    assert lower < whole.ttft_p50_seconds < upper
    assert (current.begins_unix_seconds, current.requests, current.hit_ratio, current.tpot_p50_seconds) == (60.0, 1, None, None)
    assert (whole.is_over, current.is_over) == (True, False)
    assert list(hour.of("m", "default")) == [whole]


def test_the_hour_is_bounded() -> None:
    """Older minutes go, and so do pools that are gone."""
    hour, counters = Hour(), Counters()
    for minute in range(MINUTES + 10):
        hour.look(counters.snapshot, 60.0 * minute)
    assert len(hour.of("m", "default")) == MINUTES

    other = a_topology({"other": ["w-0"]})
    hour.look(Snapshot(other, ([0.0] * Layout.of(other).size,), None, "1"), 1e6)

    assert list(hour.of("m", "default")) == []


def test_a_process_that_is_away_takes_nothing_back() -> None:
    """Counters that cannot be read for a while make an empty minute and no negative one."""
    hour, counters = Hour(), Counters()
    counters.request()
    hour.look(counters.snapshot, 0.0)
    hour.look(Snapshot(TWO, (None, None), None, "1"), 60.0)

    assert [minute.requests for minute in hour.of("m", "default")] == [0]


@given(st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(sum), st.floats(0.01, 1.0))
def test_quantiles_are_those_of_prometheus(counts: list[int], share: float) -> None:
    """The same interpolation as its histogram_quantile, so that page and dashboards agree."""
    upper = (0.1, 0.2, 0.5)
    cumulative = list(accumulate(counts))
    rank = share * cumulative[-1]
    bucket = next(index for index, value in enumerate(cumulative) if value >= rank and counts[index])

    found = histogram_quantile(upper, counts, share)

    if bucket == 3:
        assert found == 0.5
    else:
        start, before = (upper[bucket - 1], cumulative[bucket - 1]) if bucket else (0.0, 0)
        assert found == pytest.approx(start + (upper[bucket] - start) * (rank - before) / counts[bucket])


def test_nothing_has_no_quantile() -> None:
    """It is unknown, not 0."""
    assert histogram_quantile((1.0,), (0, 0), 0.5) is None
