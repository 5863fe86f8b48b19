"""Total time against output length at one prompt: the first token is its intercept, each further one its slope.

    seconds = TTFT + TPOT x (output - 1)

The first token comes with the prefill, so the line is over output - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roofline.experiments.least_squares import Estimated, Refused, Timed, fit, medians, relative_weights

_LEAST_RANGE = 2.0  # longest over shortest output


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLine:
    """What a request costs once, and what each further token adds."""

    ttft_seconds: Estimated  # the intercept
    tpot_seconds: Estimated  # the slope
    r_squared: float
    error_ratio: float  # mean distance from the line over the time
    points: int  # different output lengths

    def seconds(self, output_tokens: float) -> float:
        """On the line."""
        return self.ttft_seconds.value + self.tpot_seconds.value * (output_tokens - 1)

    def prefill_ratio(self, output_tokens: float) -> float:
        """Share of the whole that the first token takes, 0-1: near 1 is prefill-bound, near 0 decode-bound."""
        whole = self.seconds(output_tokens)
        return min(1.0, max(0.0, self.ttft_seconds.value / whole)) if whole > 0 else 0.0

    @property
    def even_tokens(self) -> float | None:
        """The output at which the first token and all others take as long; ``None`` without a slope above 0."""
        if self.tpot_seconds.value <= 0.0 or self.ttft_seconds.value <= 0.0:
            return None
        return 1.0 + self.ttft_seconds.value / self.tpot_seconds.value


def output_line(measured: Sequence[Timed]) -> OutputLine | Refused:
    """Fit whole times (from sending to the last token) by output tokens.

    Refused without three different lengths, the longest twice the shortest, or if time does not grow with the output.
    """
    points = medians(one for one in measured if one.count >= 1 and one.seconds > 0.0)
    if len(points) < 3:
        return Refused(f"{len(points)} output lengths were measured, at least 3 different ones are needed")
    if points[-1].count < _LEAST_RANGE * points[0].count:
        return Refused(f"outputs reach from {points[0].count:.0f} to {points[-1].count:.0f} tokens, which is too narrow")
    values = [one.seconds for one in points]
    found = fit([(1.0, one.count - 1) for one in points], values, relative_weights(values))
    if isinstance(found, Refused):
        return found
    first, each = found.coefficients
    if not each.is_above_zero:
        return Refused("the time does not grow with the output: tokens may be buffered, or noise is larger than their time")
    return OutputLine(
        ttft_seconds=first,
        tpot_seconds=each,
        r_squared=found.r_squared,
        error_ratio=found.error_ratio,
        points=found.points,
    )
