"""What came of requests, summed up."""

from __future__ import annotations

import pytest

from simulator.virtual.served import Quantiles, Served, quantiles, summarise


def a_request(**fields: object) -> Served:
    plain: dict[str, object] = {
        "kind": "chat",
        "session": 0,
        "worker": 0,
        "rank": 0,
        "arrived_at": 1.0,
        "first_token_at": 1.5,
        "ended_at": 3.5,
        "prompt_tokens": 100,
        "cached_tokens": 64,
        "completion_tokens": 5,
        "preemptions": 0,
    }
    return Served(**(plain | fields))  # type: ignore[arg-type]


def test_a_request_has_its_times():
    """TTFT is from arrival to the first token, TPOT the mean of the steps after it, E2E all of it."""
    assert (a_request().ttft_seconds, a_request().tpot_seconds, a_request().e2e_seconds) == (0.5, 0.5, 2.5)


def test_what_did_not_happen_has_no_time():
    """One token has no TPOT; who never got a token has no TTFT; who did not end has neither TPOT nor E2E."""
    unfinished = a_request(ended_at=None, completion_tokens=0)
    refused = a_request(worker=None, first_token_at=None, ended_at=None, completion_tokens=0)

    assert a_request(completion_tokens=1).tpot_seconds is None
    assert (unfinished.ttft_seconds, unfinished.tpot_seconds, unfinished.e2e_seconds) == (0.5, None, None)
    assert (refused.ttft_seconds, refused.tpot_seconds, refused.e2e_seconds) == (None, None, None)


def test_quantiles_lie_between_neighbours():
    """Quantiles are linear between the two nearest values, and unknown values do not count."""
    values = [None, *map(float, range(101)), None]

    assert quantiles(reversed(values)) == Quantiles(p50=50.0, p90=90.0, p99=99.0, mean=50.0)
    assert quantiles([1.0, 2.0]).p50 == 1.5
    assert quantiles([7.0]) == Quantiles(p50=7.0, p90=7.0, p99=7.0, mean=7.0)
    assert quantiles([None]) == Quantiles(p50=None, p90=None, p99=None, mean=None)


def test_a_summary_adds_up():
    """Counts, tokens, hit share and throughput are those of what was completed; refused ones are counted."""
    summary = summarise(
        [
            a_request(),
            a_request(arrived_at=2.0, first_token_at=2.1, ended_at=6.0, cached_tokens=0, completion_tokens=15, preemptions=2),
            a_request(worker=None, first_token_at=None, ended_at=None, completion_tokens=0),
        ]
    )

    assert (summary.requests, summary.completed, summary.refused, summary.preemptions) == (3, 2, 1, 2)
    assert (summary.prompt_tokens, summary.completion_tokens, summary.cached_ratio) == (200, 20, 0.32)
    assert (summary.seconds, summary.completion_tokens_per_second, summary.requests_per_second) == (5.0, 4.0, 0.4)
    assert summary.ttft_seconds.p50 == pytest.approx(0.3)


def test_nothing_has_no_figures():
    """Without a completed request there are no quantiles, no hit share and no throughput."""
    summary = summarise([a_request(worker=None, first_token_at=None, ended_at=None, completion_tokens=0)])

    assert (summary.cached_ratio, summary.seconds, summary.completion_tokens_per_second, summary.requests_per_second) == (
        None,
        0.0,
        0.0,
        0.0,
    )
