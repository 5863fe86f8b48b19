"""How many requests may be tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.retry_budget import WINDOW_SECONDS, RetryBudget, backoff_seconds


def test_a_quiet_gateway_may_retry() -> None:
    """The first request of all may be sent twice; the floor is used up by as many as its seconds allow."""
    budget = RetryBudget(0.0, 0.5, 100.0)

    assert [budget.take(100.0) for _ in range(7)] == [True] * 5 + [False] * 2


def test_the_floor_comes_back_with_time() -> None:
    """What was spent is forgotten, so later requests may be tried again."""
    budget = RetryBudget(0.0, 0.5, 0.0)
    assert [budget.take(0.0) for _ in range(6)][-1] is False

    assert budget.take(3 * WINDOW_SECONDS)


def test_without_ratio_and_floor_nothing_is_tried_again() -> None:
    """Zero means none, however many requests there are."""
    budget = RetryBudget(0.0, 0.0, 0.0)
    budget.requests += 1_000_000

    assert not budget.take(1.0)


@pytest.mark.parametrize("per_second", [10, 200])
@pytest.mark.parametrize("ratio", [0.1, 0.2, 1.0])
def test_when_every_request_fails_the_share_is_kept(per_second: int, ratio: float) -> None:
    """Over a minute in which each request asks for a retry, retries are the ratio of the requests, and the floor."""
    budget = RetryBudget(ratio, 1.0, 0.0)
    taken = 0
    for number in range(60 * per_second):
        budget.requests += 1
        taken += budget.take(number / per_second)

    allowed = 60 * (ratio * per_second + 1.0)
    burst = WINDOW_SECONDS * (1.0 + ratio * per_second)
    assert 0.75 * allowed <= taken <= allowed + burst


def test_requests_of_long_ago_earn_nothing() -> None:
    """A busy hour does not pay for a storm of retries after it: what counts is the rate at which requests came."""
    budget = RetryBudget(0.2, 0.0, 0.0)
    budget.requests += 3_600 * 10  # 10 a second
    now = 3_600.0

    assert sum(budget.take(now) for _ in range(1000)) == int(0.2 * 10 * WINDOW_SECONDS)


def test_after_silence_nothing_is_left() -> None:
    """Requests before a long pause are not recent."""
    budget = RetryBudget(0.2, 0.0, 0.0)
    budget.requests += 1000
    budget.take(1.0)

    assert not budget.take(1.0 + 20 * WINDOW_SECONDS)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 50)), max_size=60))
def test_never_more_than_earned(steps: list[tuple[float, int]]) -> None:
    """Whatever the order, retries stay within ratio and floor of all that came; a clock that stands still changes nothing."""
    budget = RetryBudget(0.2, 1.0, 0.0)
    now, requests, taken = 0.0, 0, 0
    for passed, arrived in steps:
        now += passed
        budget.requests += arrived
        requests += arrived
        taken += budget.take(now)

    assert taken <= 0.2 * requests + 1.0 * now + WINDOW_SECONDS + 1


@pytest.mark.parametrize(
    ("busy", "draw", "expected"), [(0, 1.0, 0.0), (1, 1.0, 0.0), (2, 1.0, 0.25), (2, 0.0, 0.0), (3, 1.0, 0.5), (4, 0.5, 0.5)]
)
def test_the_first_other_worker_is_asked_at_once(busy: int, draw: float, expected: float) -> None:
    """After the first refusal there is no wait; after later ones up to a bound that doubles, drawn from nought on."""
    assert backoff_seconds(0.25, busy, draw) == expected


def test_the_bound_stays_finite() -> None:
    """However many are busy."""
    assert backoff_seconds(0.25, 5000, 1.0) == 0.25 * 2**10
