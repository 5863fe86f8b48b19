"""Where each figure lives: the index of every cell in the flat arrays that processes share.

Each process has one array of float64. It is made of blocks: one for the process itself, then one per route, pool, worker
and key, in the order of the topology. In a block the families of that scope follow each other in catalogue order, each with
its closed labels flattened row-major. A counter or gauge takes one cell; a histogram takes one for each finite bucket (not
cumulative), one for +Inf and one for the sum, and its count is the sum of its buckets.

Offsets are looked up once, when a process is wired::

    cell = layout.pool_base(pool.index) + slot("ridgeline_e2e_seconds", endpoint="chat")
    values[cell + bisect_left(bounds("ridgeline_e2e_seconds"), seconds)] += 1
    values[cell + len(bounds("ridgeline_e2e_seconds")) + 1] += seconds
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from math import prod

import msgspec

from routing.topology import Topology
from telemetry.catalog import CATALOG, EXPOSED, Family, Kind, Scope, Writer
from telemetry.family import blocks_in_use

_FAMILIES = {family.name: family for family in CATALOG}


def combinations(family: Family) -> Iterator[tuple[str, ...]]:
    """Every combination of the family's closed label values, in the order of their cells; one empty one without labels."""
    return product(*(family.label_values(label) for label in family.labels))


def cells_per_combination(family: Family) -> int:
    """Cells that one combination of closed label values takes."""
    return len(family.bounds) + 2 if family.kind is Kind.HISTOGRAM else 1


def cells_per_block(family: Family) -> int:
    """Cells that the family takes in a block of its scope; 0 when it is known only at exposition."""
    if family.writer is Writer.EXPOSITION:
        return 0
    return cells_per_combination(family) * prod(len(family.label_values(label)) for label in family.labels)


def _offsets() -> tuple[dict[str, int], dict[Scope, int]]:
    offsets: dict[str, int] = {}
    used = dict.fromkeys(Scope, 0)
    for family in CATALOG:
        offsets[family.name] = used[family.scope]
        used[family.scope] += cells_per_block(family)
    return offsets, used


_OFFSETS, BLOCK_CELLS = _offsets()


def _family(name: str) -> Family:
    try:
        return _FAMILIES[name]
    except KeyError:
        raise KeyError(f"no metric family {name!r} in the catalogue") from None


def offset(name: str) -> int:
    """First cell of the family within a block of its scope. Raises KeyError for a name that is not in the catalogue."""
    return _OFFSETS[_family(name).name]


def slot(name: str, /, **labels: str) -> int:
    """First cell of one combination of the family's closed labels within a block of its scope.

    Raises KeyError for an unknown family, a label that is missing or too many, and a value outside its closed set.
    """
    family = _family(name)
    if labels.keys() != set(family.labels):
        raise KeyError(f"{name} has the labels {family.labels}, not {tuple(labels)}")
    index = 0
    for label in family.labels:
        values = family.label_values(label)
        if labels[label] not in values:
            raise KeyError(f"{name}: {label} is one of {values}, not {labels[label]!r}")
        index = index * len(values) + values.index(labels[label])
    return _OFFSETS[name] + index * cells_per_combination(family)


def bounds(name: str) -> tuple[float, ...]:
    """Finite upper bounds (inclusive) of a histogram, empty for other kinds. Raises KeyError for an unknown family."""
    return _family(name).bounds


