"""Somebody sets the wall clock: what happened when is known as before."""

from __future__ import annotations

import logging

import pytest

from tests.proxy.control.clocks import Clock


@pytest.mark.parametrize("set_by", [3600.0, -3600.0])
def test_it_goes_on_evenly_when_the_wall_clock_is_set(set_by: float) -> None:
    """And says how far that was set, by which what is shown is shifted."""
    clock = Clock()
    clock.now = 10.0
    clock.set_by_seconds = set_by

    assert clock.steady.now() == 10.0
    assert clock.steady.set_by_seconds == set_by


@pytest.mark.parametrize(
    ("before", "after", "at"), [(0.0, 0.0, 99.5), (3600.0, 3600.0, 99.5), (-3600.0, -3600.0, 99.5), (3600.0, 0.0, 100.0)]
)
def test_when_a_record_was(before: float, after: float, at: float) -> None:
    """Half a second ago by either clock; one from before the clock was set back cannot be from the future."""
    clock = Clock()
    clock.now, clock.set_by_seconds = 99.5, before
    ended_unix_seconds = clock.wall
    clock.now, clock.set_by_seconds = 100.0, after

    assert clock.steady.at(ended_unix_seconds) == at


def test_a_record_from_before_the_clock_was_set_forward_is_a_minute_old_at_most() -> None:
    """An hour would make whatever it belongs to idle."""
    clock = Clock()
    clock.now = 100.0
    ended_unix_seconds = clock.wall
    clock.set_by_seconds = 3600.0

    assert clock.steady.at(ended_unix_seconds) == 40.0


def test_each_setting_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """By how much; a clock that is steered by a little is no news."""
    caplog.set_level(logging.WARNING)
    clock = Clock()
    for set_by in (0.0, 0.3, 3600.0, 3600.2, 0.0, 0.0):
        clock.set_by_seconds = set_by
        clock.steady.look()

    assert [message.partition(":")[0] for message in caplog.messages] == [
        "the wall clock was set by +3600.0 s",
        "the wall clock was set by -3600.0 s",
    ]
