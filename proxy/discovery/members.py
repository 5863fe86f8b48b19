"""Who belongs to one pool: what its source says now, and those that it does not name any more and that may not go yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from proxy.discovery.found import FoundWorker

LINGER_SECONDS = 30.0
"""How long a worker that has vanished stays at least, idle or not: longer than a serving process needs to hear of it, and than
most scrapers need to see its last figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """One pool at one moment. Frozen: each change makes a new one."""

    present: tuple[FoundWorker, ...] = ()
    leaving: tuple[tuple[FoundWorker, float], ...] = ()  # and since when

    @classmethod
    def going_on(cls, workers: Iterable[FoundWorker], now: float) -> Members:
        """What was in force before this process, or before a reload: nobody knows how long those that leave have been."""
        workers = tuple(workers)
        return cls(
            present=tuple(worker for worker in workers if not worker.is_gone),
            leaving=tuple((worker, now) for worker in workers if worker.is_gone),
        )

    @property
    def in_force(self) -> tuple[FoundWorker, ...]:
        """All of them in the order of names; those that leave are draining."""
        leaving = (replace(worker, is_draining=True, is_gone=True) for worker, _ in self.leaving)
        return tuple(sorted((*self.present, *leaving), key=lambda worker: worker.name))

    def after(self, found: tuple[FoundWorker, ...], now: float) -> Members:
        """The source names these. Who is missing begins to leave, unless somebody else has its name or address now."""
        names = {worker.name for worker in found}
        urls = {worker.url for worker in found}
        since = {worker.name: at for worker, at in self.leaving}
        before = (*self.present, *(worker for worker, _ in self.leaving))
        leaving = tuple(
            (worker, since.get(worker.name, now)) for worker in before if worker.name not in names and worker.url not in urls
        )
        return Members(present=found, leaving=leaving)

    def settled(self, is_busy: Callable[[FoundWorker], bool], drain_seconds: float, now: float) -> Members:
        """Without those that have lingered and are idle, or have had ``drain_seconds``, busy or not."""
        staying = tuple(
            (worker, since) for worker, since in self.leaving if _stays(now - since, is_busy(worker), drain_seconds)
        )
        return self if len(staying) == len(self.leaving) else replace(self, leaving=staying)


def _stays(left_for_seconds: float, is_busy: bool, drain_seconds: float) -> bool:
    return left_for_seconds < (max(LINGER_SECONDS, drain_seconds) if is_busy else LINGER_SECONDS)
