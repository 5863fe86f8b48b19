"""The losses that a worker is judged by: frozen when accepted, so that slowing down does not become the measure of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from roofline.calibration.calibration import CalibrationKey, Coverage, Fit
from roofline.calibration.loss_fit import Basis, Estimate
from roofline.calibration.sample import Figure
from roofline.expected import Losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An accepted calibration. Nothing changes it; another acceptance makes another one. Fields as in `Fit`."""

    key: CalibrationKey
    losses: Losses
    estimates: Mapping[str, Estimate]
    samples: float
    coverage: Mapping[Figure, Coverage]
    outlier_ratio: float
    misfit_ratio: float
    prediction_error_ratio: float
    accepted_unix_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRule:
    """What a fit must show to become the first reference without being asked.

    ``most_default_ratio``: a worker that is so much slower than published figures lead to expect may be at fault already, and
    its fault would become the measure. The published figures themselves are off by less than 40 % for any model family.
    """

    least_samples: float = 150.0
    least_distinct_points: int = 3
    most_error_ratio: float = 0.3
    most_prediction_error_ratio: float = 0.08
    most_outlier_ratio: float = 0.35
    most_default_ratio: float = 2.0


DEFAULT_RULE = AcceptanceRule()


def accept(fit: Fit, *, accepted_unix_seconds: float) -> Reference:
    """This fit as reference from now on, whatever its `doubts`: for someone who has looked at it.

    ``ValueError`` if the instant is not a finite number of seconds since 1970.
    """
    if not (isfinite(accepted_unix_seconds) and accepted_unix_seconds >= 0.0):
        raise ValueError(f"accepted_unix_seconds is a finite number of at least 0, not {accepted_unix_seconds}")
    return Reference(
        key=fit.key,
        losses=fit.losses,
        estimates=dict(fit.estimates),
        samples=fit.samples,
        coverage=dict(fit.coverage),
        outlier_ratio=fit.outlier_ratio,
        misfit_ratio=fit.misfit_ratio,
        prediction_error_ratio=fit.prediction_error_ratio,
        accepted_unix_seconds=accepted_unix_seconds,
    )


def doubts(fit: Fit, rule: AcceptanceRule = DEFAULT_RULE) -> tuple[str, ...]:
    """Why this fit should not become a reference without a look at it, one sentence each; empty if it may."""
    error = fit.losses.error_ratio or 0.0
    limited = [name for name, estimate in fit.estimates.items() if estimate.basis is Basis.AT_LIMIT]
    slower, unsure = fit.default_ratio, fit.prediction_error_ratio
    found = [
        (fit.samples < rule.least_samples, f"{fit.samples:.0f} samples are remembered, {rule.least_samples:.0f} are needed"),
        (
            fit.distinct_points < rule.least_distinct_points,
            f"requests lie at {fit.distinct_points} operating points, {rule.least_distinct_points} are needed",
        ),
        (
            error > rule.most_error_ratio,
            f"ordinary requests are off by {error:.0%} on average, {rule.most_error_ratio:.0%} is allowed",
        ),
        (
            unsure > rule.most_prediction_error_ratio,
            f"expected times are known to {unsure:.0%}, {rule.most_prediction_error_ratio:.0%} is allowed",
        ),
        (
            fit.outlier_ratio > rule.most_outlier_ratio,
            f"{fit.outlier_ratio:.0%} of the requests are far slower than their kind, {rule.most_outlier_ratio:.0%} is allowed",
        ),
        (
            slower > rule.most_default_ratio,
            f"it is {slower:.1f} times slower than published figures suggest, {rule.most_default_ratio:.1f} is allowed",
        ),
        (bool(limited), f"{' and '.join(limited)} would have to be above 1: what is known of the worker may be wrong"),
    ]
    return tuple(sentence for holds, sentence in found if holds)


def reference_in_force(
    current: Reference | None,
    key: CalibrationKey,
    fit: Fit | None,
    *,
    now_unix_seconds: float,
    rule: AcceptanceRule = DEFAULT_RULE,
) -> Reference | None:
    """What requests of a worker with this key are judged by; ``None``: the defaults.

    A reference of the same key stays, whatever the fit says. One of another key (a new engine version, say) ends, and the first
    fit of the new key that leaves no `doubts` takes its place.
    """
    if current is not None and current.key == key:
        return current
    if fit is None or fit.key != key or doubts(fit, rule):
        return None
    return accept(fit, accepted_unix_seconds=now_unix_seconds)
