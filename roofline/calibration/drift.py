"""Whether a worker still is as fast as it was when its reference was accepted, at the work it has lately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, log2, sqrt
from typing import Literal

from roofline.calibration.calibration import Coverage, Fit
from roofline.calibration.loss_fit import Constants, OperatingPoint
from roofline.calibration.reference import Reference
from roofline.calibration.robust_location import quantile
from roofline.calibration.sample import Figure

THRESHOLD_RATIO = 1.15
LEAST_SAMPLES = 50.0  # remembered ones of the figure that drifts
_CONFIDENCE_SPREADS = 1.96  # of a normal distribution: 95 % lie within
_MISFIT_RATIO = 0.03  # no form of so few constants meets any single operating point better
_LEAST_POINT_SAMPLES = 3.0  # fewer may all be stuck requests
_ORDINARY_ERRORS = 1.5  # points farther from the mean than so many of their errors count less
_ROUNDS = 8
_EXTRAPOLATION_RATIO_PER_OCTAVE = 0.1  # error of the reference outside the work it was fitted to; assumed

Direction = Literal["slower", "faster"]


@dataclass(frozen=True, slots=True)
class Shift:
    """Measured lately over expected under the reference, for one figure: above 1 is slower. With its 95 % interval."""

    ratio: float
    low_ratio: float
    high_ratio: float
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How a worker's figures moved against its reference. ``None`` where either side has too few samples of the figure.

    ``outlier_ratio``: the share of recent requests far slower than others of their kind. The shifts leave them out, so more of
    them than at acceptance (``reference_outlier_ratio``) is a finding of its own.
    """

    ttft: Shift | None
    tpot: Shift | None
    outlier_ratio: float
    reference_outlier_ratio: float
    threshold_ratio: float
    least_samples: float

    @property
    def ttft_direction(self) -> Direction | None:
        """Where TTFT drifts to; ``None`` if it is not sure to have moved by more than the threshold."""
        return self._direction(self.ttft)

    @property
    def tpot_direction(self) -> Direction | None:
        """Where TPOT drifts to; ``None`` if it is not sure to have moved by more than the threshold."""
        return self._direction(self.tpot)

    @property
    def is_drifting(self) -> bool:
        """Whether a figure is surely slower than the threshold times the reference, or surely faster than its inverse."""
        return self.ttft_direction is not None or self.tpot_direction is not None

    @property
    def is_slower(self) -> bool:
        """Whether a figure is surely slower than the threshold times the reference."""
        return "slower" in (self.ttft_direction, self.tpot_direction)

    def _direction(self, shift: Shift | None) -> Direction | None:
        if shift is None or shift.samples < self.least_samples:
            return None
        if shift.low_ratio > self.threshold_ratio:
            return "slower"
        return "faster" if shift.high_ratio < 1.0 / self.threshold_ratio else None


def drift(
    reference: Reference, recent: Fit, *, threshold_ratio: float = THRESHOLD_RATIO, least_samples: float = LEAST_SAMPLES
) -> Drift:
    """The recent operating points held against the reference; nothing of the recent constants is used.

    ``ValueError`` if the two are about different keys, or if the threshold is not above 1.
    """
    if reference.key != recent.key:
        raise ValueError(f"a reference of {reference.key} says nothing about {recent.key}")
    if not threshold_ratio > 1.0:
        raise ValueError(f"the threshold is a ratio above 1, not {threshold_ratio}")
    constants = Constants.of(reference.losses, is_parallel=reference.key.exchanges)
    error = reference.prediction_error_ratio
    return Drift(
        ttft=_shift(Figure.TTFT, constants, error, reference.coverage, recent.points),
        tpot=_shift(Figure.TPOT, constants, error, reference.coverage, recent.points),
        outlier_ratio=recent.outlier_ratio,
        reference_outlier_ratio=reference.outlier_ratio,
        threshold_ratio=threshold_ratio,
        least_samples=least_samples,
    )


def _shift(
    figure: Figure,
    constants: Constants,
    reference_error_ratio: float,
    coverage: Mapping[Figure, Coverage],
    recent: Sequence[OperatingPoint],
) -> Shift | None:
    points = [point for point in recent if point.figure is figure and point.samples >= _LEAST_POINT_SAMPLES]
    if not points or figure not in coverage:
        return None
    offs, errors = [], []
    for point in points:
        beyond = _EXTRAPOLATION_RATIO_PER_OCTAVE * _octaves_outside(coverage[figure], point.parts.ideal_seconds)
        offs.append(log(point.measured_seconds / constants.seconds(figure, point.parts)))
        errors.append(sqrt(point.standard_error_ratio**2 + _MISFIT_RATIO**2 + beyond**2))
    mean, error = _mean(offs, errors)
    # What the reference is off by itself is common to all points: it does not average out.
    reach = _CONFIDENCE_SPREADS * sqrt(error**2 + reference_error_ratio**2)
    return Shift(exp(mean), exp(mean - reach), exp(mean + reach), sum(point.samples for point in points))


def _mean(values: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """Huber's mean of values with errors, and its own error, which is greater where the values disagree."""
    mean = quantile(sorted((value, 1.0 / error**2) for value, error in zip(values, errors, strict=True)), 0.5)
    total = disagreement = 0.0
    for _ in range(_ROUNDS):
        total = first = disagreement = 0.0
        for value, error in zip(values, errors, strict=True):
            off = abs(value - mean) / error
            weight = min(1.0, _ORDINARY_ERRORS / max(off, 1e-9)) / error**2
            total += weight
            first += weight * value
            disagreement += weight * (value - mean) ** 2
        mean = first / total
    return mean, sqrt(max(1.0, disagreement / max(1, len(values) - 1)) / total)


def _octaves_outside(covered: Coverage, ideal_seconds: float) -> float:
    below, above = covered.least_ideal_seconds / ideal_seconds, ideal_seconds / covered.most_ideal_seconds
    return log2(max(below, above, 1.0))
