"""How many requests may be sent a second time: a share of the recent ones, whatever happens to the workers."""

from __future__ import annotations

from math import exp

WINDOW_SECONDS = 10.0
"""What is recent: a request counts for less and less, and for 1/e after so long."""


class RetryBudget:
    """Retries may be ``ratio`` of the requests, and ``floor_per_second`` more, so that quiet gateways may retry too.

    One per serving process, for all its requests: when every worker fails, the load on them grows by the ratio and not by the
    number of attempts. Instants are of the caller's monotonic clock.
    """

    __slots__ = ("_at", "_recent_requests", "_recent_retries", "floor_per_second", "ratio", "requests")

    def __init__(self, ratio: float, floor_per_second: float, now: float) -> None:
        self.ratio = ratio
        self.floor_per_second = floor_per_second
        self.requests = 0  # since the last question; whoever takes a request adds one
        self._recent_requests = 0.0
        self._recent_retries = 0.0
        self._at = now

    def __repr__(self) -> str:
        return f"<RetryBudget {self._recent_retries:.1f} of {self._allowed:.1f} used>"

    @property
    def _allowed(self) -> float:
        return self.ratio * self._recent_requests + self.floor_per_second * WINDOW_SECONDS

    def take(self, now: float) -> bool:
        """Whether one more retry may be made now; it counts when it may."""
        passed = max(0.0, now - self._at)
        kept = exp(-passed / WINDOW_SECONDS)
        # What came since the last question came evenly, as far as is known.
        arrived = self.requests * (1 - kept) * WINDOW_SECONDS / passed if passed else self.requests
        self._recent_requests = self._recent_requests * kept + arrived
        self._recent_retries *= kept
        self.requests = 0
        self._at = now
        if self._recent_retries + 1 > self._allowed:
            return False
        self._recent_retries += 1
        return True


def backoff_seconds(base_seconds: float, back_pressures: int, draw: float) -> float:
    """How long to wait before the next worker is asked, after so many have said that they are busy (at least 1).

    The first is followed at once; later ones by full jitter, from 0 to a bound that doubles. ``draw`` is random, 0 to 1.
    """
    if back_pressures <= 1:
        return 0.0
    return float(draw * base_seconds * 2 ** min(back_pressures - 2, 10))
