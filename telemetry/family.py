"""What a metric family is. The families themselves are in `telemetry.catalog`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from routing.topology import Topology
from telemetry.labels import LABELS


class Kind(Enum):
    """Type of a family; the values are the words of the text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(Enum):
    """What a family is kept per; `SCOPE_LABELS` has the labels that it brings along."""

    PROCESS = "process"
    ROUTE = "route"  # every pair of `Topology.routes`, also those where no pool was chosen
    POOL = "pool"
    WORKER = "worker"
    KEY = "key"


class Writer(Enum):
    """The kind of process that sets a family; EXPOSITION families have no cells and are known when the text is written."""

    SERVING = "serving"
    CONTROL = "control"
    EXPOSITION = "exposition"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family."""

    name: str  # as exported, counters with their `_total`
    kind: Kind
    scope: Scope
    help: str  # what is counted; for a duration from which moment to which
    labels: tuple[str, ...] = ()  # closed labels beyond those of the scope; values in `LABELS`
    bounds: tuple[float, ...] = ()  # finite upper bounds of a histogram, rising; +Inf is implied
    writer: Writer = Writer.SERVING
    start: float = 0.0  # a gauge before its first observation; NaN means unknown, which is exported as absent
    is_per_process: bool = False  # never summed over serving processes: exported with a label `process`
    is_of_quotas: bool = False  # only keys that have one have it; a process, where a store keeps them
    is_of_hedging: bool = False  # only pools that hedge have it
    is_exposed: bool = True  # False: only the gateway's own processes read it
    has_one: bool = False  # a gauge of which at most one combination is there at a time
    usual: frozenset[tuple[str, ...]] | None = None  # combinations of label values that can occur; None: all

    @property
    def is_for_some(self) -> bool:
        """Whether it is exported of some of its scope's blocks only: see `blocks_in_use`."""
        return self.is_of_quotas or self.is_of_hedging

    def label_values(self, label: str) -> tuple[str, ...]:
        """Values that one of `labels` can take here, in the order of their cells. Raises KeyError for an open label."""
        own = LABELS.get(f"{self.name}.{label}")
        return LABELS[label] if own is None else own

    def is_usual(self, values: tuple[str, ...]) -> bool:
        """Whether this combination is exported from the start. Any other one has a cell and is there once it was counted."""
        return self.usual is None or values in self.usual


SCOPE_LABELS: dict[Scope, tuple[str, ...]] = {
    Scope.PROCESS: (),
    Scope.ROUTE: ("model", "pool"),
    Scope.POOL: ("model", "pool"),
    Scope.WORKER: ("model", "pool", "worker"),
    Scope.KEY: ("key",),
}


def counter(name: str, scope: Scope, text: str, *labels: str, writer: Writer = Writer.SERVING) -> Family:
    """A counter; `writer` sets it."""
    return Family(name=f"ridgeline_{name}", kind=Kind.COUNTER, scope=scope, help=text, labels=labels, writer=writer)


def gauge(
    name: str,
    scope: Scope,
    text: str,
    *labels: str,
    writer: Writer = Writer.SERVING,
    start: float = 0.0,
    is_per_process: bool = False,
) -> Family:
    """A gauge, 0 before it is set unless `start` says otherwise."""
    return Family(
        name=f"ridgeline_{name}",
        kind=Kind.GAUGE,
        scope=scope,
        help=text,
        labels=labels,
        writer=writer,
        start=start,
        is_per_process=is_per_process,
    )


def histogram(
    name: str, scope: Scope, bounds: tuple[float, ...], text: str, *labels: str, writer: Writer = Writer.SERVING
) -> Family:
    """A histogram with these finite bounds."""
    return Family(
        name=f"ridgeline_{name}", kind=Kind.HISTOGRAM, scope=scope, help=text, labels=labels, bounds=bounds, writer=writer
    )


def blocks_in_use(family: Family, topology: Topology) -> list[int]:
    """Which blocks of its scope a family that is for some of them is exported of, by their index."""
    if family.is_of_hedging:
        return [pool.index for pool in topology.pools if pool.hedging.is_on]
    if family.scope is Scope.KEY:
        return [key.index for key in topology.keys if key.quota is not None]
    return [] if topology.quota_sharing is None else [0]
