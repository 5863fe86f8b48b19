"""What finds workers: something that runs until cancelled and tells a listener what it learns."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, Protocol

from proxy.discovery.found import FoundWorker


class Listener(NamedTuple):
    """Whom a source tells. Both are called in the event loop and return at once."""

    found: Callable[[tuple[FoundWorker, ...]], None]  # these are the workers now, all of them; `checked`
    failed: Callable[[str], None]  # nothing could be learned, for this reason; what was found last stays


class Source(Protocol):
    """One way to find the workers of one pool."""

    async def run(self, listener: Listener) -> None:
        """Look, and go on looking, until cancelled. Faults of the world are told, never raised."""


class Pause:
    """Seconds to wait after a failure: the first, doubled each time up to the most; of that, between half and all."""

    def __init__(self, first_seconds: float, most_seconds: float) -> None:
        self._first_seconds = self._next_seconds = first_seconds
        self._most_seconds = most_seconds

    def after_failure(self) -> float:
        """How long to wait now."""
        seconds = self._next_seconds
        self._next_seconds = min(2 * seconds, self._most_seconds)
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311 -- jitter: replicas are not to come back all at once

    def after_success(self) -> None:
        """The next failure is a first one."""
        self._next_seconds = self._first_seconds
