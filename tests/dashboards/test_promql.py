"""The lint finds what is wrong with a query, and nothing in one that is right."""

from __future__ import annotations

import pytest

from dashboards.grafana import words
from tests.dashboards.promql import families_in, faults, substituted

WRONG = {
    "sum(": "does not parse",
    "ridgeline_ttft_second_count": "no such metric",
    "rate(ridgeline_requests[1m])": "no such metric",  # a counter without its suffix never has data
    "ridgeline_requests_total": "is a counter and not rated",
    "sum(ridgeline_ttft_seconds_sum) / sum(ridgeline_ttft_seconds_count)": "is a counter and not rated",
    "rate(ridgeline_ttft_seconds[1m])": "its series are _bucket, _sum and _count",
    "rate(ridgeline_worker_up[1m])": "is a gauge and rated",
    'ridgeline_queued_requests{worker="a"}': "has no label worker",
    'rate(ridgeline_requests_total{outcome="fine"}[1m])': "has no outcome=fine",
    'rate(ridgeline_requests_total{outcome=~"ok|fine"}[1m])': "has no outcome=fine",
    'rate(ridgeline_requests_total{outcome!~"ok|fine"}[1m])': "has no outcome=fine",
    'rate(ridgeline_ttft_seconds_bucket{le="1"}[1m])': 'has no bound le="1"',  # it is written 1.0
    "sum by (key) (ridgeline_queued_requests)": "sum by key, which nothing below has",
    "histogram_quantile(0.99, sum by (pool) (rate(ridgeline_ttft_seconds_bucket[1m])))": "not sum by (le, …)",
    "histogram_quantile(0.99, sum without (le) (rate(ridgeline_ttft_seconds_bucket[1m])))": "not sum by (le, …)",
}


@pytest.mark.parametrize(("expr", "words_found"), WRONG.items())
def test_what_is_wrong_is_named(expr: str, words_found: str):
    """Each kind of mistake that leaves a panel empty or an alert silent."""
    assert words_found in " ".join(faults(expr))


@pytest.mark.parametrize(
    "expr",
    [
        words.quantile(0.99, "ridgeline_ttft_seconds", "pool"),
        words.mean("ridgeline_tpot_seconds"),
        words.share_upto(0.5, "ridgeline_ttft_seconds"),
        words.hit_share("model", "pool"),
        words.failed_share(),
        "absent(ridgeline_requests_total)",
        'count by (version) (ridgeline_build_info{version="0.1.0"})',
        "sum by (instance, process) (ridgeline_loop_lag_seconds)",
        "1000 * ALERTS_FOR_STATE and ignoring (alertstate) ALERTS",
        "changes(ridgeline_worker_up[10m])",
    ],
)
def test_what_is_right_passes(expr: str):
    """What dashboards are made of, and what may be asked of a counter that is not rated."""
    assert faults(expr) == []


def test_other_series_are_known_when_they_are_named():
    """A recorded series or one of an exporter is no mistake where the caller knows it."""
    assert faults("sum by (Hostname) (DCGM_FI_DEV_GPU_UTIL)")
    assert faults("sum by (Hostname) (DCGM_FI_DEV_GPU_UTIL)", {"DCGM_FI_DEV_GPU_UTIL": frozenset({"Hostname"})}) == []
    assert faults("sum by (host) (DCGM_FI_DEV_GPU_UTIL)", {"DCGM_FI_DEV_GPU_UTIL": frozenset({"Hostname"})})


def test_variables_are_filled_in():
    """Durations become durations, a choice what was chosen, and everything else everything."""
    expr = 'rate(a{model=~"$model",pool=~"${pool}"}[$__rate_interval])'

    assert substituted(expr, pool="short") == 'rate(a{model=~".*",pool=~"short"}[1m])'


def test_families_are_found_by_their_series():
    """Buckets, sums and counts are of one family."""
    assert families_in(words.mean("ridgeline_tpot_seconds")) == {"ridgeline_tpot_seconds"}
