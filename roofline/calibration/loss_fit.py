"""Losses from operating points: weighted, robust least squares in relative errors, held near a scaled default.

    seconds = max(compute x C, memory x M) + layer x L + exchange [+ request, for a TTFT]

is linear in the four constants once it is known for each point which of the two is the larger, so points are assigned to one
side, the constants solved for, and the assignment repeated until it stands still. Points that stay far off count less.
What the points cannot tell apart follows the defaults: each constant is drawn weakly towards the default times the factor by
which the samples are slower or faster, so that samples at one operating point change the scale and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log, sqrt

from roofline.calibration.bounded_least_squares import Matrix, inverse, solve_bounded
from roofline.calibration.robust_location import quantile
from roofline.calibration.sample import Figure, Parts
from roofline.expected import Losses

# How far a constant may lie from the scaled default before the samples have to say so (one standard deviation).
_EFFICIENCY_DOUBT_RATIO = 0.5
_LAYER_DOUBT_RATIO = 1.0
_LEAST_LAYER_DOUBT_SECONDS = 50e-6
_REQUEST_DOUBT_SECONDS = 0.02

_LEAST_DOUBT_RATIO = 0.3  # a constant counts as fitted when the samples leave at most this share of its doubt
_MISFIT_RATIO = 0.03  # the form itself is no better than this at any point, however many samples it has
_ORDINARY_ERRORS = 1.5  # points farther off than so many of their errors count less and less
_ROUNDS = 12
_DISTINCT_RATIO = 1.5  # operating points nearer than this to each other count as one
_LEAST_POINT_SAMPLES = 5.0  # points with less do not count as an operating point of their own


class Basis(StrEnum):
    """Where a constant comes from."""

    FITTED = "fitted"  # the samples determine it
    SCALED = "scaled"  # the default's share, times the factor by which the samples are slower or faster
    AT_LIMIT = "at_limit"  # the samples would have it better than the peak: facts about the worker may be wrong


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Samples of one figure with nearly the same work: their mean parts and where the bulk of the measurements lies.

    ``samples`` counts what is still remembered, older ones for less than one. ``standard_error_ratio`` is relative to
    ``measured_seconds``.
    """

    figure: Figure
    parts: Parts
    measured_seconds: float
    standard_error_ratio: float
    samples: float


@dataclass(frozen=True, slots=True)
class Constants:
    """What samples of one deployment can tell apart: factors on ideal seconds (at least 1), and overheads (at least 0)."""

    compute_factor: float
    memory_factor: float
    layer_seconds: float  # each layer of each step, all overheads together
    request_seconds: float

    @classmethod
    def of(cls, losses: Losses, *, is_parallel: bool) -> Constants:
        """The same losses; ``is_parallel`` where GPUs exchange results within a step."""
        parallel = losses.parallel_layer_overhead_seconds if is_parallel else 0.0
        return cls(
            1.0 / losses.compute_efficiency_ratio,
            1.0 / losses.memory_efficiency_ratio,
            losses.layer_overhead_seconds + parallel,
            losses.request_overhead_seconds,
        )

    def seconds(self, figure: Figure, parts: Parts) -> float:
        """Expected time."""
        compute, memory = self.compute_factor * parts.compute_seconds, self.memory_factor * parts.memory_seconds
        overhead = self.layer_seconds * parts.layer_steps + (self.request_seconds if figure is Figure.TTFT else 0.0)
        return max(compute, memory) + overhead + parts.exchange_seconds


@dataclass(frozen=True, slots=True)
class Estimate:
    """One constant as in `Losses`. The standard error covers noise of the samples, misfit and what stays undetermined."""

    value: float
    standard_error: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class LossFit:
    """Constants, the estimates behind them by their names in `Losses`, and how well they meet the operating points.

    ``misfit_ratio``: root mean square of what the points lie off beyond their own noise. ``prediction_error_ratio``: standard
    error of an expected time at such points, that misfit included. ``distinct_points``: operating points that are really apart.
    """

    constants: Constants
    estimates: Mapping[str, Estimate]
    misfit_ratio: float
    prediction_error_ratio: float
    distinct_points: int


