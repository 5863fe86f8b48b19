"""TTFT against prompt length: what is paid once, by token, by token squared (attention), and by each further chunk.

    seconds = base + linear x S + quadratic x S^2 + chunk x (ceil(S / size) - 1)

Attention shows where the square is as large as the line, at S = linear / quadratic. For a model of 8 billion parameters that is
near 50,000 tokens: below it the square is a few percent, to be fitted and not to be seen. A jump at a round length is chunking
(``--max-num-batched-tokens``), which is nobody's attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from roofline.experiments.least_squares import Estimated, Fit, Refused, Timed, fit, medians, relative_weights

_CHUNKS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)  # sizes that are looked for
_LEAST_RANGE = 4.0  # longest over shortest prompt
_CHUNK_GAIN = 8.0  # so many times smaller must the residual be with chunks than without
_LEAST_POINTS = 4
_EXACT = 1e-12  # of a weighted residual: nothing is left to explain


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Prompts are computed in pieces, each of which costs something by itself."""

    tokens: int
    seconds: Estimated  # each one after the first


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCurve:
    """What a first token costs by the length of its prompt."""

    base_seconds: Estimated
    linear_seconds: Estimated  # each token
    quadratic_seconds: Estimated  # each token squared; not above 0 where attention does not show
    chunks: Chunks | None  # None: no jump was seen
    r_squared: float
    error_ratio: float
    points: int
    longest_tokens: float

    def seconds(self, prompt_tokens: float) -> float:
        """On the curve."""
        chunk = 0.0
        if self.chunks is not None:
            chunk = self.chunks.seconds.value * (ceil(prompt_tokens / self.chunks.tokens) - 1)
        linear, square = self.linear_seconds.value, self.quadratic_seconds.value
        return self.base_seconds.value + linear * prompt_tokens + square * prompt_tokens**2 + chunk

    def attention_ratio(self, prompt_tokens: float) -> float:
        """Share of the square in the whole, 0-1."""
        whole = self.seconds(prompt_tokens)
        return min(1.0, max(0.0, self.quadratic_seconds.value * prompt_tokens**2 / whole)) if whole > 0 else 0.0

    @property
    def crossing_tokens(self) -> float | None:
        """Where the square is as large as the line; ``None`` where attention does not show."""
        if not self.quadratic_seconds.is_above_zero or self.linear_seconds.value <= 0.0:
            return None
        return self.linear_seconds.value / self.quadratic_seconds.value


def prompt_curve(measured: Sequence[Timed], chunk_tokens: int | None = None) -> PromptCurve | Refused:
    """Fit TTFT by prompt tokens. ``chunk_tokens``: the size of the engine's steps where it is known.

    Refused with fewer than four lengths, the longest four times the shortest, or if TTFT does not grow with the prompt.
    """
    points = medians(one for one in measured if one.count >= 1 and one.seconds > 0.0)
    if len(points) < _LEAST_POINTS:
        return Refused(f"{len(points)} prompt lengths were measured, at least {_LEAST_POINTS} different ones are needed")
    if points[-1].count < _LEAST_RANGE * points[0].count:
        return Refused(f"prompts reach from {points[0].count:.0f} to {points[-1].count:.0f} tokens, which is too narrow")
    plain = _fit(points, None)
    if isinstance(plain, Refused):
        return plain
    best, chunk = plain, None
    for size in _CHUNKS if chunk_tokens is None else (chunk_tokens,):
        found = _fit(points, size)
        if isinstance(found, Fit) and _is_better(found, plain) and found.residual < best.residual:
            best, chunk = found, size
    base, linear, square, *jump = best.coefficients
    rise = linear.value * points[-1].count + square.value * points[-1].count ** 2
    if rise <= 0.0 or points[-1].seconds <= points[0].seconds:
        return Refused("TTFT does not grow with the prompt: it is spent on something else, or the prompts were cached")
    return PromptCurve(
        base_seconds=base,
        linear_seconds=linear,
        quadratic_seconds=square,
        chunks=None if chunk is None else Chunks(tokens=chunk, seconds=jump[0]),
        r_squared=best.r_squared,
        error_ratio=best.error_ratio,
        points=best.points,
        longest_tokens=points[-1].count,
    )


def _fit(points: Sequence[Timed], chunk: int | None) -> Fit | Refused:
    values = [one.seconds for one in points]
    rows = [(1.0, one.count, one.count**2) for one in points]
    if chunk is None:
        return fit(rows, values, relative_weights(values))
    further = [(*row, float(ceil(one.count / chunk) - 1)) for row, one in zip(rows, points, strict=True)]
    return fit(further, values, relative_weights(values))


def _is_better(found: Fit, plain: Fit) -> bool:
    """Whether chunks explain what the plain curve does not: more than one more number explains by chance."""
    jump = found.coefficients[3]
    return plain.residual > _EXACT and found.residual * _CHUNK_GAIN < plain.residual and jump.is_above_zero