class Names(msgspec.Struct, frozen=True):
    """What the blocks of an array are about, in their order; enough to find a block again in another layout."""

    routes: tuple[tuple[str, str], ...]  # model, pool
    pools: tuple[tuple[str, str], ...]  # model, pool
    workers: tuple[tuple[str, str, str], ...]  # model, pool, worker
    keys: tuple[str, ...]

    @classmethod
    def of(cls, topology: Topology) -> Names:
        """Names of this topology, in the order of its indices."""
        pool_of = {worker.index: pool for pool in topology.pools for worker in pool.workers}
        return cls(
            routes=topology.routes,
            pools=tuple((pool.model, pool.name) for pool in topology.pools),
            workers=tuple(
                (pool_of[worker.index].model, pool_of[worker.index].name, worker.name) for worker in topology.workers
            ),
            keys=tuple(key.name for key in topology.keys),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The blocks of one topology. Two processes may share arrays exactly when their digests are equal."""

    names: Names
    routes: int
    pools: int
    workers: int
    keys: int
    digest: str  # SHA-256 in hex of everything that gives a cell its meaning

    @classmethod
    def of(cls, topology: Topology) -> Layout:
        """Layout for this topology and the catalogue of this version."""
        return cls.of_names(Names.of(topology))

    @classmethod
    def of_names(cls, names: Names) -> Layout:
        """The same from the names alone."""
        return cls(
            names=names,
            routes=len(names.routes),
            pools=len(names.pools),
            workers=len(names.workers),
            keys=len(names.keys),
            digest=_digest(names),
        )

    @property
    def size(self) -> int:
        """Number of cells in an array."""
        return self.key_base(self.keys)

    def route_base(self, index: int) -> int:
        """First cell of the block of `Topology.routes[index]`."""
        return BLOCK_CELLS[Scope.PROCESS] + index * BLOCK_CELLS[Scope.ROUTE]

    def pool_base(self, index: int) -> int:
        """First cell of the block of `Topology.pools[index]`."""
        return self.route_base(self.routes) + index * BLOCK_CELLS[Scope.POOL]

    def worker_base(self, index: int) -> int:
        """First cell of the block of `Topology.workers[index]`."""
        return self.pool_base(self.pools) + index * BLOCK_CELLS[Scope.WORKER]

    def key_base(self, index: int) -> int:
        """First cell of the block of `Topology.keys[index]`."""
        return self.worker_base(self.workers) + index * BLOCK_CELLS[Scope.KEY]

    def blocks(self, scope: Scope) -> range:
        """First cells of all blocks of the scope, in order."""
        start, count = {
            Scope.PROCESS: (0, 1),
            Scope.ROUTE: (self.route_base(0), self.routes),
            Scope.POOL: (self.pool_base(0), self.pools),
            Scope.WORKER: (self.worker_base(0), self.workers),
            Scope.KEY: (self.key_base(0), self.keys),
        }[scope]
        return range(start, start + count * BLOCK_CELLS[scope], BLOCK_CELLS[scope] or 1)


def most_series(layout: Layout, processes: int, topology: Topology) -> int:
    """Series that a page has at most with so many serving processes; what cannot occur is not among them."""
    return sum(
        len(blocks_in_use(family, topology) if family.is_for_some else layout.blocks(family.scope))
        * _series_per_block(family)
        * (processes if family.is_per_process else 1)
        for family in EXPOSED
    )


def _series_per_block(family: Family) -> int:
    if family.writer is Writer.EXPOSITION or family.has_one:
        return 1
    return sum(map(family.is_usual, combinations(family))) * (len(family.bounds) + 3 if family.bounds else 1)


def gauge_starts(layout: Layout, writer: Writer) -> Iterator[tuple[int, float]]:
    """All cells of the gauges that this kind of process sets, each with its value before anything was observed: 0, or NaN."""
    for family in CATALOG:
        if family.kind is Kind.GAUGE and family.writer is writer:
            first, count, start = _OFFSETS[family.name], cells_per_block(family), family.start
            for base in layout.blocks(family.scope):
                for cell in range(base + first, base + first + count):
                    yield cell, start


def family_meaning(family: Family) -> tuple[object, ...]:
    """What gives the family's cells their meaning: everything but its help text and its start."""
    closed = () if family.writer is Writer.EXPOSITION else tuple((label, family.label_values(label)) for label in family.labels)
    return (family.name, family.kind.name, family.scope.name, family.writer.name, family.bounds, closed)


# `repr` of nested tuples of strings and floats keeps apart what differs, wherever quotes and commas stand.
_MEANING = repr([family_meaning(family) for family in CATALOG])


def _digest(names: Names) -> str:
    return sha256(f"{_MEANING}{(names.routes, names.pools, names.workers, names.keys)!r}".encode()).hexdigest()


def moves(old: Layout, new: Layout) -> list[tuple[int, int, int]]:
    """Which blocks of an array of ``old`` stand for the same thing in ``new``: first cell there, first cell here, cells.

    Both must be layouts of this version's catalogue, as all that this process can make are.
    """
    found: list[tuple[int, int, int]] = [(0, 0, BLOCK_CELLS[Scope.PROCESS])]
    for scope, before, after in (
        (Scope.ROUTE, old.names.routes, new.names.routes),
        (Scope.POOL, old.names.pools, new.names.pools),
        (Scope.WORKER, old.names.workers, new.names.workers),
        (Scope.KEY, old.names.keys, new.names.keys),
    ):
        places: dict[object, int] = dict(zip(before, old.blocks(scope), strict=True))
        for name, here in zip(after, new.blocks(scope), strict=True):
            if name in places:
                found.append((places[name], here, BLOCK_CELLS[scope]))
    return found
