"""Workers that are left out, tried again and brought back."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from routing.health import WINDOW_SECONDS, Condition, FleetHealth
from tests.routing.fleets import RULES, a_fleet, fail, look, the_topology
from tests.routing.topologies import a_model, a_pool, a_topology


def test_failures_in_a_row_take_a_worker_out() -> None:
    """One fewer does not; the others stay."""
    fleet = a_fleet()
    fail(fleet, 4)
    assert not fleet.avoided

    fail(fleet, 1)

    assert fleet.avoided == {0}
    assert fleet.condition(fleet.workers["w-0"]) is Condition.ERRORS


def test_a_success_ends_the_row() -> None:
    """Failures between successes are judged by their share only."""
    fleet = a_fleet()
    for _ in range(3):
        fail(fleet, 4)
        fleet.succeeded("w-0")

    assert not fleet.avoided


def test_a_share_of_failures_takes_a_worker_out() -> None:
    """Half of twenty requests are enough although every failure is followed by a success."""
    fleet = a_fleet()
    for number in range(10):
        assert not fleet.avoided, number
        fleet.succeeded("w-0")
        fail(fleet, 1)

    assert fleet.avoided == {0}


def test_failures_of_long_ago_do_not_count() -> None:
    """The share is that of the present window and the one before."""
    fleet = a_fleet()
    for _ in range(9):
        fleet.succeeded("w-0")
        fail(fleet, 1)
    for window in (1, 2, 3):
        look(fleet, window * WINDOW_SECONDS)
    for _ in range(9):
        fleet.succeeded("w-0")
        fail(fleet, 1, now=3 * WINDOW_SECONDS)

    assert not fleet.avoided


def test_a_good_hour_does_not_hide_a_bad_half_minute() -> None:
    """Thousands of earlier successes are forgotten with their window."""
    fleet = a_fleet()
    fleet.workers["w-0"].answered = 100_000
    look(fleet, WINDOW_SECONDS)
    look(fleet, 2 * WINDOW_SECONDS)
    for _ in range(10):
        fleet.succeeded("w-0")
        fail(fleet, 1, now=31.0)

    assert fleet.avoided == {0}


@pytest.mark.parametrize("result", ["connect_failed", "connect_timeout"])
def test_a_connection_that_is_not_made_is_enough(result: str) -> None:
    """Nobody else should find out the same way."""
    fleet = a_fleet()
    fail(fleet, 1, result)

    assert fleet.avoided == {0}


def test_one_request_decides_when_the_time_is_over() -> None:
    """Then the worker is open for one request; while that runs, for no other."""
    fleet = a_fleet()
    fail(fleet)
    look(fleet, 4.9)
    assert fleet.avoided == {0}
    look(fleet, 5.0)
    assert (fleet.avoided, fleet.half_open) == (set(), {0})

    fleet.begins("w-0")
    look(fleet, 6.0)
    assert (fleet.avoided, fleet.half_open) == ({0}, set())
    fleet.has_begun("w-0", 6.5)
    look(fleet, 7.0)

    assert not fleet.avoided
    assert not (fleet.half_open)
    assert not fleet.ejected
    assert fleet.condition(fleet.workers["w-0"]) is Condition.WELL


def test_requests_to_others_decide_nothing() -> None:
    """While one worker is open for a trial, requests go to others as ever."""
    fleet = a_fleet()
    fail(fleet)
    look(fleet, 5.0)

    fleet.begins("w-1")

    assert fleet.half_open == {0}


def test_each_failed_trial_doubles_the_time() -> None:
    """5, 10, 20 s, up to the bound."""
    fleet = a_fleet(rules=replace(RULES, max_ejection_seconds=30.0))
    now, waits = 0.0, []
    fail(fleet)
    for _ in range(5):
        began = now
        while not fleet.half_open:
            now += 0.5
            look(fleet, now)
        waits.append(now - began)
        fleet.failed("w-0", "broken", now, fleet.begins("w-0"))

    assert waits == [5.0, 10.0, 20.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("well_seconds", "expected"),
    [
        (0.0, [5.0, 10.0, 20.0, 40.0]),
        (2.0, [5.0, 8.0, 14.0, 26.0]),
        (4.0, [5.0, 6.0, 8.0, 12.0]),
        (25.0, [5.0, 5.0, 5.0, 5.0]),
    ],
    ids=["fails at once", "hardly well", "well for less than it was out", "in trouble each half minute"],
)
def test_being_well_takes_back_what_was_doubled(well_seconds: float, expected: list[float]) -> None:
    """The next time out is twice the last one less the seconds that the worker was well between them, but never too short."""
    fleet = a_fleet()
    now, waits = 0.0, []
    for _ in expected:
        fail(fleet, now=now)
        until = fleet.workers["w-0"].until
        waits.append(until - now)
        look(fleet, until)
        fleet.begins("w-0")
        fleet.has_begun("w-0", until)
        now = until + well_seconds

    assert waits == expected


def test_a_worker_that_was_well_for_the_longest_time_begins_anew() -> None:
    """However long it was left out before: the bound of the doubling is also the time after which nothing of it is left."""
    fleet = a_fleet(rules=replace(RULES, max_ejection_seconds=30.0))
    now = 0.0
    for _ in range(5):
        fail(fleet, now=now)
        now = fleet.workers["w-0"].until
        look(fleet, now)
        fleet.begins("w-0")
        fleet.has_begun("w-0", now)
    assert fleet.workers["w-0"].out_seconds == 30.0

    fail(fleet, now=now + 30.0)

    assert fleet.workers["w-0"].out_seconds == 5.0


def test_time_out_is_no_time_well() -> None:
    """A trial that fails doubles the time, whatever the worker had been before it was left out."""
    fleet = a_fleet()
    fail(fleet)
    look(fleet, 5.0)
    fleet.begins("w-0")
    fleet.has_begun("w-0", 5.0)
    fail(fleet, now=25.0)
    look(fleet, 30.0)

    fleet.failed("w-0", "broken", 30.0, fleet.begins("w-0"))

    assert fleet.workers["w-0"].until == 40.0


def test_a_trial_that_decides_nothing_is_made_again() -> None:
    """A client that leaves, or a request that was wrong, leaves the question open."""
    fleet = a_fleet()
    fail(fleet)
    look(fleet, 5.0)

    fleet.undecided("w-0", fleet.begins("w-0"))
    look(fleet, 5.5)

    assert fleet.half_open == {0}


def test_requests_from_before_decide_nothing_about_a_trial() -> None:
    """Their clients leave, they fail or are refused: there is still one trial, and not a second one beside it."""
    for ends in (
        lambda fleet: fleet.undecided("w-0", None),
        lambda fleet: fleet.failed("w-0", "broken", 5.2),
        lambda fleet: fleet.is_busy("w-0", 0.0, 5.2),
    ):
        fleet = a_fleet()
        fail(fleet)
        look(fleet, 5.0)
        trial = fleet.begins("w-0")

        ends(fleet)
        look(fleet, 5.5)
        assert (fleet.avoided, fleet.half_open, fleet.workers["w-0"].trial) == ({0}, set(), trial)

        fleet.failed("w-0", "failed", 5.6, trial)
        assert fleet.workers["w-0"].until == 15.6


def test_a_trial_that_was_given_up_says_nothing_about_the_next_one() -> None:
    """It fell silent, the worker was left out again, and only then did its client leave."""
    fleet = a_fleet()
    fail(fleet)
    look(fleet, 5.0)
    first = fleet.begins("w-0")
    assert fleet.seems_silent("w-0", 40.0)
    look(fleet, 50.0)
    second = fleet.begins("w-0")

    fleet.undecided("w-0", first)
    look(fleet, 50.5)

    assert (fleet.avoided, fleet.workers["w-0"].trial) == ({0}, second)


def test_an_answer_that_began_before_the_failures_proves_nothing() -> None:
    """A stream that goes on at a worker whose new requests fail does not bring it back."""
    fleet = a_fleet()
    fail(fleet)

    fleet.has_begun("w-0", 1.0)

    assert fleet.avoided == {0}


def test_failures_while_it_is_out_change_nothing() -> None:
    """Requests that were under way fail too: the time does not grow with their number."""
    fleet = a_fleet()
    fail(fleet, 50, "connect_failed")

    assert fleet.workers["w-0"].until == 5.0


@pytest.mark.parametrize(("workers", "ratio", "expected"), [(1, 0.5, 0), (2, 0.5, 1), (3, 0.5, 1), (10, 0.5, 5), (10, 1.0, 10)])
def test_so_many_are_left_out_at_most(workers: int, ratio: float, expected: int) -> None:
    """However many fail: the rest has to carry the load."""
    fleet = a_fleet(workers, replace(RULES, max_ejected_ratio=ratio))
    for at in range(workers):
        fail(fleet, name=f"w-{at}")

    assert len(fleet.avoided) == len(fleet.ejected) == expected


def test_a_pool_that_overflows_may_lose_all_its_workers() -> None:
    """Its requests have somewhere else to go, which is better than trying those that fail."""
    pools = (a_pool(0, 1, name="a", upto=1000, overflow_to="b"), a_pool(2, 3, name="b"))
    fleet = FleetHealth(replace(a_topology(a_model(*pools)), health=RULES))
    for at in range(4):
        fail(fleet, name=f"w-{at}")

    assert fleet.avoided == {0, 1, 2}


def test_pools_are_judged_apart() -> None:
    """The bound is that of each pool."""
    topology = replace(a_topology(a_model(a_pool(0, 1, name="a"), a_pool(2, 3, name="b"))), health=RULES)
    fleet = FleetHealth(topology)
    for at in range(4):
        fail(fleet, name=f"w-{at}")

    assert fleet.avoided == {0, 2}


def test_a_worker_that_came_back_starts_slowly() -> None:
    """Its share of the load rises to the whole; before and after there is nothing to look at."""
    fleet = a_fleet(rules=replace(RULES, slow_start_seconds=20.0))
    assert fleet.share == ()
    fail(fleet)
    look(fleet, 5.0)
    fleet.begins("w-0")
    fleet.has_begun("w-0", 5.0)

    shares = []
    for now in (5.0, 10.0, 20.0, 24.9):
        look(fleet, now)
        shares.append(fleet.share[0])
        assert list(fleet.share[1:]) == [1.0] * 3
        assert fleet.condition(fleet.workers["w-0"]) is Condition.SLOW_START
    assert shares == [0.1, 0.25, 0.75, pytest.approx(0.995)]
    look(fleet, 25.0)
    assert fleet.share == ()


def test_a_worker_that_was_down_starts_slowly() -> None:
    """When its health checks succeed again it is another process, or one that had stood still; not so at the first check."""
    fleet = a_fleet(rules=replace(RULES, slow_start_seconds=20.0))
    fleet.look(0.0, [nan] * 4)
    look(fleet, 1.0)
    assert fleet.share == ()
    look(fleet, 2.0, down=(1,))

    look(fleet, 10.0)

    assert list(fleet.share) == [1.0, 0.1, 1.0, 1.0]


def test_a_worker_that_is_up_again_is_tried_at_once() -> None:
    """What it did before it went down is no reason to wait."""
    fleet = a_fleet()
    fail(fleet, 1, "connect_failed")
    fleet.workers["w-0"].until = 300.0
    look(fleet, 5.0, down=(0,))
    assert fleet.avoided == {0}

    look(fleet, 20.0)

    assert fleet.half_open == {0}


def test_what_others_leave_out_is_left_out_here() -> None:
    """As long as they do, and within the same bound."""
    fleet = a_fleet(4)
    look(fleet, 0.0, foreign=(0, 1, 2))
    assert fleet.avoided == {0, 1}

    look(fleet, 1.0)

    assert not fleet.avoided


def test_another_topology_keeps_what_is_known() -> None:
    """Workers are found by name and address, whatever their new index; what has another address is another worker."""
    fleet = a_fleet(4)
    fail(fleet)
    fleet.is_busy("w-2", 50.0, 0.0)
    old = the_topology(4)
    pool = a_pool(0, 1, 2)
    moved = tuple(replace(worker, index=2 - worker.index) for worker in reversed(pool.workers))

    fleet.adopt(replace(a_topology(a_model(replace(pool, workers=moved))), health=old.health))

    assert (fleet.avoided, fleet.busy) == ({2}, {0})
    look(fleet, 1.0)
    assert fleet.avoided == {2}
    elsewhere = tuple(replace(worker, url="http://127.0.0.1:9") for worker in moved)
    fleet.adopt(replace(a_topology(a_model(replace(pool, workers=elsewhere))), health=old.health))
    assert not fleet.avoided
    assert not fleet.busy
    assert not fleet.ejected


def test_a_pool_that_shrinks_takes_back_whom_it_needs() -> None:
    """With one worker left there is nobody to leave out."""
    fleet = a_fleet(2)
    fail(fleet)

    fleet.adopt(the_topology(1))
    look(fleet, 1.0)

    assert not fleet.avoided
    assert not fleet.ejected


def test_a_worker_that_is_gone_is_no_matter() -> None:
    """Requests end after their worker has been removed."""
    fleet = a_fleet(2)
    fleet.failed("gone", "broken", 0.0)
    fleet.succeeded("gone")
    fleet.has_begun("gone", 1.0)
    fleet.undecided("gone", 1)
    fleet.is_busy("gone", None, 0.0)
    assert fleet.begins("gone") is None

    assert not fleet.seems_silent("gone", 100.0)
    assert not fleet.avoided
    assert not fleet.busy
