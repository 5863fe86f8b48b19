"""What one answer showed: the figures that a meter gives back."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from telemetry.events import Usage, WorkerTimes

_ENDED_BY_WORKER = frozenset({"abort", "error", "cancelled"})


class Measurements(msgspec.Struct, gc=False):
    """What one answer showed. Instants are of the caller's monotonic clock; ``None`` is what did not happen."""

    first_token_at: float | None = None  # first event that carried anything generated
    first_visible_at: float | None = None  # first visible text
    last_token_at: float | None = None  # last event that carried a token or a finish reason
    token_events: int = 0
    usage: Usage | None = None
    usage_is_final: bool = False  # of the whole answer, with all details that the worker has to tell
    finish_reasons: tuple[str, ...] = ()
    is_error: bool = False  # an error event, or an error object as plain answer
    is_complete: bool = False  # every choice has a finish reason, or the end marker came
    missing_end: str | None = None  # of a complete stream: the marker that did not come
    faults: int = 0
    gap_counts: list[int] | None = None  # gaps between token events, per bucket of the bounds given and one above
    gap_sum_seconds: float = 0.0
    gaps_are_per_token: bool = False  # every gap is known to stand for one token
    stall_ratio: float | None = None  # largest gap / median gap, the median to within its bucket
    is_unmetered: bool = False
    times: WorkerTimes | None = None  # of the worker's own clocks
    answer_id: str | None = None  # of a response, by which it can be asked for later

    @property
    def is_aborted(self) -> bool:
        """Whether the worker itself ended a generation."""
        return not _ENDED_BY_WORKER.isdisjoint(self.finish_reasons)

    def tpot_seconds(self) -> float | None:
        """(last token - first token) / (completion_tokens - 1).

        ``None`` below two tokens, without usage, and when both came in one read.
        """
        count = None if self.usage is None else self.usage.completion_tokens
        if count is None or count < 2 or self.first_token_at is None or self.last_token_at is None:
            return None
        if self.last_token_at <= self.first_token_at:
            return None  # all in one read: how far apart they were generated was not seen
        return (self.last_token_at - self.first_token_at) / (count - 1)


def stall_ratio(counts: Sequence[int], bounds: Sequence[float], largest: float) -> float | None:
    """The largest gap over the median gap, which is known to within its bucket; at least 1.

    ``None`` without any gap above 0: all came in one read.
    """
    if not largest:
        return None
    half = sum(counts) / 2
    seen = 0
    for bucket, count in enumerate(counts):
        if count and seen + count >= half:
            low = bounds[bucket - 1] if bucket else 0.0
            high = bounds[bucket] if bucket < len(bounds) else largest
            median = low + (high - low) * (half - seen) / count
            return max(1.0, largest / median) if median > 0 else None
        seen += count
    return None
