"""The last minute of a running total: never more than the limit in any sixty seconds."""

from __future__ import annotations

import random

import pytest

from routing.quota import STEP_SECONDS, WINDOW_SECONDS, Window


def test_nothing_is_used_at_first():
    """Whatever was counted before the window began."""
    window = Window(10, total=500, now=1000)
    assert window.used(500, 1000) == 0
    assert window.used(503, 1000.2) == 3


def test_what_was_used_comes_back_after_a_minute():
    """A step late at most."""
    window = Window(10, total=0, now=0)
    window.note(0, 1)
    assert window.used(4, 1.5) == 4
    window.note(4, 2)
    assert window.used(4, 60.9) == 4
    assert window.used(4, 61.5 + STEP_SECONDS) == 0


@pytest.mark.parametrize("seed", range(5))
def test_no_minute_has_more_than_the_limit(seed):
    """With arrivals of any kind, costs of any size and amounts given back, and little of the limit is lost to steps."""
    chance = random.Random(seed)
    window = Window(100, total=0, now=0)
    now, total, taken = 0.0, 0.0, []
    while now < 600:
        now += chance.choice((0.001, 0.1, chance.expovariate(1), 20 * chance.random() ** 4))
        cost = chance.choice((1, 1, 3, 30))
        if window.used(total, now) + cost <= 100:
            total += cost
            taken.append((now, cost))
    for at, _ in taken:
        assert sum(cost for then, cost in taken if at <= then < at + WINDOW_SECONDS) <= 100
    assert len(window._steps) <= 63


def test_a_full_window_says_when_to_come_again():
    """When as much has come back as is needed, and not sooner."""
    window = Window(10, total=0, now=0)
    total = 0
    for second in range(10):
        window.note(total, second)
        total += 1
    window.note(total, 10)

    for cost in (1, 5, 10):
        seconds = window.seconds_until(cost, total, 10.0)
        assert window_after(total, seconds - 0.01) + cost > 10
        assert window_after(total, seconds) + cost <= 10
    assert window.seconds_until(11, total, 10.0) is None
    assert window.seconds_until_free(total, 10.0) == window.seconds_until(10, total, 10.0)


def window_after(total, seconds):
    """What is used so many seconds later, in a window with the same past."""
    window = Window(10, total=0, now=0)
    for second in range(11):
        window.note(min(second, total), second)
    return window.used(total, 10 + seconds)


def test_quiet_minutes_take_no_room():
    """A window that is looked at for a day while nothing happens stays small, and forgets nothing."""
    window = Window(10, total=0, now=0)
    window.note(5, 1)
    for second in range(2, 58):
        window.note(5, second)
    assert window.used(5, 58) == 5
    for second in range(58, 10_000):
        window.note(5, second)
    assert window.used(5, 10_000) == 0
    assert len(window._steps) <= 4
