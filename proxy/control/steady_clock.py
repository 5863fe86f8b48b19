"""Time that goes on evenly when somebody sets the wall clock, for everything that reckons with when something was."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic, time

_log = logging.getLogger(__name__)

MOST_AGE_SECONDS = 60.0
"""Records come to control within a moment; one that seems older was made before the wall clock was set."""
_SET_SECONDS = 1.0  # less is no news: clocks are steered all the time


class SteadyClock:
    """Unix seconds as the wall clock would tell them if it had not been set since this object was made. One per process."""

    def __init__(self, wall: Callable[[], float] = time, clock: Callable[[], float] = monotonic) -> None:
        self._wall = wall
        self._clock = clock
        self._begun = wall() - clock()
        self._told = 0.0  # seconds by which it was said to have been set

    def __repr__(self) -> str:
        return f"<SteadyClock, the wall clock has been set by {self.set_by_seconds:+.3f} s>"

    def now(self) -> float:
        """Now, never less than at an earlier call."""
        return self._clock() + self._begun

    @property
    def set_by_seconds(self) -> float:
        """How far the wall clock has been set forward since the start; negative: back. What is shown is shifted by this."""
        return self._wall() - self.now()

    def at(self, unix_seconds: float) -> float:
        """When something was that the wall clock said to be at this time; not after now, and at most a minute ago."""
        now = self.now()
        return now - min(max(self._wall() - unix_seconds, 0.0), MOST_AGE_SECONDS)

    def look(self) -> None:
        """Write a line if the wall clock has been set since the last look: time stamps before and after do not compare."""
        set_by = self.set_by_seconds
        if abs(set_by - self._told) >= _SET_SECONDS:
            text = "the wall clock was set by %+.1f s: time stamps before and after that do not compare"
            _log.warning(text, set_by - self._told)
            self._told = set_by
