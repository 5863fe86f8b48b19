"""The line about a gateway."""

from __future__ import annotations

import pytest

from simulator.summary import NAMES, Reading, read_page, summary_line
from telemetry.catalog import CATALOG

PAGE = """\
# HELP ridgeline_requests_total Requests that ended.
# TYPE ridgeline_requests_total counter
ridgeline_requests_total{model="m",pool="short",outcome="ok"} 7
ridgeline_requests_total{model="m",pool="long",outcome="client_gone"} 3
# TYPE ridgeline_ttft_seconds histogram
ridgeline_ttft_seconds_bucket{pool="short",le="+Inf"} 4
ridgeline_ttft_seconds_count{pool="short"} 4
ridgeline_ttft_seconds_sum{pool="short"} 0.5
# TYPE ridgeline_tpot_seconds histogram
ridgeline_tpot_seconds_bucket{pool="short",le="+Inf"} 2
ridgeline_tpot_seconds_count{pool="short"} 2
ridgeline_tpot_seconds_sum{pool="short"} 0.017
# TYPE ridgeline_cached_tokens_total counter
ridgeline_cached_tokens_total{pool="short"} 600
# TYPE ridgeline_cache_known_prompt_tokens_total counter
ridgeline_cache_known_prompt_tokens_total{pool="short"} 1000
"""


def test_a_page_is_summed_over_its_labels():
    """Every figure is the sum over pools and outcomes."""
    assert read_page(PAGE) == Reading(
        requests=10,
        cached_tokens=600,
        cache_known_prompt_tokens=1000,
        ttft_seconds=0.5,
        ttft_count=4,
        tpot_seconds=0.017,
        tpot_count=2,
    )


def test_the_line_is_about_the_time_since_the_last_one():
    """Means and shares are of what was added; the requests are told in all and added."""
    before = Reading(requests=6, ttft_seconds=0.1, ttft_count=2, cached_tokens=100, cache_known_prompt_tokens=500)

    assert summary_line(read_page(PAGE), before) == (
        "requests 10 (+4)   mean ttft 200 ms   mean tpot 8.5 ms   cache hits 100% of prompt tokens"
    )


def test_what_is_unknown_is_a_dash():
    """Without a stream or a reported cache there is no mean and no share."""
    assert summary_line(Reading(), Reading()) == "requests 0 (+0)   mean ttft -   mean tpot -   cache hits -"


def test_the_families_exist():
    """The names that are looked at are in the catalogue."""
    assert {family.name for family in CATALOG} >= NAMES


def test_what_is_no_page_is_an_error():
    """Another text is refused and not read as zeros."""
    with pytest.raises(ValueError, match=r".+"):
        read_page("<html>{\n")
