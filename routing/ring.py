"""Who is at home where: a ring of hashes, on which each key belongs to the next worker.

Made once for a pool and the same in every replica, since it is made of the workers' names alone. A worker that comes or goes
moves only the keys that become or were its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from itertools import compress
from struct import unpack

from routing.topology import Pool, Worker

KEY_BITS = 64
"""Of what is looked up on a ring."""

PLACED_AT_ONCE = 10
"""Workers whose points are put on rings in one step, which takes about 1 ms."""

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
        points: list[int] = []
        names: list[str] = []
        known: AbstractSet[str] = frozenset()
        if before is not None:
            points, names, known = before._points, before._names, before._workers.keys()
            if not known <= self._workers.keys():
                stays = [name in self._workers for name in names]
                points, names = list(compress(points, stays)), list(compress(names, stays))
        fresh = sorted((point, name) for name in self._workers if name not in known for point in _points_of(name))
        self._points, self._names = merged(points, names, fresh)

    def __repr__(self) -> str:
        return f"<Ring of {self.size} workers>"

    def __contains__(self, name: str) -> bool:
        return name in self._workers

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


def merged(points: Sequence[int], names: Sequence[str], fresh: Iterable[tuple[int, str]]) -> tuple[list[int], list[str]]:
    """Sorted points with their names and others put between them, which are sorted too: all as if they were sorted at once.

    What lies between two of the others is copied whole: one more of hundreds of workers brings 96 points to some 50,000.
    """
    all_points: list[int] = []
    all_names: list[str] = []
    start = 0
    for point, name in fresh:
        end = bisect_left(points, point, start)
        while (
            end < len(points) and points[end] == point and names[end] < name
        ):  # hardly ever: then by name, as if sorted at once
            end += 1
        all_points += points[start:end]
        all_names += names[start:end]
        all_points.append(point)
        all_names.append(name)
        start = end
    all_points += points[start:]
    all_names += names[start:]
    return all_points, all_names


def _points_of(name: str) -> list[int]:
    points: list[int] = []
    for number in range(_HASHES):
        points += unpack(">8Q", blake2b(f"{number} {name}".encode(), digest_size=64).digest())
    return points


_NO_RINGS: Mapping[tuple[str, str], Ring] = {}
_EMPTY = Ring(())


def rings_of(pools: Iterable[Pool], before: Mapping[tuple[str, str], Ring] = _NO_RINGS) -> dict[int, Ring]:
    """The rings that policies of these pools need, by pool index; ``before`` are those of the same pools, by model and name.

    To place hundreds of workers takes tens of milliseconds, in which a process does nothing else: see `rings_in_steps`.
    """
    return next(rings for rings in rings_in_steps(pools, before) if rings is not None)


def rings_in_steps(
    pools: Iterable[Pool], before: Mapping[tuple[str, str], Ring] = _NO_RINGS
) -> Iterator[dict[int, Ring] | None]:
    """Make what `rings_of` returns: it comes last, after a ``None`` for every `PLACED_AT_ONCE` workers that are new."""
    rings: dict[int, Ring] = {}
    room = PLACED_AT_ONCE
    for pool in filter(needs_ring, pools):
        ring = before.get((pool.model, pool.name), _EMPTY)
        placed = [worker for worker in pool.workers if worker.name in ring]
        fresh = [worker for worker in pool.workers if worker.name not in ring]
        while len(fresh) > room:
            placed += fresh[:room]
            del fresh[:room]
            ring = Ring(placed, ring)
            yield None
            room = PLACED_AT_ONCE
        room -= len(fresh)
        rings[pool.index] = Ring(pool.workers, ring)
    yield rings


def needs_ring(pool: Pool) -> bool:
    """Whether the pool's policy looks at what ties a request to a worker, and there is a choice of workers or ranks."""
    return pool.policy in _POLICIES and (
        len(pool.workers) > 1 or any(worker.data_parallel_ranks > 1 for worker in pool.workers)
    )
