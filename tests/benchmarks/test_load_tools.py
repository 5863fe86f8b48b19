"""What other load tools say is read as they mean it, and stands beside the probe's."""

from __future__ import annotations

import json

import pytest

from benchmarks.load_tools import Found, aiperf_figures, guidellm_figures, table_of


def test_aiperf_speaks_of_milliseconds() -> None:
    """The median of TTFT, and the mean over requests of what it calls inter-token latency."""
    export = {
        "time_to_first_token": {"unit": "ms", "avg": 120.0, "p50": 121.0},
        "inter_token_latency": {"unit": "ms", "avg": 8.5, "p50": 8.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 423.0},
    }

    found = aiperf_figures(json.dumps(export).encode())

    assert found == Found(ttft_seconds=0.121, tpot_seconds=pytest.approx(0.0085), tokens_per_second=423.0)  # type: ignore[arg-type]


def test_guidellm_is_read_by_its_requests() -> None:
    """Throughput is over the time from the first request to the end of the last."""
    requests = [
        {
            "request_start_time": 100.0 + at,
            "request_end_time": 102.0 + at,
            "time_to_first_token_ms": 30.0 + 10 * at,
            "inter_token_latency_ms": 8.0 + at,
            "time_per_output_token_ms": 99.0,
            "output_tokens": 128,
        }
        for at in range(3)
    ]
    found = guidellm_figures(json.dumps({"benchmarks": [{"requests": {"successful": requests}}]}).encode())

    assert found == Found(ttft_seconds=0.04, tpot_seconds=0.009, tokens_per_second=3 * 128 / 4.0)


def test_each_tool_stands_beside_the_probe() -> None:
    """Medians of the rounds, with the difference to the probe's at the same number of requests."""
    ours, theirs = Found(ttft_seconds=0.05, tpot_seconds=0.01, tokens_per_second=400.0), Found(0.055, 0.0099, 404.0)
    late = Found(ttft_seconds=9.0, tpot_seconds=9.0, tokens_per_second=1.0)
    found = {(4, "ridgeline probe"): [ours, late, ours], (4, "aiperf"): [theirs, theirs, late]}

    assert [line.strip() for line in table_of(found)][2:] == [
        "| 4 | ridgeline probe | 50.0 ms | 10.00 ms | 400 |",
        "| 4 | aiperf | 55.0 ms (+10%) | 9.90 ms (-1%) | 404 (+1%) |",
    ]
