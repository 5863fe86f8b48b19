"""How many prompt tokens a step may compute beside decoding sequences: chunked prefill.

A larger chunk ends a prompt in fewer steps (TTFT), and makes each of those steps longer for all sequences that decode (jitter).
So: TTFT missed, larger; jitter too high, smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from roofline.capacity.bisection import crossing
from roofline.capacity.targets import JITTER_RATIO
from roofline.capacity.workload import Workload
from roofline.deployment import Deployment
from roofline.expected import Losses, expected
from roofline.work import Span

SMALLEST_CHUNK_TOKENS = 512  # below, matrix units are not filled
LARGEST_CHUNK_TOKENS = 2048  # above, jitter is felt
FIRST_CHUNK_TOKENS = 1024  # to start from, before anything is measured
_GRAIN_TOKENS = 64  # chunks are rounded down to tiles of matrix units


class ChunkLimit(StrEnum):
    """What keeps a chunk from being larger."""

    JITTER = "jitter"
    LARGEST = "largest"  # the largest in the range is within the limit
    SMALLEST = "smallest"  # even the smallest is beyond it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAdvice:
    """A chunk size, and what a step with such a chunk comes to."""

    chunk_tokens: int
    limited_by: ChunkLimit
    step_seconds: float  # with a chunk, at the end of a prompt, where it is longest
    limit_seconds: float
    decode_step_seconds: float  # without a chunk
    batch: float
    steps_per_prompt: int

    @property
    def budget_tokens(self) -> int:
        """What to set --max-num-batched-tokens to: each decoding sequence takes a token of it."""
        return self.chunk_tokens + ceil(self.batch)

    @property
    def prefill_seconds(self) -> float:
        """All chunks of a prompt, each taken as long as the last: an upper bound of its part of TTFT."""
        return self.steps_per_prompt * self.step_seconds


class Direction(StrEnum):
    """Which way to move the chunk size."""

    LARGER = "larger"
    SMALLER = "smaller"
    KEEP = "keep"
    NEITHER = "neither"  # both are missed: less load or more GPUs


def chunk_direction(*, is_ttft_missed: bool, is_jitter_high: bool) -> Direction:
    """Which way to move the chunk size. Smaller chunks lengthen TTFT, larger ones add jitter."""
    if is_ttft_missed and is_jitter_high:
        return Direction.NEITHER
    if is_ttft_missed:
        return Direction.LARGER
    return Direction.SMALLER if is_jitter_high else Direction.KEEP


def recommend_chunk(
    deployment: Deployment,
    losses: Losses,
    workload: Workload,
    *,
    batch: float,
    tpot_seconds: float | None = None,
    jitter_ratio: float = JITTER_RATIO,
    smallest_tokens: int = SMALLEST_CHUNK_TOKENS,
    largest_tokens: int = LARGEST_CHUNK_TOKENS,
) -> ChunkAdvice:
    """The largest chunk whose step beside ``batch`` decoding sequences stays within ``jitter_ratio`` times the usual step.

    The usual step is one without a chunk, or ``tpot_seconds`` if that target leaves more room. ``ValueError`` for a range that
    is none, or a batch below one.
    """
    if not 0 < smallest_tokens <= largest_tokens or batch < 1:
        raise ValueError(f"chunks of {smallest_tokens} to {largest_tokens} tokens beside {batch} sequences make no range")
    context = workload.mean_context_tokens
    decoding = Span(context, 1, batch)
    usual = expected(deployment, (decoding,), losses).seconds
    limit = jitter_ratio * max(usual, tpot_seconds or 0.0)

    def step_seconds(chunk: float) -> float:
        new = min(int(chunk), workload.prompt_tokens)
        return expected(deployment, (Span(workload.prompt_tokens - new, new), decoding), losses).seconds

    chunk, limited_by = largest_tokens, ChunkLimit.LARGEST
    if step_seconds(smallest_tokens) > limit:
        chunk, limited_by = smallest_tokens, ChunkLimit.SMALLEST
    elif step_seconds(largest_tokens) > limit:
        first_beyond = crossing(lambda size: step_seconds(size) > limit, smallest_tokens, largest_tokens, tolerance_ratio=1e-4)
        chunk = max(smallest_tokens, (int(first_beyond) - 1) // _GRAIN_TOKENS * _GRAIN_TOKENS)
        limited_by = ChunkLimit.JITTER
    uncached = max(1, workload.prompt_tokens - workload.cached_tokens)
    return ChunkAdvice(
        chunk_tokens=chunk,
        limited_by=limited_by,
        step_seconds=step_seconds(chunk),
        limit_seconds=limit,
        decode_step_seconds=usual,
        batch=batch,
        steps_per_prompt=ceil(uncached / chunk),
    )
