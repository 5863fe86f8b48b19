"""Which pool, which worker, and why: pure functions of a snapshot.

`choose` is the whole decision. A policy is a plain function in `POLICIES`; adding one is adding a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum

import msgspec

from routing.admission import Caps, has_room
from routing.demand import Demand
from routing.guidance import NO_GUIDANCE, Guidance
from routing.topology import Model, Pool, Worker


class PoolReason(StrEnum):
    """Why this pool."""

    __hash__ = str.__hash__  # in C; Enum's own is a Python function

    ONLY_POOL = "only_pool"
    CONTEXT_LENGTH = "context_length"  # the smallest whose range holds prompt and output budget
    MAY_FIT = "may_fit"  # the largest: the estimate is over its range, its lower end is not


class Reason(StrEnum):
    """Why this worker; the names are label values."""

    __hash__ = str.__hash__  # in C; Enum's own is a Python function

    ONLY_WORKER = "only_worker"  # nothing to choose from
    TURN = "turn"
    LEAST_LOAD = "least_load"
    OWNER = "owner"  # it keeps the answer that this request goes on from
    RETRY = "retry"  # another worker had failed before it sent anything


class Impossible(StrEnum):
    """Why there is no decision."""

    __hash__ = str.__hash__  # in C; Enum's own is a Python function

    FIT = "fit"  # surely longer than the largest pool accepts
    NO_WORKER = "no_worker"  # every worker of the pool is down or has been tried
    BUSY = "busy"  # there are workers, and each has as much to do as it may; the request can wait


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """What the decision looks at, by worker index; live views are fine, they are read once."""

    is_up: Sequence[float]  # 1 up, 0 down, NaN not known yet, which counts as up
    load_tokens: Sequence[float]  # estimated tokens of requests in flight, over all serving processes
    turn: int  # grows by one with every decision
    in_flight: Sequence[float] = ()  # requests in flight, over all serving processes
    guidance: Guidance = NO_GUIDANCE
    caps: Caps | None = None  # what workers may be given at most; None: no caps


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes and why; made once, never revised."""

    pool: Pool
    worker: Worker
    pool_reason: PoolReason
    policy: str
    reason: Reason


def choose_pool(model: Model, demand: Demand) -> tuple[Pool, PoolReason] | Impossible:
    """The smallest pool that accepts prompt and output budget; the largest one while the least estimate may still fit it."""
    pools = model.pools
    if len(pools) == 1 and pools[0].max_total_tokens is None:
        return pools[0], PoolReason.ONLY_POOL
    total = demand.total_tokens
    for pool in pools:
        if pool.max_total_tokens is None or total <= pool.max_total_tokens:
            return pool, PoolReason.CONTEXT_LENGTH if len(pools) > 1 else PoolReason.ONLY_POOL
    largest = pools[-1]
    assert largest.max_total_tokens is not None
    if demand.estimate.least + (demand.max_tokens or 0) > largest.max_total_tokens:
        return Impossible.FIT
    return largest, PoolReason.MAY_FIT


def choose(model: Model, demand: Demand, snapshot: Snapshot, tried: Collection[str] = ()) -> Decision | Impossible:
    """Decide for one request. ``tried`` are names of workers that have failed it already."""
    chosen = choose_pool(model, demand)
    if isinstance(chosen, Impossible):
        return chosen
    pool, pool_reason = chosen
    is_up = snapshot.is_up
    candidates = [
        worker
        for worker in pool.workers
        if is_up[worker.index] != 0.0 and not worker.is_draining and (not tried or worker.name not in tried)
    ]
    if not candidates:
        return Impossible.NO_WORKER
    worker, reason = _pick(pool, candidates, demand, snapshot)
    if snapshot.caps is not None and not has_room(worker, demand, snapshot):
        # As a rule the first pick has room, so that it alone has to be looked at.
        candidates = [worker for worker in candidates if has_room(worker, demand, snapshot)]
        if not candidates:
            return Impossible.BUSY
        worker, reason = _pick(pool, candidates, demand, snapshot)
    return Decision(pool, worker, pool_reason, pool.policy, Reason.RETRY if tried else reason)


def _pick(pool: Pool, candidates: Sequence[Worker], demand: Demand, snapshot: Snapshot) -> tuple[Worker, Reason]:
    return (candidates[0], Reason.ONLY_WORKER) if len(candidates) == 1 else POLICIES[pool.policy](candidates, demand, snapshot)


def round_robin(candidates: Sequence[Worker], _demand: Demand, snapshot: Snapshot) -> tuple[Worker, Reason]:
    """Each in turn."""
    return candidates[snapshot.turn % len(candidates)], Reason.TURN


def least_load(candidates: Sequence[Worker], _demand: Demand, snapshot: Snapshot) -> tuple[Worker, Reason]:
    """The one with the fewest tokens in flight; equals take turns."""
    load = snapshot.load_tokens
    loads = [load[worker.index] for worker in candidates]
    least = min(loads)
    equals = [worker for worker, tokens in zip(candidates, loads, strict=True) if tokens == least]
    return equals[snapshot.turn % len(equals)], Reason.LEAST_LOAD


Policy = Callable[[Sequence[Worker], Demand, Snapshot], tuple[Worker, Reason]]
"""Choose among workers that could all take the request; at least two."""

POLICIES: dict[str, Policy] = {
    "round-robin": round_robin,
    "least-load": least_load,
}
