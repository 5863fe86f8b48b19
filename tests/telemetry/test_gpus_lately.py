"""Whether GPUs run below their usual clock."""

from __future__ import annotations

from math import inf

import pytest

from telemetry.dcgm import Gpus
from telemetry.gpus_lately import GpusLately


def gpus_at(*clocks: float, busy: float | None = 0.9, first: float = 0.0, **fields: object) -> GpusLately:
    """GPUs that had these clocks in MHz, one every ten seconds."""
    lately = GpusLately()
    follow(lately, *clocks, busy=busy, first=first, **fields)
    return lately


def follow(lately: GpusLately, *clocks: float, busy: float | None = 0.9, first: float = 0.0, **fields: object) -> None:
    for number, clock in enumerate(clocks):
        gpus = Gpus(gpus=1, sm_clock_hertz=clock * 1e6, utilisation_ratio=busy, **fields)  # type: ignore[arg-type]
        lately.look(first + 10.0 * number, gpus)


def test_a_clock_is_held_against_what_is_usual() -> None:
    """Its own most of the time; whatever comes below does not change that, however long it lasts."""
    lately = gpus_at(*[1980] * 60, *[990] * 1000)

    assert lately.usual_clock_hertz == 1.98e9
    assert lately.clock_ratio(inf) == pytest.approx(0.5)


def test_few_readings_make_nothing_usual() -> None:
    """Nobody knows yet what these GPUs do."""
    assert gpus_at(*[1980] * 5).clock_ratio(inf) is None
    assert gpus_at(*[1980] * 6).clock_ratio(inf) == 1.0


def test_peers_tell_what_one_that_was_always_slow_should_do() -> None:
    """By the median of what is usual for them, and only where that is more."""
    slow, peers = gpus_at(*[990] * 30), [gpus_at(*[1980] * 30), gpus_at(*[1950] * 30), gpus_at(*[1700] * 30)]

    assert slow.clock_ratio(inf) == 1.0
    assert slow.clock_ratio(inf, peers) == pytest.approx(990 / 1950)
    assert peers[0].clock_ratio(inf, [slow]) == 1.0


def test_an_idle_clock_says_nothing() -> None:
    """It falls because there is nothing to do, and makes nothing usual."""
    lately = gpus_at(*[1980] * 30)
    follow(lately, 345, 345, busy=0.0, first=300.0)
    idle = gpus_at(*[345] * 30, busy=0.0)

    assert lately.clock_ratio(300.0) is None
    assert lately.clock_ratio(250.0) == 1.0
    assert idle.usual_clock_hertz is None


def test_what_was_before_a_request_does_not_count() -> None:
    """But for the reading that stood when it began."""
    lately = gpus_at(*[990] * 3, *[1980] * 60, dram_active_ratio=0.4)
    follow(lately, 1980, first=630.0, dram_active_ratio=0.79, limited_by=("hw_thermal",))

    assert lately.clock_ratio(100.0) == 1.0
    assert lately.clock_ratio(25.0) == pytest.approx(0.5)
    assert (lately.dram_active_ratio(300.0), lately.is_limited(300.0), lately.is_limited(inf)) == (0.79, True, True)
    lately.look(640.0, None)
    assert lately.newest is None


def test_readings_are_bounded() -> None:
    """An hour of them at one every ten seconds."""
    lately = gpus_at(*range(1000, 3000))

    assert (len(lately._seen), len(lately._clocks)) == (360, 360)
