"""Least squares with errors, and refusals."""

from __future__ import annotations

from random import Random

import pytest

from roofline.experiments.least_squares import Estimated, Fit, Refused, Timed, fit, medians, relative_weights


def a_line(random: Random, points: int, noise: float) -> tuple[list[tuple[float, float]], list[float]]:
    rows = [(1.0, float(x)) for x in range(1, points + 1)]
    return rows, [(3.0 + 2.0 * x) * (1.0 + random.gauss(0.0, noise)) for _, x in rows]


def test_what_lies_on_a_line_is_found_exactly() -> None:
    """Without noise the coefficients come back, and their intervals have no width."""
    rows, values = a_line(Random(1), 6, 0.0)
    found = fit(rows, values, [1.0] * 6)

    assert isinstance(found, Fit)
    assert [one.value for one in found.coefficients] == pytest.approx([3.0, 2.0])
    assert [one.margin for one in found.coefficients] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert found.r_squared == pytest.approx(1.0)
    assert found.error_ratio == pytest.approx(0.0, abs=1e-9)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Of many noisy lines, about 95 % of the slopes' intervals hold the slope."""
    random = Random(7)
    held = 0
    for _ in range(400):
        rows, values = a_line(random, 8, 0.02)
        found = fit(rows, values, relative_weights(values))
        assert isinstance(found, Fit)
        slope = found.coefficients[1]
        held += abs(slope.value - 2.0) <= slope.margin

    assert 0.91 < held / 400 < 0.985


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([(1.0, 2.0), (1.0, 3.0)], "2 lengths were measured, at least 3"),
        ([(1.0, 2.0), (1.0, 2.0), (1.0, 2.0)], "do not differ enough"),
        ([(1.0, 0.0), (1.0, 0.0), (1.0, 0.0)], "do not differ enough"),
    ],
)
def test_too_little_is_refused(rows: list[tuple[float, float]], reason: str) -> None:
    """With no more points than unknowns, or all at one place, there is no fit and the reason says why."""
    found = fit(rows, [1.0] * len(rows), [1.0] * len(rows))

    assert isinstance(found, Refused)
    assert reason in found.reason


def test_no_points_at_all_are_refused() -> None:
    """Nothing measured is no error."""
    assert isinstance(fit([], [], []), Refused)


def test_one_stall_does_not_move_a_median() -> None:
    """Of several times at one length the middle one counts, by rising length."""
    measured = [Timed(64, 1.0), Timed(16, 0.5), Timed(64, 9.0), Timed(64, 1.1)]

    assert medians(measured) == [Timed(16, 0.5), Timed(64, 1.1)]


def test_an_estimate_knows_whether_it_is_above_zero() -> None:
    """Its whole interval has to be."""
    assert Estimated(value=2.0, margin=1.9).is_above_zero
    assert not Estimated(value=2.0, margin=2.1).is_above_zero
    assert Estimated(value=0.0, margin=1.0).margin_ratio == float("inf")
