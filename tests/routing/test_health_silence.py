"""Workers that say nothing, and those that others answer in place of."""

from __future__ import annotations

from dataclasses import replace

from routing.health import Condition
from tests.routing.fleets import RULES, a_fleet, fail, look, the_topology


def test_silence_takes_a_worker_out_and_a_word_brings_it_back() -> None:
    """A stream that goes on is proof enough, since silence was all there was against it."""
    fleet = a_fleet()
    assert fleet.seems_silent("w-0", 40.0)
    assert fleet.condition(fleet.workers["w-0"]) is Condition.SILENCE

    fleet.has_begun("w-0", 41.0)

    assert not fleet.avoided


def test_a_worker_that_answers_others_is_not_silent() -> None:
    """One request that takes very long says nothing while others are answered."""
    fleet = a_fleet()
    fleet.succeeded("w-0")
    look(fleet, 100.0)

    assert not fleet.seems_silent("w-0", 120.0)
    look(fleet, 125.0)
    assert fleet.seems_silent("w-0", 131.0)


def test_silence_that_goes_on_after_its_time_is_no_trial() -> None:
    """While what it has running still waits, the worker is left out again, for longer."""
    fleet = a_fleet()
    fleet.seems_silent("w-0", 0.0)
    look(fleet, 5.0)

    fleet.seems_silent("w-0", 5.0)

    assert (fleet.avoided, fleet.half_open, fleet.workers["w-0"].until) == ({0}, set(), 15.0)


def test_a_worker_that_is_outrun_again_and_again_is_found() -> None:
    """The time in which it gave nothing is added up, overlaps once, until it is as long as a worker may be silent."""
    fleet = a_fleet(rules=replace(RULES, silence_seconds=3.0))
    for since, now in ((0.0, 1.0), (0.5, 1.5), (10.0, 11.0)):
        fleet.outrun("w-0", since, now)
        assert not fleet.has_long_been_unheard("w-0")

    fleet.outrun("w-0", 20.0, 20.6)

    assert fleet.has_long_been_unheard("w-0")
    assert not fleet.has_long_been_unheard("w-1")
    assert not fleet.avoided  # which is for whoever knows what else it does


def test_whoever_answers_anything_has_been_heard() -> None:
    """What was added up before says nothing any more."""
    fleet = a_fleet(rules=replace(RULES, silence_seconds=1.0))
    fleet.outrun("w-0", 0.0, 5.0)
    fleet.succeeded("w-0")
    assert not fleet.has_long_been_unheard("w-0")

    fleet.outrun("w-0", 5.5, 6.0)

    assert not fleet.has_long_been_unheard("w-0")


def test_a_trial_that_is_outrun_has_failed() -> None:
    """Or each trial would be made again at once, and a client would wait for each."""
    fleet = a_fleet()
    fail(fleet)
    look(fleet, 6.0)
    trial = fleet.begins("w-0")
    fleet.outrun("w-0", 6.0, 7.0, trial)
    fleet.undecided("w-0", trial)
    look(fleet, 8.0)

    assert fleet.avoided == {0}
    assert fleet.workers["w-0"].until == 7.0 + 2 * RULES.ejection_seconds


def test_being_outrun_is_forgotten_with_the_worker() -> None:
    """Another one of the same name elsewhere begins anew, and a name that is gone is nobody."""
    fleet = a_fleet(rules=replace(RULES, silence_seconds=1.0))
    fleet.outrun("w-3", 0.0, 5.0)
    fleet.outrun("w-9", 0.0, 5.0)
    fleet.adopt(the_topology(2, replace(RULES, silence_seconds=1.0)))

    assert not fleet.unheard
