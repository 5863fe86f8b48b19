"""TPOT and throughput against requests at once: where throughput bends, and from where requests wait.

While all of them decode together, a step costs what they share and what each adds: TPOT = S + A n. The knee is n = S / A, where
TPOT is twice the shared part and throughput half of what it could ever be (`roofline.capacity.knee` says why there).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from roofline.experiments.least_squares import Estimated, Refused, Timed, fit, medians, relative_weights

_LEAST_POINTS = 3
_MOST_ERROR_RATIO = 0.05  # mean distance from the line; above it TPOT does not grow by a line
_MOST_EXTRAPOLATION = 4.0  # a knee farther beyond the largest measured concurrency is told as a lower bound only


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a number of requests at once gave."""

    requests: int
    tpot_seconds: float | None  # while all of them were decoding; None: they never were at the same time
    tokens_per_second: float  # generated, over the whole time from the first request to the last token


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Where throughput bends."""

    requests: Estimated
    shared_seconds: Estimated  # of a step, whatever the batch
    own_seconds: Estimated  # that each request adds to it
    most_measured: int  # requests at once that ran together
    error_ratio: float

    @property
    def is_extrapolated(self) -> bool:
        """Whether it lies beyond what was measured."""
        return self.requests.value > self.most_measured


def concurrency_knee(loads: Sequence[Load]) -> Knee | Refused:
    """Fit TPOT of those loads that ran together.

    Refused with fewer than three of them, where TPOT does not rise (the reason says how far away the knee is at least), or not
    by a line.
    """
    points = medians(Timed(load.requests, load.tpot_seconds) for load in loads if load.tpot_seconds)
    if len(points) < _LEAST_POINTS:
        return Refused(f"{len(points)} numbers of requests ran together, at least {_LEAST_POINTS} different ones are needed")
    values = [one.seconds for one in points]
    found = fit([(1.0, one.count) for one in points], values, relative_weights(values))
    if isinstance(found, Refused):
        return found
    shared, own = found.coefficients
    most = int(points[-1].count)
    steepest = own.value + own.margin
    if shared.value < own.value:
        return Refused("TPOT grows in proportion to the requests: nothing is shared, or the client is what is slow")
    if not own.is_above_zero or shared.value / own.value > _MOST_EXTRAPOLATION * most:
        if steepest <= 0.0:
            return Refused(f"TPOT does not rise up to {most} requests at once: the knee lies beyond")
        least = max(most, int(max(0.0, shared.value - shared.margin) / steepest))
        return Refused(f"TPOT hardly rises up to {most} requests at once: the knee lies beyond {least}")
    if found.error_ratio > _MOST_ERROR_RATIO:
        return Refused(
            f"TPOT does not rise by a line (off by {found.error_ratio:.0%}): other work disturbed it, or something else binds"
        )
    requests = shared.value / own.value
    return Knee(
        requests=Estimated(value=requests, margin=requests * hypot(shared.margin_ratio, own.margin_ratio)),
        shared_seconds=shared,
        own_seconds=own,
        most_measured=most,
        error_ratio=found.error_ratio,
    )


def waiting_from(loads: Sequence[Load]) -> int | None:
    """The smallest number of requests at once that did not all run together; ``None``: they always did."""
    return min((load.requests for load in loads if load.tpot_seconds is None), default=None)


def best_throughput(loads: Sequence[Load]) -> Load | None:
    """The load under which most tokens came; ``None`` without any."""
    return max(loads, key=lambda load: load.tokens_per_second, default=None)
