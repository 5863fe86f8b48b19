"""Where the bulk lies."""

from __future__ import annotations

from math import log
from random import Random
from statistics import mean, pstdev

import pytest

from roofline.calibration.robust_location import location, quantile


def contaminated(random: Random, count: int, spread: float, share: float) -> list[float]:
    """Logarithms of times, of which a share is 3 to 10 times too long."""
    return [random.gauss(0.0, spread) + (log(random.uniform(3, 10)) if random.random() < share else 0.0) for _ in range(count)]


@pytest.mark.parametrize("spread", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("share", [0.0, 0.15, 0.25])
def test_outliers_on_one_side_move_neither_centre_nor_spread(spread: float, share: float) -> None:
    """Averaged over many draws, the centre is off by less than a tenth of the spread (a median: by four tenths).

    The spread of a single draw is within 11.5 % of the true one (one standard deviation).
    """
    random = Random(7)
    found = [location(contaminated(random, 128, spread, share), [1.0] * 128, 0.2) for _ in range(40)]

    assert abs(mean(one.centre for one in found)) < 0.1 * spread
    assert mean(one.spread for one in found) == pytest.approx(spread, rel=0.1)
    assert pstdev(one.spread for one in found) < 0.115 * spread


def test_old_values_count_less() -> None:
    """With weights, the centre is where the weight is."""
    values, weights = [0.0, 0.1, -0.1] * 20 + [1.0, 1.1, 0.9] * 20, [0.01] * 60 + [1.0] * 60

    assert location(values, weights, 0.2).centre == pytest.approx(1.0, abs=0.01)


def test_few_values_take_the_usual_spread() -> None:
    """Three numbers tell no spread; far ones are still left out by the usual one."""
    found = location([0.0, 0.1, 2.0], [1.0, 1.0, 1.0], 0.2)

    assert (found.centre, found.spread, found.weight) == (pytest.approx(0.05), 0.2, 3.0)


def test_equal_values_have_no_spread() -> None:
    """A worker without any noise is no division by zero."""
    found = location([0.5] * 30, [1.0] * 30, 0.2)

    assert found.centre == pytest.approx(0.5)
    assert found.spread < 1e-3


def test_a_single_value_is_its_own_centre() -> None:
    """One request at an operating point is all that is known of it."""
    assert location([0.7], [1.0], 0.2).centre == pytest.approx(0.7)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.2, 1.0), (0.21, 2.0), (0.6, 2.0), (0.61, 3.0), (1.0, 3.0)])
def test_quantiles_go_by_weight(share: float, value: float) -> None:
    """The first value at which so much of the weight is reached."""
    assert quantile([(1.0, 1.0), (2.0, 2.0), (3.0, 2.0)], share) == value
