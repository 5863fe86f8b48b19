"""What other load tools say is read as they mean it, and stands beside the probe's."""

from __future__ import annotations

import json

import pytest

from benchmarks.load_tools import Found, aiperf_answers, found_of, guidellm_answers, table_of


def test_aiperf_speaks_of_milliseconds() -> None:
    """Instants in nanoseconds, TTFT and what it calls inter-token latency in milliseconds."""
    line = {
        "metadata": {"request_start_ns": 100_000_000_000, "request_end_ns": 101_200_000_000},
        "metrics": {
            "time_to_first_token": {"value": 121.0, "unit": "ms"},
            "inter_token_latency": {"value": 8.0, "unit": "ms"},
            "usage_completion_tokens": {"value": 128, "unit": "tokens"},
        },
    }

    (found,) = aiperf_answers(json.dumps(line).encode() + b"\n")

    assert (found.sent_at, found.ended_at, found.completion_tokens) == (100.0, 101.2, 128)
    assert found.ttft_seconds == pytest.approx(0.121)
    assert found.tpot_seconds == pytest.approx(0.008)


def test_guidellm_is_read_by_its_requests() -> None:
    """Only those count that ran while all streams did, as of the probe's own."""
    requests = [
        {
            "request_start_time": 100.0 + at,
            "request_end_time": 101.0 + at,
            "time_to_first_token_ms": 30.0 + 10 * at,
            "inter_token_latency_ms": 8.0 + at,
            "time_per_output_token_ms": 99.0,
            "output_tokens": 100,
        }
        for at in (0, 0.5, 1, 1.5)
    ]
    answers = guidellm_answers(json.dumps({"benchmarks": [{"requests": {"successful": requests}}]}).encode())

    found = found_of(answers, 2)

    assert (found.ttft_seconds, found.tpot_seconds) == pytest.approx((0.0375, 0.00875))
    with pytest.raises(RuntimeError, match="never were 3 requests under way"):
        found_of(answers, 3)


def test_each_tool_stands_beside_the_probe() -> None:
    """Medians of the rounds, with the difference to the probe's at the same number of requests."""
    ours, theirs = Found(ttft_seconds=0.05, tpot_seconds=0.01, tokens_per_second=400.0), Found(0.055, 0.0099, 404.0)
    late = Found(ttft_seconds=9.0, tpot_seconds=9.0, tokens_per_second=1.0)
    found = {(4, "ridgeline probe"): [ours, late, ours], (4, "aiperf"): [theirs, theirs, late]}

    assert [line.strip() for line in table_of(found)][2:] == [
        "| 4 | ridgeline probe | 50.0 ms | 10.00 ms | 400 |",
        "| 4 | aiperf | 55.0 ms (+10%) | 9.90 ms (-1%) | 404 (+1%) |",
    ]
