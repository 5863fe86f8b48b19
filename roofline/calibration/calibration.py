"""Losses of one worker from its own finished requests: a memory that forgets, and a fit with its error.

The fit says what the worker does lately. It is never what requests are judged by: that is a
`roofline.calibration.reference.Reference`, which stands still until another one is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import Self

from roofline.calibration.loss_fit import Basis, Constants, Estimate, LossFit, OperatingPoint, fit_losses
from roofline.calibration.operating_points import PointSamples, SampleMemory
from roofline.calibration.robust_location import FENCE_SPREADS, quantile, quantiles
from roofline.calibration.sample import Figure, Sample
from roofline.deployment import Deployment, Parallelism
from roofline.expected import Losses

LEAST_SAMPLES = 50  # with fewer there is no fit, nor with less than half as many still remembered
HALF_LIFE_SAMPLES = 2000.0
REFIT_SAMPLES = 1024  # a fit is done anew after so many more samples, or a quarter more if that is less


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationKey:
    """What a calibration is valid for. Where any of it differs, another one begins."""

    model: str
    gpu: str
    weights: str  # name of the weights' format
    kv: str  # name of the KV cache's format
    parallelism: Parallelism
    exchanges: bool  # whether GPUs exchange results within a step, which has an overhead of its own
    engine: str
    engine_version: str

    def __hash__(self) -> int:  # looked up for every request; that of all fields takes 3 us
        return hash((self.model, self.gpu))

    @classmethod
    def of(cls, deployment: Deployment, *, engine: str, engine_version: str) -> Self:
        """The key of workers that run this deployment on this engine."""
        return cls(
            model=deployment.shape.name,
            gpu=deployment.gpu.id,
            weights=deployment.weights.name,
            kv=deployment.kv.name,
            parallelism=deployment.parallelism,
            exchanges=deployment.rates.exchanges,
            engine=engine,
            engine_version=engine_version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Where the samples of one figure lay, in ideal seconds (`Parts.ideal_seconds`), and how many are still remembered."""

    samples: float
    least_ideal_seconds: float
    most_ideal_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Losses of a worker lately, with their error.

    ``samples`` is the number still remembered, older ones counting for less. Quantiles of the attained ratio (expected under
    this fit over measured) are over all of them. ``losses.error_ratio``, the mean absolute error relative to the measurement,
    leaves out the ``outlier_ratio`` of them that were far slower than their kind. ``misfit_ratio``, ``prediction_error_ratio``
    and ``distinct_points``: see `LossFit`. ``default_ratio``: how much slower the bulk of the samples is than expected under
    the defaults, median over the operating points.
    """

    key: CalibrationKey
    losses: Losses
    estimates: Mapping[str, Estimate]  # by the names in `Losses`
    samples: float
    coverage: Mapping[Figure, Coverage]  # figures without samples are absent
    distinct_points: int
    attained_p10_ratio: float
    attained_p50_ratio: float
    attained_p90_ratio: float
    outlier_ratio: float
    misfit_ratio: float
    prediction_error_ratio: float
    default_ratio: float
    points: tuple[OperatingPoint, ...]

    @property
    def basis(self) -> str:
        """One sentence on what the samples told and what the defaults had to lend."""
        if self.distinct_points <= 1:
            return "all samples lie at one operating point: the defaults' shares, scaled to it"
        fitted = [name for name, estimate in self.estimates.items() if estimate.basis is Basis.FITTED]
        scaled = [name for name, estimate in self.estimates.items() if estimate.basis is Basis.SCALED]
        limited = [name for name, estimate in self.estimates.items() if estimate.basis is Basis.AT_LIMIT]
        said = [
            f"from samples: {', '.join(fitted) or 'nothing'}",
            f"near the scaled defaults: {', '.join(scaled) or 'nothing'}",
        ]
        return "; ".join([*said, f"better than the peak allows: {', '.join(limited)}"] if limited else said)


class Calibration:
    """Recent samples of one worker and their fit. `add` each finished request; ask for `fit` whenever it is wanted.

    Takes 250 kB at most (`SampleMemory`), a third of that with ordinary traffic. Where the worker's key changes, make another.
    ``defaults`` are what the fit starts from, and keeps wherever the samples say nothing.
    """

    __slots__ = ("_defaults", "_fit", "_fitted_at_count", "_memory", "key")

    def __init__(self, key: CalibrationKey, defaults: Losses, *, half_life_samples: float = HALF_LIFE_SAMPLES) -> None:
        if not LEAST_SAMPLES <= half_life_samples < inf:
            raise ValueError(f"half_life_samples is at least {LEAST_SAMPLES}, not {half_life_samples}: a fit needs as many")
        self.key = key
        self._defaults = defaults
        self._memory = SampleMemory(Constants.of(defaults, is_parallel=key.exchanges), half_life_samples)
        self._fit: Fit | None = None
        self._fitted_at_count = 0

    def __repr__(self) -> str:
        return (
            f"<Calibration {self.key.model} on {self.key.gpu}: {self.samples_taken} samples, fitted at {self._fitted_at_count}>"
        )

    @property
    def samples_taken(self) -> int:
        """Samples added so far, also those forgotten since."""
        return self._memory.taken

    def add(self, sample: Sample) -> None:
        """Take in one figure of one finished request."""
        self._memory.take(sample)

    def fit(self) -> Fit | None:
        """The losses lately; ``None`` with fewer than `LEAST_SAMPLES` samples, or if all but few of them are forgotten.

        Doing it anew takes milliseconds, so the last one is given back until `REFIT_SAMPLES` more samples, or a quarter more,
        have come.
        """
        taken = self._memory.taken
        if taken < LEAST_SAMPLES:
            return None
        if self._fit is None or taken - self._fitted_at_count >= min(REFIT_SAMPLES, self._fitted_at_count // 4):
            gathered = self._memory.points()
            self._fit = _fit(self.key, self._defaults, gathered)
            self._fitted_at_count = taken
        return self._fit


def _fit(key: CalibrationKey, defaults: Losses, gathered: Sequence[PointSamples]) -> Fit | None:
    points = tuple(found.point for found in gathered)
    samples = sum(point.samples for point in points)
    if samples < LEAST_SAMPLES / 2:
        return None
    fitted = fit_losses(points, defaults, is_parallel=key.exchanges)
    before = Constants.of(defaults, is_parallel=key.exchanges)
    lost: list[tuple[float, float]] = []  # logarithm of measured over expected, and the weight
    error = ordinary = 0.0
    for found in gathered:
        point = found.point
        shift = log(fitted.constants.seconds(point.figure, point.parts) / before.seconds(point.figure, point.parts))
        fence = found.centre + FENCE_SPREADS * found.spread
        for log_ratio, weight in zip(found.log_ratios, found.weights, strict=True):
            lost.append((log_ratio - shift, weight))
            if log_ratio <= fence:
                ordinary += weight
                error += weight * abs(exp(shift - log_ratio) - 1.0)
    lost.sort()
    p90, p50, p10 = (exp(-value) for value in quantiles(lost, (0.1, 0.5, 0.9)))  # the most is lost where the least is attained
    against_defaults = sorted((found.centre, found.point.samples) for found in gathered)
    return Fit(
        key=key,
        losses=_losses(fitted, error / ordinary, samples),
        estimates=fitted.estimates,
        samples=samples,
        coverage=_coverage(points),
        distinct_points=fitted.distinct_points,
        attained_p10_ratio=p10,
        attained_p50_ratio=p50,
        attained_p90_ratio=p90,
        outlier_ratio=max(0.0, 1.0 - ordinary / samples),
        misfit_ratio=fitted.misfit_ratio,
        prediction_error_ratio=fitted.prediction_error_ratio,
        default_ratio=exp(quantile(against_defaults, 0.5)),
        points=points,
    )


def _losses(fitted: LossFit, error_ratio: float, samples: float) -> Losses:
    estimates = fitted.estimates
    return Losses(
        compute_efficiency_ratio=estimates["compute_efficiency_ratio"].value,
        memory_efficiency_ratio=estimates["memory_efficiency_ratio"].value,
        layer_overhead_seconds=estimates["layer_overhead_seconds"].value,
        parallel_layer_overhead_seconds=estimates["parallel_layer_overhead_seconds"].value,
        request_overhead_seconds=estimates["request_overhead_seconds"].value,
        error_ratio=error_ratio,
        source=f"fitted to {samples:.0f} figures of the worker's own requests",
    )


def _coverage(points: Sequence[OperatingPoint]) -> Mapping[Figure, Coverage]:
    covered = {}
    for figure in Figure:
        own = [point for point in points if point.figure is figure]
        if own:
            ideal = [point.parts.ideal_seconds for point in own]
            covered[figure] = Coverage(
                samples=sum(point.samples for point in own), least_ideal_seconds=min(ideal), most_ideal_seconds=max(ideal)
            )
    return covered
