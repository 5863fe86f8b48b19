"""Workers that refuse requests, and who waits for them."""

from __future__ import annotations

from math import inf

from routing.health import BUSY_SECONDS, MOST_BUSY_SECONDS, WINDOW_SECONDS
from tests.routing.fleets import a_fleet, fail, look, the_topology


def test_being_busy_is_no_failure() -> None:
    """A busy worker is passed over for as long as it said, or a short time; it is never left out."""
    fleet = a_fleet()
    for _ in range(50):
        fleet.is_busy("w-0", None, 0.0)
    fleet.is_busy("w-3", 0.0, 0.0)  # it can be asked again at once
    fleet.is_busy("w-1", 7.0, 0.0)
    fleet.is_busy("w-2", 1e6, 0.0)
    assert (fleet.busy, fleet.avoided) == ({0, 1, 2}, set())

    look(fleet, BUSY_SECONDS)
    assert fleet.busy == {1, 2}
    look(fleet, 7.0)
    assert fleet.busy == {2}
    look(fleet, MOST_BUSY_SECONDS)
    assert not fleet.busy


def test_who_is_no_help_to_a_busy_worker() -> None:
    """Those that are busy too and those that say nothing; one that is left out for its errors may be asked."""
    fleet = a_fleet(6)
    fleet.is_busy("w-0", 50.0, 0.0)
    assert fleet.seems_silent("w-1", 40.0)
    fail(fleet, name="w-2")

    assert sorted(fleet.no_relief()) == ["w-0", "w-1"]


def test_a_busy_worker_that_answers_is_free_again() -> None:
    """It takes requests, whatever it said before."""
    fleet = a_fleet()
    fleet.is_busy("w-0", 50.0, 0.0)

    fleet.succeeded("w-0")
    look(fleet, 1.0)

    assert not fleet.busy


def test_nobody_who_waits_is_sent_to_a_worker_before_it_takes_more() -> None:
    """As it said, or after a second; who refused nothing is not concerned."""
    fleet = a_fleet()
    assert fleet.closed(0.0, [9.0] * 4) == []
    assert fleet.seconds_to_room(0, 0.0) == inf

    fleet.is_busy("w-0", 3.0, 0.0)
    fleet.is_busy("w-1", None, 0.0)

    assert fleet.closed(0.9, [0.0] * 4) == ["w-0", "w-1"]
    assert fleet.closed(1.0, [0.0] * 4) == ["w-0"]
    assert fleet.closed(3.0, [0.0] * 4) == []
    assert fleet.seconds_to_room(0, 0.5) == BUSY_SECONDS - 0.5
    assert fleet.seconds_to_room(1, 0.5) == inf


def test_at_once_means_after_a_second_to_who_waits() -> None:
    """Or a worker that always says so would be asked without end."""
    fleet = a_fleet()
    fleet.is_busy("w-0", 0, 0.0)

    assert fleet.closed(0.9, [0.0] * 4) == ["w-0"]
    assert not fleet.busy


def test_those_who_wait_come_back_one_by_one() -> None:
    """At first as many as it had when it refused, one at least; one more with each that it answers."""
    fleet = a_fleet()
    fleet.is_busy("w-0", 1.0, 0.0, in_flight=3.0)
    fleet.is_busy("w-1", 1.0, 0.0)

    assert fleet.closed(2.0, [2.0, 0.0, 0.0, 0.0]) == []
    assert fleet.closed(2.0, [3.0, 1.0, 0.0, 0.0]) == ["w-0", "w-1"]
    fleet.succeeded("w-0")

    assert fleet.closed(2.0, [3.0, 1.0, 0.0, 0.0]) == ["w-1"]


def test_who_waits_is_no_trial_of_a_worker_that_is_left_out_before_its_time() -> None:
    """While another one refuses, all would go to the one that fails."""
    fleet = a_fleet()
    fail(fleet, name="w-1")
    assert fleet.closed(0.0, [0.0] * 4) == []

    fleet.is_busy("w-0", 1.0, 0.0)

    assert fleet.closed(0.5, [0.0] * 4) == ["w-0", "w-1"]
    look(fleet, 6.0)
    assert fleet.closed(6.0, [0.0] * 4) == []


def test_a_refusal_is_forgotten() -> None:
    """Some time after the worker takes more again, and with the worker."""
    fleet = a_fleet()
    fleet.is_busy("w-0", 1.0, 0.0)
    fleet.is_busy("w-3", 60.0, 0.0)
    look(fleet, 1.0 + WINDOW_SECONDS)
    assert list(fleet.refusing) == ["w-3"]

    fleet.adopt(the_topology(2))

    assert not fleet.refusing
