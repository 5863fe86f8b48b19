"""Who is at home where: a ring of hashes, on which each key belongs to the next worker.

Made once for a pool and the same in every replica, since it is made of the workers' names alone. A worker that comes or goes
moves only the keys that become or were its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from struct import unpack

from routing.topology import Pool, Worker

KEY_BITS = 64
"""Of what is looked up on a ring."""

_HASHES = 12  # of eight points each: with 96 points per worker shares differ by about a tenth
_POLICIES = ("prefix-affinity", "session", "fastest")


class Ring:
    """The workers of one pool. What an earlier ring has in common with it need not be made again: ``before``."""

    __slots__ = ("_names", "_points", "_workers", "size", "workers")

    def __init__(self, workers: Sequence[Worker], before: Ring | None = None) -> None:
        self.workers = workers  # as they were given
        self.size = len(workers)
        self._workers = {worker.name: worker for worker in workers}
        if before is not None and before._workers.keys() == self._workers.keys():
            self._points: list[int] = before._points
            self._names: list[str] = before._names
            return
        placed: list[tuple[int, str]] = []
        known: Collection[str] = ()
        if before is not None:
            known = before._workers
            placed = [pair for pair in zip(before._points, before._names, strict=True) if pair[1] in self._workers]
        fresh = [(point, name) for name in self._workers if name not in known for point in _points_of(name)]
        if fresh:
            fresh.sort()
            placed += fresh
            placed.sort()  # of two sorted runs, which it merges
        self._points = [point for point, _ in placed]
        self._names = [name for _, name in placed]

    def __repr__(self) -> str:
        return f"<Ring of {self.size} workers>"

    def home(self, key: int) -> Worker:
        """The worker that a key of 64 bits belongs to."""
        place = bisect_right(self._points, key)
        return self._workers[self._names[place if place < len(self._names) else 0]]

    def walk(self, key: int) -> Iterator[Worker]:
        """All workers in the order in which they stand in for each other: first the key's own, each once."""
        place = bisect_right(self._points, key)
        seen: set[str] = set()
        names = self._names
        for at in range(place - len(names), place):  # once around, indices below 0 from the end
            name = names[at]
            if name not in seen:
                seen.add(name)
                yield self._workers[name]
                if len(seen) == self.size:
                    return


def _points_of(name: str) -> list[int]:
    points: list[int] = []
    for number in range(_HASHES):
        points += unpack(">8Q", blake2b(f"{number} {name}".encode(), digest_size=64).digest())
    return points


_NO_RINGS: Mapping[tuple[str, str], Ring] = {}


def rings_of(pools: Iterable[Pool], before: Mapping[tuple[str, str], Ring] = _NO_RINGS) -> dict[int, Ring]:
    """The rings that policies of these pools need, by pool index; ``before`` are those of the same pools, by model and name.

    To place hundreds of workers takes tens of milliseconds, in which a serving process does nothing else.
    """
    return {pool.index: Ring(pool.workers, before.get((pool.model, pool.name))) for pool in pools if needs_ring(pool)}


def needs_ring(pool: Pool) -> bool:
    """Whether the pool's policy looks at what ties a request to a worker, and there is a choice of workers or ranks."""
    return pool.policy in _POLICIES and (
        len(pool.workers) > 1 or any(worker.data_parallel_ranks > 1 for worker in pool.workers)
    )
