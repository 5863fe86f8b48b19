"""Which pool a request belongs to, and which of a pool's workers could take it now."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from routing.demand import Demand
from routing.guidance import NO_GUIDANCE, Guidance, PoolGuidance, pool_key
from routing.reasons import Impossible, PoolReason
from routing.topology import Model, Pool, Worker

if TYPE_CHECKING:
    from routing.policy import Snapshot
_ONLY_POOL = PoolReason.ONLY_POOL


def choose_pool(model: Model, demand: Demand, guidance: Guidance = NO_GUIDANCE) -> tuple[Pool, PoolReason] | Impossible:
    """The smallest pool that surely holds prompt and output budget, else the largest one that may.

    A pool whose workers all say that they are too small is passed over, whatever is configured for it.
    """
    pools = model.pools
    is_alone = len(pools) == 1
    known = guidance.pools
    if is_alone and pools[0].max_total_tokens is None and not known:
        return pools[0], _ONLY_POOL
    total, least = demand.total_tokens, demand.least_tokens
    most = demand.estimate.most + demand.output_tokens
    likely: Pool | None = None  # the smallest that holds the likely number
    possible: Pool | None = None  # the largest so far that holds the least number
    for pool in pools:
        if known and _is_too_long(least, known.get(pool_key(pool.model, pool.name))):
            continue
        bound = pool.max_total_tokens
        if bound is None or most <= bound:
            if is_alone:
                return pool, _ONLY_POOL
            return pool, PoolReason.CONTEXT_LENGTH if likely is None else PoolReason.UNCERTAIN
        if least <= bound:
            possible = pool
            if likely is None and total <= bound:
                likely = pool
    if possible is None:
        return Impossible.FIT
    if likely is None:
        return possible, PoolReason.MAY_FIT
    if is_alone:
        return possible, _ONLY_POOL
    return possible, PoolReason.CONTEXT_LENGTH if possible is likely else PoolReason.UNCERTAIN


def most_total_tokens(model: Model, guidance: Guidance) -> int | None:
    """The most that a request may need, prompt and output budget together; ``None``: no bound is known."""
    most = 0
    for pool in model.pools:
        known = guidance.pools.get(pool_key(pool.model, pool.name))
        limits = [
            limit for limit in (pool.max_total_tokens, None if known is None else known.most_model_len) if limit is not None
        ]
        if not limits:
            return None
        most = max(most, min(limits))
    return most


def takers(pool: Pool, demand: Demand, snapshot: Snapshot, tried: Collection[str] = ()) -> list[Worker]:
    """The workers of a pool that could take the request now: up, not draining, not tried, and not surely too small."""
    is_up = snapshot.is_up
    found = [
        worker
        for worker in pool.workers
        if is_up[worker.index] != 0.0 and not worker.is_draining and (not tried or worker.name not in tried)
    ]
    guidance = snapshot.guidance
    if guidance.pools:
        known = guidance.pools.get(pool_key(pool.model, pool.name))
        if known is not None and known.least_model_len is not None:
            least = demand.least_tokens
            if least > known.least_model_len:
                found = [worker for worker in found if _holds(worker, least, guidance)]
    return _preferred(found, snapshot) if snapshot.avoided or snapshot.busy else found


def _preferred(found: list[Worker], snapshot: Snapshot) -> list[Worker]:
    """Those that neither fail nor are busy; else those that do not fail; else all, since trying is better than refusing."""
    well = [worker for worker in found if worker.index not in snapshot.avoided]
    free = [worker for worker in well if worker.index not in snapshot.busy]
    return free or well or found


def overflow(
    model: Model, pool: Pool, demand: Demand, snapshot: Snapshot, tried: Collection[str]
) -> tuple[Pool, list[Worker]] | None:
    """Where a request goes whose own pool has nobody for it, and to whom there; ``None`` without such a pool or worker."""
    other = _pool_named(model, pool.overflow_to)
    if other is None or not _surely_accepts(other, demand):
        return None
    found = takers(other, demand, snapshot, tried)
    return (other, found) if found else None


def borrowed(
    model: Model, pool: Pool, candidates: list[Worker], demand: Demand, snapshot: Snapshot, tried: Collection[str]
) -> tuple[Pool, list[Worker]] | None:
    """The workers of another pool that help this one: the least loaded, while all of this pool's have far more to do.

    Only plain idleness is borrowed with a share of 0, and nobody who has more than a share of other gateways' requests.
    ``None``: nobody helps.
    """
    load = snapshot.load_tokens
    own = min(load[worker.index] for worker in candidates)
    if own <= 0.0:
        return None
    other = _pool_named(model, pool.borrows_from)
    if other is None or not _surely_accepts(other, demand):
        return None
    most = pool.borrow_below_ratio * own
    found = [
        worker
        for worker in takers(other, demand, snapshot, tried)
        if load[worker.index] <= most and worker.index not in snapshot.crowded
    ]
    if not found:
        return None
    least = min(load[worker.index] for worker in found)
    return other, [worker for worker in found if load[worker.index] == least]


def _pool_named(model: Model, name: str | None) -> Pool | None:
    for pool in model.pools:
        if pool.name == name:
            return pool
    return None


def _surely_accepts(pool: Pool, demand: Demand) -> bool:
    bound = pool.max_total_tokens
    return bound is None or demand.estimate.most + demand.output_tokens <= bound


def _is_too_long(least: int, known: PoolGuidance | None) -> bool:
    return known is not None and known.most_model_len is not None and least > known.most_model_len


def _holds(worker: Worker, least: int, guidance: Guidance) -> bool:
    known = guidance.workers.get(worker.name)
    return known is None or known.max_model_len is None or least <= known.max_model_len