_Row = tuple[float, float, float, float]
_LOWEST: _Row = (1.0, 1.0, 0.0, 0.0)


def fit_losses(points: Sequence[OperatingPoint], defaults: Losses, *, is_parallel: bool) -> LossFit:
    """The constants that meet ``points`` best; ``points`` must not be empty."""
    start = Constants.of(defaults, is_parallel=is_parallel)
    centre = _scaled(points, start)
    doubts = (
        _EFFICIENCY_DOUBT_RATIO * centre[0],
        _EFFICIENCY_DOUBT_RATIO * centre[1],
        max(_LAYER_DOUBT_RATIO * centre[2], _LEAST_LAYER_DOUBT_SECONDS),
        max(centre[3], _REQUEST_DOUBT_SECONDS),
    )
    apart = _distinct(points, start)
    theta: Sequence[float] = centre
    is_scale_enough = apart <= 1 and centre[0] >= 1.0 and centre[1] >= 1.0
    for _ in range(0 if is_scale_enough else _ROUNDS):
        before, theta = theta, solve_bounded(*_normal(points, theta, centre, doubts), _LOWEST)
        if all(abs(new - old) <= 1e-6 * (abs(new) + 1e-9) for new, old in zip(theta, before, strict=True)):
            break
    covariance = inverse(_normal(points, theta, centre, doubts)[0])
    constants = Constants(*theta)
    misfit, excess = _misfit(points, constants)
    errors = [sqrt(covariance[at][at]) for at in range(4)]
    bases = [
        Basis.FITTED if apart > 1 and error < _LEAST_DOUBT_RATIO * doubt else Basis.SCALED
        for error, doubt in zip(errors, doubts, strict=True)
    ]
    for at in (0, 1):
        if theta[at] <= 1.0 + 1e-9:
            bases[at] = Basis.AT_LIMIT
    return LossFit(
        constants,
        _estimates(constants, [error * excess for error in errors], bases, defaults, is_parallel=is_parallel),
        misfit,
        sqrt(misfit * misfit + _prediction_variance(points, constants, covariance)),
        apart,
    )


def _scaled(points: Iterable[OperatingPoint], start: Constants) -> _Row:
    """The defaults times how much slower the points of each figure are than them; one figure stands in for the other."""
    ratios: dict[Figure, list[tuple[float, float]]] = {Figure.TTFT: [], Figure.TPOT: []}
    for point in points:
        exchange = point.parts.exchange_seconds
        measured, ideal = point.measured_seconds - exchange, start.seconds(point.figure, point.parts) - exchange
        if measured > 0.0:
            ratios[point.figure].append((measured / ideal, point.samples))
    scale = {figure: quantile(sorted(found), 0.5) for figure, found in ratios.items() if found}
    prefill = scale.get(Figure.TTFT, scale.get(Figure.TPOT, 1.0))
    decode = scale.get(Figure.TPOT, prefill)
    return (
        prefill * start.compute_factor,
        decode * start.memory_factor,
        decode * start.layer_seconds,
        prefill * start.request_seconds,
    )


def _distinct(points: Iterable[OperatingPoint], start: Constants) -> int:
    count = 0
    for figure in Figure:
        reached = 0.0
        ideal = (start.seconds(figure, p.parts) for p in points if p.figure is figure and p.samples >= _LEAST_POINT_SAMPLES)
        for seconds in sorted(ideal):
            if seconds >= _DISTINCT_RATIO * reached:
                count, reached = count + 1, seconds
    return count


def _row(theta: Sequence[float], point: OperatingPoint) -> tuple[_Row, float]:
    """What each constant is multiplied by at this point, and the expected seconds."""
    parts = point.parts
    compute, memory = parts.compute_seconds, parts.memory_seconds
    if theta[0] * compute > theta[1] * memory:
        memory = 0.0
    else:
        compute = 0.0
    once = 1.0 if point.figure is Figure.TTFT else 0.0
    expected = theta[0] * compute + theta[1] * memory + theta[2] * parts.layer_steps + theta[3] * once + parts.exchange_seconds
    return (compute, memory, parts.layer_steps, once), expected


