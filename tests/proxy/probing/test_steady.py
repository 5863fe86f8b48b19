"""Requests kept under way: what counts of them."""

from __future__ import annotations

import pytest

from proxy.probing.answer import Answer, failed
from proxy.probing.steady import full_span, steady_of
from tests.proxy.probing.bursts import an_answer


def one_at(sent_at: float, ttft: float = 0.2) -> Answer:
    """Of 1 s: 0.2 s to the first of 9 tokens, the others in 0.8 s."""
    return an_answer(ttft, (1.0 - ttft) / 8, 512, 9, sent_at=sent_at)


def test_only_what_was_sent_and_answered_under_full_load_counts() -> None:
    """The first request found nobody, and the last was left alone; tokens count as far as they came in that time."""
    streams = [one_at(0.0, ttft=0.1), one_at(1.0), one_at(2.0), one_at(3.0), one_at(1.5), one_at(2.5), one_at(3.5, ttft=0.9)]

    assert full_span(streams, 2) == (1.5, 4.0)
    found = steady_of(streams, 2)
    assert (found.counted, found.errors) == (4, 0)
    assert found.ttft_seconds == pytest.approx(0.2)
    assert found.tpot_seconds == pytest.approx(0.1)
    assert (found.prompt_tokens, found.output_tokens) == (512, 9)
    whole, of_the_second = 4 * 9, 9 * 0.5 / 0.8  # the last one's first token came after its time
    assert found.tokens_per_second == pytest.approx((whole + of_the_second) / 2.5)


def test_a_moment_between_two_requests_does_not_end_the_load() -> None:
    """A stream needs some milliseconds to send its next one."""
    assert full_span([one_at(0.0), one_at(1.002), one_at(0.5), one_at(1.502)], 2) == (0.5, pytest.approx(2.002))


def test_a_load_that_never_was_or_broke_has_no_figures() -> None:
    """Fewer under way than wanted; or one that failed, which left the others more of the worker."""
    apart = steady_of([one_at(0.0), one_at(5.0)], 2)
    broken = steady_of([one_at(0.0), one_at(0.5), one_at(1.0), failed(1.5, 1.6, "status 500")], 2)

    for found in (apart, broken):
        assert (found.counted, found.ttft_seconds, found.tpot_seconds, found.tokens_per_second) == (0, None, None, None)
    assert (apart.errors, broken.errors) == (0, 1)
