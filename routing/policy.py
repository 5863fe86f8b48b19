"""Which pool, which worker, and why: pure functions of a snapshot. `choose` is the whole decision."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from routing.admission import Caps, has_room
from routing.demand import Demand
from routing.guidance import NO_GUIDANCE, Guidance
from routing.policies import POLICIES, Policy, home_at_once
from routing.pools import borrowed, choose_pool, overflow, takers
from routing.reasons import ELSEWHERE, Impossible, PoolReason, Reason
from routing.ring import Ring
from routing.topology import Model, Pool, Worker

__all__ = [
    "ELSEWHERE",
    "POLICIES",
    "Decision",
    "Impossible",
    "Policy",
    "PoolReason",
    "Reason",
    "Snapshot",
    "choose",
    "choose_pool",
]

_NO_RINGS: Mapping[int, Ring] = {}
_NOBODY: Mapping[int, float] = {}
_ONLY_WORKER = Reason.ONLY_WORKER


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """What the decision looks at, by worker index; live views are fine, they are read once."""

    is_up: Sequence[float]  # 1 up, 0 down, NaN not known yet, which counts as up
    load_tokens: Sequence[float]  # estimated tokens of requests in flight, over all serving processes
    turn: int  # grows by one with every decision
    in_flight: Sequence[float] = ()  # requests in flight, over all serving processes
    guidance: Guidance = NO_GUIDANCE
    rings: Mapping[int, Ring] = _NO_RINGS  # by pool index, of pools whose policy needs one
    share: Sequence[float] = ()  # of what others get, 0 to 1, while a worker starts slowly; empty: all get the same
    avoided: Collection[int] = ()  # indices of workers that fail: only for requests that have nobody else
    busy: Collection[int] = ()  # and of those that have just refused because they have enough to do
    caps: Caps | None = None  # what workers may be given at most; None: no caps
    crowded: Mapping[int, float] = _NOBODY  # those with more than their share by all gateways, and by how many tokens


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes and why; made once, never revised."""

    pool: Pool
    worker: Worker
    pool_reason: PoolReason
    policy: str
    reason: Reason


def choose(model: Model, demand: Demand, snapshot: Snapshot, tried: Collection[str] = ()) -> Decision | Impossible:
    """Decide for one request. ``tried`` are names of workers that have failed it already."""
    chosen = choose_pool(model, demand, snapshot.guidance)
    if isinstance(chosen, Impossible):
        return chosen
    pool, pool_reason = chosen
    if not tried and pool.borrows_from is None and len(pool.workers) > 1:
        at_once = home_at_once(pool, demand, snapshot)
        if at_once is not None and (snapshot.caps is None or has_room(at_once[0], demand, snapshot)):
            return Decision(pool, at_once[0], pool_reason, pool.policy, at_once[1])
    candidates = takers(pool, demand, snapshot, tried)
    if not candidates:
        return _overflowed(model, pool, demand, snapshot, tried) or Impossible.NO_WORKER
    if pool.overflow_to is not None and snapshot.avoided and all(one.index in snapshot.avoided for one in candidates):
        elsewhere = _overflowed(model, pool, demand, snapshot, tried)
        if isinstance(elsewhere, Decision):
            return elsewhere
    if pool.borrows_from is not None:
        found = borrowed(model, pool, candidates, demand, snapshot, tried)
        if found is not None:
            pool, candidates = found
            pool_reason = PoolReason.BORROWED
    worker, reason = _pick(pool, candidates, demand, snapshot)
    if snapshot.caps is not None and not has_room(worker, demand, snapshot):
        # As a rule the first pick has room, so that it alone has to be looked at.
        candidates = [worker for worker in candidates if has_room(worker, demand, snapshot)]
        if not candidates:
            return _overflowed(model, pool, demand, snapshot, tried) or Impossible.BUSY
        worker, reason = _pick(pool, candidates, demand, snapshot)
    return Decision(pool, worker, pool_reason, pool.policy, Reason.RETRY if tried else reason)


def choose_stage(stage: Pool, demand: Demand, snapshot: Snapshot) -> Decision | None:
    """Who computes a prompt for a worker of another pool; ``None``: nobody there could. It has no cap: prompts queue there."""
    candidates = takers(stage, demand, snapshot)
    if not candidates or all(worker.index in snapshot.avoided for worker in candidates):
        return None
    worker, reason = _pick(stage, candidates, demand, snapshot)
    return Decision(stage, worker, PoolReason.ONLY_POOL, stage.policy, reason)


def _overflowed(
    model: Model, pool: Pool, demand: Demand, snapshot: Snapshot, tried: Collection[str]
) -> Decision | Impossible | None:
    """Where a request goes whose own pool cannot take it now; ``None`` if there is nowhere, busy if nobody has room there."""
    found = None if pool.overflow_to is None else overflow(model, pool, demand, snapshot, tried)
    if found is None:
        return None
    other, candidates = found
    if snapshot.caps is not None:
        candidates = [worker for worker in candidates if has_room(worker, demand, snapshot)]
        if not candidates:
            return Impossible.BUSY
    worker, reason = _pick(other, candidates, demand, snapshot)
    return Decision(other, worker, PoolReason.OVERFLOW, other.policy, Reason.RETRY if tried else reason)


def _pick(pool: Pool, candidates: Sequence[Worker], demand: Demand, snapshot: Snapshot) -> tuple[Worker, Reason]:
    if len(candidates) == 1:
        return candidates[0], _ONLY_WORKER
    return POLICIES[pool.policy](pool, candidates, demand, snapshot)
