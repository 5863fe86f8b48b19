"""Weighted least squares of a few columns, with the error of each coefficient; a refusal says why there is no fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import median

from roofline.calibration.bounded_least_squares import inverse

_LEAST_PIVOT = 1e-10  # of columns scaled to length 1: below it one is a sum of others
# Two-sided 95 % of Student's t, by degrees of freedom.
_FREEDOM = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 60)
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.18, 2.13, 2.09, 2.04, 2.00, 1.96)


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no such figure, and why: a sentence without a full stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Timed:
    """One measurement: how many tokens (or requests), and how long it took."""

    count: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A fitted number and half the width of its 95 % interval."""

    value: float
    margin: float

    @property
    def is_above_zero(self) -> bool:
        """Whether even the lower end is."""
        return self.value > self.margin

    @property
    def margin_ratio(self) -> float:
        """Half the interval over the value; infinite for 0."""
        return self.margin / abs(self.value) if self.value else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Coefficients by column, and how well they fit."""

    coefficients: tuple[Estimated, ...]
    r_squared: float  # of the weighted values; 1: they all lie on the curve
    error_ratio: float  # mean distance from the curve over the value
    residual: float  # weighted sum of squares
    points: int


def fit(rows: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]) -> Fit | Refused:
    """Least squares of ``values`` (above 0) on the columns of ``rows``; refused with no more points than columns.

    Intervals come from the scatter around the curve; of points that all lie on it they are 0.
    """
    points = len(values)
    columns = len(rows[0]) if rows else 0
    if points <= columns:
        return Refused(f"{points} lengths were measured, at least {columns + 1} different ones are needed")
    scales = [sqrt(sum(weight * row[at] ** 2 for row, weight in zip(rows, weights, strict=True))) for at in range(columns)]
    if not all(scales):
        return Refused("the measured lengths do not differ enough")
    scaled = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    matrix = [
        [sum(weight * row[i] * row[j] for row, weight in zip(scaled, weights, strict=True)) for j in range(columns)]
        for i in range(columns)
    ]
    if _least_pivot(matrix) < _LEAST_PIVOT:
        return Refused("the measured lengths do not differ enough")
    inverted = inverse(matrix)
    right = [sum(w * row[i] * v for row, v, w in zip(scaled, values, weights, strict=True)) for i in range(columns)]
    found = [sum(inverted[i][j] * right[j] for j in range(columns)) for i in range(columns)]
    fitted = [sum(one * value for one, value in zip(found, row, strict=True)) for row in scaled]
    residual = sum(w * (value - own) ** 2 for value, own, w in zip(values, fitted, weights, strict=True))
    mean = sum(w * value for value, w in zip(values, weights, strict=True)) / sum(weights)
    total = sum(w * (value - mean) ** 2 for value, w in zip(values, weights, strict=True))
    freedom = points - columns
    spread, reach = sqrt(residual / freedom), _t95(freedom)
    return Fit(
        coefficients=tuple(
            Estimated(value=one / scale, margin=reach * spread * sqrt(max(inverted[at][at], 0.0)) / scale)
            for at, (one, scale) in enumerate(zip(found, scales, strict=True))
        ),
        r_squared=1.0 - residual / total if total else 1.0,
        error_ratio=sum(abs(own - value) / value for value, own in zip(values, fitted, strict=True)) / points,
        residual=residual,
        points=points,
    )


def relative_weights(values: Sequence[float]) -> list[float]:
    """Weights for errors that grow with the value: 1 % counts the same everywhere."""
    return [1.0 / (value * value) for value in values]


def medians(measured: Iterable[Timed]) -> list[Timed]:
    """One for each count, by rising count: the median of its times, which one stall does not move."""
    by_count: dict[float, list[float]] = {}
    for one in measured:
        by_count.setdefault(one.count, []).append(one.seconds)
    return [Timed(count, median(times)) for count, times in sorted(by_count.items())]


def _least_pivot(matrix: Sequence[Sequence[float]]) -> float:
    """The smallest pivot of Gaussian elimination: near 0 if columns depend on each other."""
    rows = [list(row) for row in matrix]
    least = inf
    for at, pivot_row in enumerate(rows):
        least = min(least, pivot_row[at])
        if pivot_row[at] <= 0.0:
            return 0.0
        for below in rows[at + 1 :]:
            factor = below[at] / pivot_row[at]
            for column in range(at, len(rows)):
                below[column] -= factor * pivot_row[column]
    return least


def _t95(freedom: int) -> float:
    place = bisect_left(_FREEDOM, freedom)
    if place < len(_FREEDOM) and _FREEDOM[place] == freedom:
        return _T95[place]
    return _T95[max(0, place - 1)]  # between two: the wider
