"""Who is at home where: a ring of hashes, on which each key belongs to the next worker.

Made once for a pool and the same in every replica, since it is made of the workers' names alone. A worker that comes or goes
moves only the keys that become or were its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from struct import unpack

from routing.topology import Pool, Worker

KEY_BITS = 64
"""Of what is looked up on a ring."""

_HASHES = 12  # of eight points each: with 96 points per worker shares differ by about a tenth
_POLICIES = ("prefix-affinity", "session", "fastest")


class Ring:
    """The workers of one pool."""

    __slots__ = ("_owners", "_points", "size", "workers")

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers  # as they were given
        self.size = len(workers)
        points = sorted((point, worker.name, worker) for worker in workers for point in _points_of(worker.name))
        self._points = [point for point, _, _ in points]
        self._owners = [worker for _, _, worker in points]

    def __repr__(self) -> str:
        return f"<Ring of {self.size} workers>"

    def home(self, key: int) -> Worker:
        """The worker that a key of 64 bits belongs to."""
        place = bisect_right(self._points, key)
        return self._owners[place if place < len(self._owners) else 0]

    def walk(self, key: int) -> Iterator[Worker]:
        """All workers in the order in which they stand in for each other: first the key's own, each once."""
        place = bisect_right(self._points, key)
        seen: set[int] = set()
        owners = self._owners
        for at in range(place - len(owners), place):  # once around, indices below 0 from the end
            worker = owners[at]
            if worker.index not in seen:
                seen.add(worker.index)
                yield worker
                if len(seen) == self.size:
                    return


def _points_of(name: str) -> list[int]:
    points: list[int] = []
    for number in range(_HASHES):
        points += unpack(">8Q", blake2b(f"{number} {name}".encode(), digest_size=64).digest())
    return points


def rings_of(pools: Iterable[Pool]) -> dict[int, Ring]:
    """The rings that policies of these pools need, by pool index."""
    return {pool.index: Ring(pool.workers) for pool in pools if needs_ring(pool)}


def needs_ring(pool: Pool) -> bool:
    """Whether the pool's policy looks at what ties a request to a worker, and there is a choice of workers or ranks."""
    return pool.policy in _POLICIES and (
        len(pool.workers) > 1 or any(worker.data_parallel_ranks > 1 for worker in pool.workers)
    )
