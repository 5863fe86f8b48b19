"""What the gateway's meter would measure of streams in virtual time, without making a stream of each.

All sequences that decode on a rank get their tokens at the ends of its steps, so the gaps of one of them are those between the
steps from its first token to its last. A rank's gaps are counted once for all, and a sequence's are the difference of two
counts: that costs the same for an answer of ten thousand tokens as for one of ten.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from telemetry.events import Usage
from telemetry.measurements import Measurements, stall_ratio


class StepGaps:
    """Times between the ends of one rank's steps, counted by bucket, with the largest since any of them."""

    __slots__ = ("_bounds", "_large", "_places", "counts", "last_at", "steps")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.steps = 0
        self.last_at = 0.0  # the end of the last step
        self._bounds = bounds
        self._places: list[int] = []  # of gaps that none after them reaches ...
        self._large: list[float] = []  # ... and how long these are, falling

    def __repr__(self) -> str:
        return f"<StepGaps of {self.steps} steps>"

    def step(self, at: float) -> None:
        """A step has ended."""
        gap = at - self.last_at
        self.last_at = at
        self.steps += 1
        self.counts[bisect_left(self._bounds, gap)] += 1
        large, places = self._large, self._places
        while large and large[-1] <= gap:
            large.pop()
            places.pop()
        large.append(gap)
        places.append(self.steps)

    def largest_since(self, steps: int) -> float:
        """The largest gap after so many steps; 0 if there was none."""
        place = bisect_right(self._places, steps)
        return self._large[place] if place < len(self._large) else 0.0


class StreamFigures:
    """The stream of one request, from its first token on: `open` when tokens begin to come or come again, `close` when not."""

    __slots__ = ("_began", "_began_counts", "_bounds", "_gaps", "counts", "first_token_at", "largest", "last_token_at", "total")

    def __init__(self, bounds: Sequence[float], gaps: StepGaps) -> None:
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.largest = 0.0
        self._bounds = bounds
        self._gaps = gaps  # of its rank
        self._began: int | None = None  # steps of the rank when it was opened; None: it is closed
        self._began_counts: list[int] = []

    def __repr__(self) -> str:
        return f"<StreamFigures {'closed' if self._began is None else 'open'}, {sum(self.counts)} gaps so far>"

    @property
    def is_open(self) -> bool:
        """Whether every step of the rank brings it a token."""
        return self._began is not None

    def open(self, at: float) -> None:
        """The step that ends now, and has been told to the rank's gaps, brought the first token, or the first after a break."""
        if self.last_token_at is not None:
            gap = at - self.last_token_at
            self.counts[bisect_left(self._bounds, gap)] += 1
            self.largest = max(self.largest, gap)
        else:
            self.first_token_at = at
        self.last_token_at = at
        self._began = self._gaps.steps
        self._began_counts = self._gaps.counts.copy()

    def close(self) -> None:
        """The rank's last step brought its last token, or its last before a break."""
        if self._began is None:
            return
        gaps = self._gaps
        for bucket, (before, now) in enumerate(zip(self._began_counts, gaps.counts, strict=True)):
            self.counts[bucket] += now - before
        self.largest = max(self.largest, gaps.largest_since(self._began))
        self.last_token_at = gaps.last_at
        self._began = None

    def measured(self, usage: Usage, finish_reason: str) -> Measurements:
        """What a meter says at the end of the stream, which is closed; all of its tokens are visible text."""
        first, last = self.first_token_at, self.last_token_at
        if first is None or last is None:
            raise RuntimeError("no token has come")
        events = sum(self.counts) + 1
        count = usage.completion_tokens
        return Measurements(
            first_token_at=first,
            first_visible_at=first,
            last_token_at=last,
            token_events=events,
            usage=usage,
            usage_is_final=True,
            finish_reasons=(finish_reason,),
            is_complete=True,
            gap_counts=self.counts if events > 1 else None,
            gap_sum_seconds=last - first,
            gaps_are_per_token=events > 1 and count is not None and 0 <= count - events <= 1,
            stall_ratio=stall_ratio(self.counts, self._bounds, self.largest),
        )
