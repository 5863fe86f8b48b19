"""Where most of some numbers lie, when up to a third of them are far too large.

Requests that stalled, queued or met a cold start are slower than their kind and hardly ever faster. A median moves with them
(by 0.43 of the spread at one quarter of outliers); the centre here is that of the bulk, found from its clean lower side.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt

FENCE_SPREADS = 2.5  # what lies farther from the centre belongs to another kind
KNOWN_SPREAD_WEIGHT = 12.0  # below so much weight a spread is guessed better than estimated
_PASSES = 4
_START_QUANTILE = 0.4  # the clean median lies at 0.35-0.5 of everything when up to 30 % are too large
_LOW_QUANTILE = 0.1
_SPREADS_BETWEEN = 1.1  # normal spreads between these two: 1.03 without outliers, 1.19 with a quarter of them
_CUT_SPREAD = 0.9546  # standard deviation of a standard normal cut off at +-2.5
_LEAST_SPREAD = 1e-6  # equal numbers still get a fence around them


@dataclass(frozen=True, slots=True)
class Location:
    """Centre and standard deviation of the bulk, and the weight of everything it was found from."""

    centre: float
    spread: float
    weight: float


def location(values: Sequence[float], weights: Sequence[float], usual_spread: float) -> Location:
    """Weighted mean and deviation of what lies within `FENCE_SPREADS` of the bulk's centre, found by repeated trimming.

    ``usual_spread`` is taken for the spread where the weights add up to too little to estimate one. ``values`` must not be
    empty, and the weights above 0.
    """
    ordered = sorted(zip(values, weights, strict=True))
    rising = [value for value, _ in ordered]
    totals = list(accumulate((weight for _, weight in ordered), initial=0.0))
    firsts = list(accumulate((weight * value for value, weight in ordered), initial=0.0))
    seconds = list(accumulate((weight * value * value for value, weight in ordered), initial=0.0))
    weight = totals[-1]
    middle, lower = quantiles(ordered, (_START_QUANTILE, _LOW_QUANTILE))
    centre = middle
    is_spread_known = weight >= KNOWN_SPREAD_WEIGHT
    spread = usual_spread
    if is_spread_known:
        spread = max((middle - lower) / _SPREADS_BETWEEN, _LEAST_SPREAD)
    for _ in range(_PASSES):
        low = bisect_left(rising, centre - FENCE_SPREADS * spread)
        high = bisect_right(rising, centre + FENCE_SPREADS * spread)
        total = totals[high] - totals[low]
        if total <= 0.0:
            break  # a gap around the centre: nothing better is known
        centre = (firsts[high] - firsts[low]) / total
        if is_spread_known:
            variance = (seconds[high] - seconds[low]) / total - centre * centre
            spread = max(sqrt(max(variance, 0.0)) / _CUT_SPREAD, _LEAST_SPREAD)
    return Location(centre, spread, weight)


def quantile(ordered: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which ``share`` (0-1) of the weight lies. ``ordered``: pairs of value and weight by rising value."""
    return quantiles(ordered, (share,))[0]


def quantiles(ordered: Sequence[tuple[float, float]], shares: Sequence[float]) -> list[float]:
    """Several of them at once."""
    totals = list(accumulate(weight for _, weight in ordered))
    return [ordered[_reaching(totals, share)][0] for share in shares]


def _reaching(totals: Sequence[float], share: float) -> int:
    """Where running totals reach a share of the last one."""
    return min(bisect_left(totals, share * totals[-1]), len(totals) - 1)
