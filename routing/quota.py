"""What a key may use in a minute: limits, and how much of a running total lies within the last sixty seconds. Pure.

The total is shared by all serving processes; a window remembers what it was at steps of a second. What is older than a minute
by less than a step still counts, so no minute has more than the limit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
STEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits of one key; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt and output, estimated first and then as the worker counted
    concurrent_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSharing:
    """Limits per minute are for several gateways together, which share a store."""

    is_open: bool = False  # while the store is away each gateway goes by its own count; False: it lets nobody in


class Window:
    """The last minute of a running total that may also go back a little. One limit of one key, in one process."""

    __slots__ = ("_steps", "limit")

    def __init__(self, limit: float, total: float, now: float) -> None:
        """It begins with nothing used, whatever the total is."""
        self.limit = limit
        self._steps: deque[tuple[float, float]] = deque(((now - WINDOW_SECONDS, total),))

    def __repr__(self) -> str:
        return f"<Window of {self.limit:g}, {len(self._steps)} steps>"

    def used(self, total: float, now: float) -> float:
        """How much of the total has come in the last minute."""
        steps = self._steps
        if now - steps[-1][0] >= STEP_SECONDS:
            self.note(total, now)
        until = now - WINDOW_SECONDS
        while len(steps) > 1 and steps[1][0] <= until:
            steps.popleft()
        return total - steps[0][1]

    def note(self, total: float, now: float) -> None:
        """Remember the total of this moment; call it once a second at least, also while nothing happens."""
        steps = self._steps
        if now - steps[-1][0] < STEP_SECONDS:
            return
        if len(steps) > 1 and steps[-1][1] == steps[-2][1] == total:
            steps[-1] = (now, total)
        else:
            steps.append((now, total))

    def seconds_until(self, cost: float, total: float, now: float) -> float | None:
        """Seconds until so much more can be used, if nothing else is; None if it is over the limit by itself."""
        if cost > self.limit:
            return None
        for at, before in self._steps:
            if total - before + cost <= self.limit:
                return max(0.0, at + WINDOW_SECONDS - now)
        return WINDOW_SECONDS

    def seconds_until_free(self, total: float, now: float) -> float:
        """Seconds until the whole limit can be used again."""
        free_at = now
        for at, before in reversed(self._steps):
            if before != total:
                break
            free_at = at
        return max(0.0, free_at + WINDOW_SECONDS - now)
