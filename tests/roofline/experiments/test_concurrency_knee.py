"""The knee of throughput over requests at once."""

from __future__ import annotations

import pytest

from roofline.experiments.concurrency_knee import Knee, Load, best_throughput, concurrency_knee, waiting_from
from roofline.experiments.least_squares import Refused

REQUESTS = (1, 2, 4, 8, 16, 32)


def loads(shared: float, own: float, together: int = 1000) -> list[Load]:
    made = []
    for n in REQUESTS:
        running = min(n, together)
        step = shared + own * running
        made.append(Load(requests=n, tpot_seconds=step if n <= together else None, tokens_per_second=running / step))
    return made


def test_the_knee_is_where_the_own_part_equals_the_shared_one() -> None:
    """8 ms that all share and 0.4 ms that each adds make a knee of 20."""
    knee = concurrency_knee(loads(0.008, 0.0004))

    assert isinstance(knee, Knee)
    assert knee.requests.value == pytest.approx(20)
    assert knee.shared_seconds.value == pytest.approx(0.008)
    assert knee.own_seconds.value == pytest.approx(0.0004)
    assert not knee.is_extrapolated


def test_a_knee_beyond_what_was_measured_says_so() -> None:
    """It follows from the line all the same."""
    knee = concurrency_knee(loads(0.008, 0.0001))

    assert isinstance(knee, Knee)
    assert knee.requests.value == pytest.approx(80)
    assert knee.is_extrapolated


def test_loads_that_waited_do_not_bend_the_line() -> None:
    """Where requests did not all run together TPOT says nothing of the batch: from there they waited."""
    found = loads(0.008, 0.0004, together=8)
    knee = concurrency_knee(found)

    assert isinstance(knee, Knee)
    assert knee.requests.value == pytest.approx(20)
    assert knee.most_measured == 8
    assert waiting_from(found) == 16
    best = best_throughput(found)
    assert best is not None
    assert best.requests == 8
    assert waiting_from(loads(0.008, 0.0004)) is None
    assert best_throughput([]) is None


def bent(step: tuple[float, ...]) -> list[Load]:
    return [Load(requests=n, tpot_seconds=s, tokens_per_second=n / s) for n, s in zip(REQUESTS, step, strict=False)]


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (loads(0.008, 0.0004)[:2], "2 numbers of requests"),
        (loads(0.008, 0.0), "hardly rises up to 32"),
        (loads(0.008, 1e-6), "the knee lies beyond"),
        (loads(0.0, 0.001), "in proportion"),
        (bent((0.008, 0.008, 0.008, 0.008, 0.012, 0.024)), "not rise by a line"),
    ],
)
def test_what_has_no_knee_is_refused(measured: list[Load], reason: str) -> None:
    """Too few points, TPOT that stays flat, or that follows no line."""
    found = concurrency_knee(measured)

    assert isinstance(found, Refused)
    assert reason in found.reason
