"""What a timer is told of a step, the timer of constants, and noise."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import exp, log
from statistics import fmean, pstdev

import pytest

from simulator.draws import Draws
from simulator.engine.timing import ConstantTimer, Noise, NoiseAhead, Part, StepWork, Window, work_of

TIMER = ConstantTimer(step_seconds=0.01, prefill_seconds_per_token=0.001, context_seconds_per_token=0.0001)


class WindowedTimer(ConstantTimer):
    """The same, but it wants to know of two windows."""

    @property
    def windows(self) -> tuple[Window, ...]:
        return (Window(100), Window(64, is_chunked=True))


@pytest.mark.parametrize(
    ("window", "past", "reads"),
    [
        (Window(100), 0, 0),
        (Window(100), 98, 98),
        (Window(100), 99, 99),
        (Window(100), 5000, 99),
        (Window(64, is_chunked=True), 63, 63),
        (Window(64, is_chunked=True), 64, 0),
        (Window(64, is_chunked=True), 130, 2),
    ],
)
def test_a_window_bounds_what_is_read(window, past, reads):
    """A sliding window reads what lies within it besides the token itself; a chunked one begins anew at its multiples."""
    assert window.reads(past) == reads


def test_decoding_sequences_are_told_as_sums():
    """Who computes one token and wants the next is summed up, within windows too; chunks and drafts come one by one."""
    timer = WindowedTimer(step_seconds=0.0, prefill_seconds_per_token=0.0, context_seconds_per_token=0.0)
    parts = [Part(50, 1, 1), Part(500, 1, 1), Part(10, 20, 0), Part(7, 4, 4), Part(9, 1, 0)]

    work = work_of(parts, timer)

    assert work == StepWork(2, 550, (50 + 99, 50 + 500 % 64), (Part(10, 20, 0), Part(7, 4, 4), Part(9, 1, 0)))
    assert work.tokens == 2 + 20 + 4 + 1


def test_constants_add_up():
    """A step costs the base, each computed token of a part, and each token read."""
    assert TIMER.seconds(work_of([Part(50, 1, 1), Part(10, 20, 0)], TIMER)) == pytest.approx(0.01 + 20 * 0.001 + 60 * 0.0001)


def test_sequences_and_chunks_may_cost_something_too():
    """Each decoding sequence and each part that is planned by itself adds its own."""
    dear = replace(TIMER, sequence_seconds=1.0, chunk_seconds=100.0)
    work = work_of([Part(50, 1, 1), Part(60, 1, 1), Part(10, 20, 0)], TIMER)

    assert dear.seconds(work) == pytest.approx(TIMER.seconds(work) + 102)


def test_decode_steps_take_the_same_by_the_shorter_way():
    """What a timer says of decode steps alone is what it says of the whole work, to the last bit."""
    for timer, count in product((TIMER, replace(TIMER, sequence_seconds=0.0007)), (1, 3, 64)):
        seconds = timer.decoding(count)
        for contexts in (range(1, 2), range(777, 777 + 9 * count, count), range(123_457, 123_457 + count, count)):
            assert seconds(contexts, ()) == [timer.seconds(StepWork(count, context, (), ())) for context in contexts]


def test_no_noise_changes_and_draws_nothing():
    """Without noise a duration is left as it is and no random number is used up."""
    draws = Draws(1)

    assert Noise().is_none
    assert NoiseAhead(Noise(), draws).take(0.1) == 0.1
    assert Noise().drawn(draws) == (1.0, 0.0)
    assert draws.uniform() == Draws(1).uniform()


def test_noise_keeps_the_mean():
    """The factor has mean 1, and its logarithm the deviation that was asked for."""
    noise = NoiseAhead(Noise(sigma=0.3), Draws(1))
    factors = [noise.take(1.0) for _ in range(20_000)]

    assert fmean(factors) == pytest.approx(1.0, rel=0.01)
    assert pstdev(map(log, factors)) == pytest.approx(0.3, rel=0.02)
    assert min(factors) < exp(-0.9)


def test_stalls_come_as_often_as_asked_for():
    """A stalled step takes so much longer, and the others exactly their time."""
    noise = NoiseAhead(Noise(stall_ratio=0.1, stall_seconds=2.0), Draws(1))
    seconds = [noise.take(0.5) for _ in range(10_000)]

    assert set(seconds) == {0.5, 2.5}
    assert seconds.count(2.5) == pytest.approx(1000, rel=0.1)


def test_noise_that_was_looked_at_stays_the_same():
    """Steps get the noise that was told ahead, skipped or taken one by one; what was not taken is told again."""
    one_by_one = NoiseAhead(Noise(sigma=0.3, stall_ratio=0.2, stall_seconds=1.0), Draws(1))
    expected = [one_by_one.take(0.5) for _ in range(9)]
    noise = NoiseAhead(Noise(sigma=0.3, stall_ratio=0.2, stall_seconds=1.0), Draws(1))

    assert noise.ahead([0.5] * 6) == expected[:6]
    noise.skip(2)
    assert noise.take(0.5) == expected[2]
    assert noise.ahead([0.5] * 6) == expected[3:9]


@pytest.mark.parametrize("values", [{"sigma": -0.1}, {"stall_ratio": 1.1}, {"stall_seconds": -1.0}])
def test_noise_that_cannot_be_is_refused(values):
    """Negative spreads and shares above 1 are errors."""
    with pytest.raises(ValueError, match="at least 0"):
        Noise(**values)
