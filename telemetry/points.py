"""The cells as points with names and labels: what is written as text, for those who want numbers.

The same sums as in `telemetry.exposition`, from the same arrays; buckets are per bucket here and not cumulative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from routing.topology import Topology
from telemetry.catalog import EXPOSED, SCOPE_LABELS, Family, Kind, Scope, Writer
from telemetry.family import blocks_in_use
from telemetry.layout import Layout, cells_per_block, cells_per_combination, combinations, offset

Array = Sequence[float]


@dataclass(frozen=True, slots=True)
class Point:
    """One series. A counter or gauge has one value; a histogram one for each bucket (+Inf is the last), and a sum."""

    labels: Mapping[str, str]
    values: tuple[float, ...]
    sum: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """All series of one family; none of a gauge that nobody has set."""

    family: Family
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One topology and the arrays that are laid out for it: of serving processes by slot, and of control."""

    topology: Topology
    arrays: tuple[Array | None, ...]
    control: Array | None
    version: str


def readings(snapshot: Snapshot) -> Iterator[Reading]:
    """Every family of the catalogue, in its order."""
    layout = Layout.of(snapshot.topology)
    scopes = _scope_labels(snapshot.topology)
    present = [(str(slot), array) for slot, array in enumerate(snapshot.arrays) if array is not None]
    for family in EXPOSED:
        if family.writer is Writer.EXPOSITION:
            yield Reading(family, (Point({"version": snapshot.version}, (1.0,)),))
        elif family.is_per_process:
            points = [point for slot, array in present for point in _points(family, 0, {"process": slot}, [array])]
            yield Reading(family, tuple(points))
        else:
            sources = [array for _, array in present]
            if family.writer is Writer.CONTROL:
                sources = [] if snapshot.control is None else [snapshot.control]
            blocks = list(zip(layout.blocks(family.scope), scopes[family.scope], strict=True))
            if family.is_for_some:
                blocks = [blocks[index] for index in blocks_in_use(family, snapshot.topology)]
            yield Reading(family, tuple(point for base, labels in blocks for point in _points(family, base, labels, sources)))


def _points(family: Family, base: int, labels: Mapping[str, str], sources: list[Array]) -> Iterator[Point]:
    first = base + offset(family.name)
    cells = [sum(values) for values in zip(*(source[first : first + cells_per_block(family)] for source in sources))]  # noqa: B905
    cells = cells or [family.start] * cells_per_block(family)
    width = cells_per_combination(family)
    for number, values in enumerate(combinations(family)):
        mine = cells[number * width : (number + 1) * width]
        own = {**labels, **dict(zip(family.labels, values, strict=True))}
        if family.kind is Kind.HISTOGRAM:
            yield Point(own, tuple(mine[:-1]), mine[-1])
        elif not isnan(mine[0]) and (mine[0] or family.is_usual(values)):
            yield Point(own, (mine[0],))


def _scope_labels(topology: Topology) -> dict[Scope, list[dict[str, str]]]:
    pools = {worker.index: pool for pool in topology.pools for worker in pool.workers}
    values: dict[Scope, list[tuple[str, ...]]] = {
        Scope.PROCESS: [()],
        Scope.ROUTE: list(topology.routes),
        Scope.POOL: [(pool.model, pool.name) for pool in topology.pools],
        Scope.WORKER: [(pools[worker.index].model, pools[worker.index].name, worker.name) for worker in topology.workers],
        Scope.KEY: [(key.name,) for key in topology.keys],
    }
    return {scope: [dict(zip(SCOPE_LABELS[scope], names, strict=True)) for names in blocks] for scope, blocks in values.items()}
