"""Who has more than their share when everybody's requests count."""

from __future__ import annotations

import pytest

from routing.crowding import crowding, others_of


@pytest.mark.parametrize(
    ("running", "waiting", "own", "others"),
    [(7.0, 2.0, 4.0, 5.0), (7.0, None, 4.0, 3.0), (3.0, 0.0, 4.0, 0.0), (None, 5.0, 0.0, None)],
)
def test_what_is_not_ours_is_others(running, waiting, own, others):
    """What a worker has running and waiting less what we have there, never below 0: some of ours it has not begun."""
    assert others_of(running, waiting, own) == others


def test_above_the_share_of_all_gateways_is_crowded():
    """The share is 1.25 times the mean and two usual requests."""
    #        totals 1000, 1000, 7000; mean 3000, share 3750 + 200
    assert crowding([1000.0, 0.0, 1000.0], [0.0, 10.0, 60.0], 100.0) == [0.0, 0.0, 3050.0]


def test_what_this_gateway_has_sent_itself_is_no_reason():
    """Alone it knows every request: what comes and goes while a page is on its way makes nobody crowded."""
    assert crowding([90_000.0, 0.0, 0.0], [1.0, 0.0, 2.0], 1000.0) == [0.0, 0.0, 0.0]
    assert crowding([90_000.0, 0.0, 0.0], [0.0, 9.0, 9.0], 1000.0) == [90_000.0 - 1.25 * 36_000.0 - 2000.0, 0.0, 0.0]


def test_a_worker_of_which_nothing_is_known_is_left_out():
    """It is not crowded and does not count in the mean, though this gateway has much there."""
    assert crowding([50_000.0, 0.0, 0.0], [None, 50.0, 10.0], 100.0) == [0.0, 5000.0 - 3750.0 - 200.0, 0.0]
    assert crowding([5.0, 5.0], [None, None], 100.0) == [0.0, 0.0]
    assert crowding([], [], 100.0) == []
    assert crowding([0.0, 0.0], [0.0, 0.0], 0.0) == [0.0, 0.0]
