"""Who really has what is at home with whom: learned from the cached tokens that workers report.

A worker whose cache is too small loses beginnings that are still asked for. When requests of one beginning were twice in a row
not found at their home, and another worker has taken the same from its cache, they go there until it misses as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from proxy.control.fleet import Fleet
from routing.guidance import Guidance, PoolGuidance, pool_key
from routing.ring import Ring, rings_of
from routing.topology import Topology
from telemetry.record import RequestRecord

MOST_FAMILIES = 1024
"""Beginnings remembered of each pool; those that were not asked for longest are forgotten."""
MISSES_TO_LOSE = 2
_HIT_RATIO = 0.25  # of a prompt's tokens, cached: its beginning was there
_LEAST_PROMPT_TOKENS = 256  # shorter prompts fill too few blocks to tell


@dataclass(slots=True)
class _Family:
    """Requests that begin alike: for each worker that had any, how many in a row missed; 0 after a hit."""

    misses: dict[str, int] = field(default_factory=dict)

    def take(self, worker: str, *, is_hit: bool) -> None:
        """The latest one last, so that of several with a hit the latest is found."""
        before = self.misses.pop(worker, 0)
        self.misses[worker] = 0 if is_hit else before + 1

    def holder(self, home: str) -> str | None:
        """The worker that has what its home has lost; ``None`` if the home has not, or nobody else has it."""
        if self.misses.get(home, 0) < MISSES_TO_LOSE:
            return None
        return next((worker for worker, misses in reversed(self.misses.items()) if not misses), None)


class Prefixes:
    """An adviser for pools whose policy knows homes."""

    def __init__(self) -> None:
        self._families: dict[str, OrderedDict[int, _Family]] = {}  # by pool key and affinity
        self._topology: Topology | None = None
        self._rings: dict[str, Ring] = {}  # by pool key

    def __repr__(self) -> str:
        return f"<Prefixes {sum(map(len, self._families.values()))} families>"

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Learn from requests whose worker said how much it had cached."""
        for record in records:
            key = pool_key(record.model, record.pool)
            if (
                key not in self._rings
                or record.affinity is None
                or record.worker is None
                or record.is_prefilled_elsewhere  # no word of what this pool's workers have
                or record.cached_tokens is None
                or record.prompt_is_estimate
                or (record.prompt_tokens or 0) < _LEAST_PROMPT_TOKENS
            ):
                continue
            families = self._families.setdefault(key, OrderedDict())
            affinity = record.affinity
            family = families.pop(affinity, None) or _Family()
            families[affinity] = family
            if len(families) > MOST_FAMILIES:
                families.popitem(last=False)
            family.take(record.worker, is_hit=record.cached_tokens >= _HIT_RATIO * (record.prompt_tokens or 0))

    def advise(self, guidance: Guidance, fleet: Fleet) -> Guidance:
        """Add who has what its home has lost."""
        if fleet.topology is not self._topology:
            self._topology = fleet.topology
            rings = rings_of(fleet.topology.pools)
            self._rings = {
                pool_key(pool.model, pool.name): rings[pool.index] for pool in fleet.topology.pools if pool.index in rings
            }
            self._families = {key: families for key, families in self._families.items() if key in self._rings}
        pools = dict(guidance.pools)
        for key, families in self._families.items():
            ring = self._rings[key]
            names = {worker.name for worker in ring.workers}
            moved = {}
            for affinity, family in families.items():
                holder = family.holder(ring.home(affinity).name)
                if holder in names:
                    moved[affinity] = holder
            if moved:
                pools[key] = msgspec.structs.replace(pools.get(key, PoolGuidance()), moved=moved)
        return msgspec.structs.replace(guidance, pools=pools)