def _normal(
    points: Iterable[OperatingPoint], theta: Sequence[float], centre: Sequence[float], doubts: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    """Normal equations around ``theta``: relative errors, less weight far off, and the pull towards the centre."""
    matrix = [[1.0 / doubts[at] ** 2 if at == other else 0.0 for other in range(4)] for at in range(4)]
    right = [centre[at] / doubts[at] ** 2 for at in range(4)]
    for point in points:
        row, expected = _row(theta, point)
        error = sqrt(point.standard_error_ratio**2 + _MISFIT_RATIO**2)
        off = abs(log(point.measured_seconds / expected)) / error
        weight = min(1.0, (_ORDINARY_ERRORS / max(off, 1e-9)) ** 2) / (error * expected) ** 2
        wanted = point.measured_seconds - point.parts.exchange_seconds
        for at in range(4):
            if row[at]:
                share = weight * row[at]
                right[at] += share * wanted
                for other in range(4):
                    matrix[at][other] += share * row[other]
    return matrix, right


def _misfit(points: Sequence[OperatingPoint], constants: Constants) -> tuple[float, float]:
    """Root mean square error beyond the points' own noise, and the factor (at least 1) by which noise was underrated."""
    total = beyond = chi = 0.0
    for point in points:
        off = log(point.measured_seconds / constants.seconds(point.figure, point.parts))
        noise = point.standard_error_ratio**2
        off_square = min(
            off * off, (2.0 * _ORDINARY_ERRORS) ** 2 * (noise + _MISFIT_RATIO**2)
        )  # a bad point is no misfit of all
        total += point.samples
        beyond += point.samples * (off_square - noise)
        chi += off_square / (noise + _MISFIT_RATIO**2)
    return sqrt(max(beyond / total, 0.0)), max(1.0, sqrt(chi / max(1, len(points) - 4)))


def _prediction_variance(points: Iterable[OperatingPoint], constants: Constants, covariance: Matrix) -> float:
    theta = (constants.compute_factor, constants.memory_factor, constants.layer_seconds, constants.request_seconds)
    total = weighted = 0.0
    for point in points:
        row, expected = _row(theta, point)
        variance = sum(row[at] * sum(covariance[at][other] * row[other] for other in range(4)) for at in range(4))
        total += point.samples
        weighted += point.samples * variance / (expected * expected)
    return weighted / total


def _estimates(
    constants: Constants, errors: Sequence[float], bases: Sequence[Basis], defaults: Losses, *, is_parallel: bool
) -> Mapping[str, Estimate]:
    """As in `Losses`. Layer and parallel overhead cannot be told apart in one deployment: they keep the default's shares."""
    both = defaults.layer_overhead_seconds + defaults.parallel_layer_overhead_seconds
    alone = defaults.layer_overhead_seconds / both if is_parallel and both > 0.0 else 1.0
    parallel = Estimate(defaults.parallel_layer_overhead_seconds, defaults.parallel_layer_overhead_seconds, Basis.SCALED)
    if is_parallel:
        parallel = Estimate((1.0 - alone) * constants.layer_seconds, (1.0 - alone) * errors[2], bases[2])
    compute, memory = 1.0 / constants.compute_factor, 1.0 / constants.memory_factor
    return {
        "compute_efficiency_ratio": Estimate(compute, errors[0] * compute**2, bases[0]),
        "memory_efficiency_ratio": Estimate(memory, errors[1] * memory**2, bases[1]),
        "layer_overhead_seconds": Estimate(alone * constants.layer_seconds, alone * errors[2], bases[2]),
        "parallel_layer_overhead_seconds": parallel,
        "request_overhead_seconds": Estimate(constants.request_seconds, errors[3], bases[3]),
    }
