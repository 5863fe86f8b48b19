"""A clock that tests move, and a wall clock beside it that they set."""

from __future__ import annotations

from proxy.control.steady_clock import SteadyClock


class Clock:
    """Begins at 0; `steady` is made of it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.set_by_seconds = 0.0  # the wall clock
        self.steady = SteadyClock(wall=lambda: self.wall, clock=lambda: self.now)

    @property
    def wall(self) -> float:
        """What the wall clock says."""
        return self.now + self.set_by_seconds
