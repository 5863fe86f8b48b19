"""When a request that has had nothing from its worker is sent to a second one as well, and to which.

Pure, like every choice: the caller brings what is known, and carries it out. Docs: docs/how-to/hedge.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from enum import StrEnum
from math import inf

from routing.admission import has_room
from routing.demand import Demand
from routing.policies import POLICIES
from routing.policy import Decision, Snapshot
from routing.pools import takers
from routing.reasons import Reason
from routing.topology import Hedging, Pool

LENGTH_BOUNDS: tuple[float, ...] = (512, 2_048, 8_192, 32_768, inf)
"""Classes of estimated prompt tokens, upper bounds inclusive: what is late for a short prompt is not for a long one."""
MOST_LOAD_RATIO = 0.8
"""Of a pool's caps: above it nothing is sent twice, since others will need the room."""
_MOST_CREDIT = 10.0


class Withheld(StrEnum):
    """Why a request that was late was not sent to a second worker."""

    __hash__ = str.__hash__

    BUDGET = "budget"  # as many as may have been sent twice lately
    LOAD = "load"  # the pool is near its caps, or requests wait for it
    NO_WORKER = "no_worker"  # no other worker of the pool is well and has nothing waiting


def length_class(prompt_tokens: int) -> int:
    """Place of a prompt of so many estimated tokens among `LENGTH_BOUNDS`."""
    return bisect_left(LENGTH_BOUNDS, prompt_tokens)


def delay_seconds(hedging: Hedging, prompt_tokens: int, learned: Sequence[float | None]) -> float | None:
    """Seconds from a worker being asked until a second one is; ``None``: never.

    ``learned`` has the configured quantile of the time to the first token by class of length, ``None`` where too few are known.
    """
    if hedging.after_seconds is not None:
        return hedging.after_seconds
    if hedging.after_quantile is None or not learned:
        return None
    return learned[length_class(prompt_tokens)]


class HedgeBudget:
    """How many requests may be sent twice: a share of them, and no more than a few at a stroke.

    One per pool and serving process. Every request that might be sent twice earns its share; one that is takes a whole.
    """

    __slots__ = ("_credit",)

    def __init__(self) -> None:
        self._credit = 0.0

    def __repr__(self) -> str:
        return f"<HedgeBudget {self._credit:.2f}>"

    def earn(self, ratio: float) -> None:
        """One more request that might be sent twice, of which this share may be."""
        self._credit = min(_MOST_CREDIT, self._credit + ratio)

    def take(self) -> bool:
        """Whether one may be sent twice now; it counts when it may."""
        if self._credit < 1.0 - 1e-9:
            return False
        self._credit -= 1.0
        return True


def choose_second(first: Decision, demand: Demand, snapshot: Snapshot, waiting: Collection[int]) -> Decision | Withheld:
    """The worker that is asked as well, by the pool's own policy; or why none is.

    ``waiting`` are indices of workers with a queue of their own. Never one that fails, is busy or has no room, and never one
    of another pool than the first.
    """
    pool = first.pool
    able = [
        worker
        for worker in takers(pool, demand, snapshot, (first.worker.name,))
        if worker.index not in snapshot.avoided and worker.index not in snapshot.busy and worker.index not in waiting
    ]
    if not able:
        return Withheld.NO_WORKER
    able = [worker for worker in able if has_room(worker, demand, snapshot)]
    if not able or _is_near_caps(pool, demand, snapshot):
        return Withheld.LOAD
    worker = able[0] if len(able) == 1 else POLICIES[pool.policy](pool, able, demand, snapshot)[0]
    return Decision(pool, worker, first.pool_reason, pool.policy, Reason.HEDGE)


def _is_near_caps(pool: Pool, demand: Demand, snapshot: Snapshot) -> bool:
    """Whether this request sent twice would bring the pool's workers, taken together, over their share of the caps."""
    caps = snapshot.caps
    if caps is None:
        return False
    indices = [worker.index for worker in pool.workers if snapshot.is_up[worker.index] != 0.0 and not worker.is_draining]
    requests = 1 + sum(snapshot.in_flight[index] for index in indices)
    tokens = demand.load_tokens + sum(snapshot.load_tokens[index] for index in indices)
    return requests > MOST_LOAD_RATIO * sum(caps.requests[index] for index in indices) or tokens > MOST_LOAD_RATIO * sum(
        caps.tokens[index] for index in indices
    )
