"""How one of several workers is chosen: a policy is a plain function in `POLICIES`; adding one is adding a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

from routing.demand import Demand
from routing.guidance import PoolGuidance, Speed, pool_key
from routing.reasons import Reason
from routing.ring import Ring
from routing.topology import Pool, Worker

if TYPE_CHECKING:
    from routing.policy import Snapshot

BOUND_FACTOR = 1.25
"""A worker gets what is at home there while its load is at most so many times the mean of all that could take it."""
BOUND_SLACK_TOKENS = 16_384
BOUND_SLACK_PROMPTS = 4.0
"""And always while it is above the mean by no more than these tokens and so many times the prompt: with few requests in flight
one alone would be over the factor, and the longer a prompt, the more is lost by computing it elsewhere."""

_MIX = 0x9E3779B97F4A7C15  # odd, and the golden ratio of 64 bits
_MASK = (1 << 64) - 1
_AFFINITY, _SESSION = Reason.AFFINITY, Reason.SESSION


def round_robin(_pool: Pool, candidates: Sequence[Worker], _demand: Demand, snapshot: Snapshot) -> tuple[Worker, Reason]:
    """Each in turn."""
    return candidates[snapshot.turn % len(candidates)], Reason.TURN


def least_load(_pool: Pool, candidates: Sequence[Worker], demand: Demand, snapshot: Snapshot) -> tuple[Worker, Reason]:
    """The one with the fewest tokens in flight, measured by its share; equals take turns."""
    if snapshot.crowded:
        candidates = _roomy(candidates, snapshot, 0.0)
    loads = _loads(candidates, demand, snapshot)
    least = min(loads)
    equals = [worker for worker, tokens in zip(candidates, loads, strict=True) if tokens == least]
    return equals[snapshot.turn % len(equals)], Reason.LEAST_LOAD


def power_of_two(_pool: Pool, candidates: Sequence[Worker], demand: Demand, snapshot: Snapshot) -> tuple[Worker, Reason]:
    """Of two drawn at random the one with less to do. The draw is made of the turn, so that it can be repeated."""
    if snapshot.crowded:
        candidates = _roomy(candidates, snapshot, 0.0)
    drawn = _mixed(snapshot.turn)
    count = len(candidates)
    if count == 1:
        return candidates[0], Reason.TWO_CHOICES
    first = (drawn >> 32) % count
    second = (drawn & 0xFFFFFFFF) % (count - 1)
    if second >= first:
        second += 1
    pair = (candidates[first], candidates[second])
    one, other = _loads(pair, demand, snapshot)
    return pair[0 if one <= other else 1], Reason.TWO_CHOICES


def prefix_affinity(pool: Pool, candidates: Sequence[Worker], demand: Demand, snapshot: Snapshot) -> tuple[Worker, Reason]:
    """The home of the prompt's beginning, or who has shown to have it; the next on the ring while that has too much to do."""
    key = demand.affinity
    ring = _ring(pool, snapshot)
    if key is None or ring is None:
        return least_load(pool, candidates, demand, snapshot)
    if snapshot.guidance.pools:
        known = snapshot.guidance.pools.get(pool_key(pool.model, pool.name))
        if known is not None and known.moved and (name := known.moved.get(key)) is not None:
            roomy = _roomy(candidates, snapshot, load_bound(0.0, demand)) if snapshot.crowded else candidates
            loads = _loads(roomy, demand, snapshot)
            bound = _bound(loads, roomy, demand, snapshot)
            for worker, tokens in zip(roomy, loads, strict=True):
                if worker.name == name and tokens <= bound:
                    return worker, Reason.DELIVERED
    return _at_home(ring, key, candidates, demand, snapshot, Reason.AFFINITY)


def session(pool: Pool, candidates: Sequence[Worker], demand: Demand, snapshot: Snapshot) -> tuple[Worker, Reason]:
    """The home of the request's session; a request that names none goes by its beginning."""
    key = demand.session
    ring = _ring(pool, snapshot)
    if key is None or ring is None:
        return prefix_affinity(pool, candidates, demand, snapshot)
    return _at_home(ring, key, candidates, demand, snapshot, Reason.SESSION)


def fastest(pool: Pool, candidates: Sequence[Worker], demand: Demand, snapshot: Snapshot) -> tuple[Worker, Reason]:
    """The one from which the first token is expected soonest; least load while nobody knows how fast they are."""
    known = snapshot.guidance.pools.get(pool_key(pool.model, pool.name))
    if known is None or known.speed is None:
        return least_load(pool, candidates, demand, snapshot)
    if snapshot.crowded:
        candidates = _roomy(candidates, snapshot, 0.0)
    home = -1
    ring = _ring(pool, snapshot)
    if ring is not None and demand.affinity is not None:
        home = ring.home(demand.affinity).index
    load, in_flight = snapshot.load_tokens, snapshot.in_flight
    soonest, equals = inf, [candidates[0]]
    for worker in candidates:
        index = worker.index
        tokens = demand.estimate.tokens * (1.0 - known.cached_ratio) if index == home else demand.estimate.tokens
        seconds = expected_ttft_seconds(tokens, load[index], in_flight[index] if in_flight else 0.0, known, known.speed)
        if seconds < soonest:
            soonest, equals = seconds, [worker]
        elif seconds == soonest:
            equals.append(worker)
    return equals[snapshot.turn % len(equals)], Reason.FASTEST


def expected_ttft_seconds(
    uncached_tokens: float, load_tokens: float, in_flight: float, known: PoolGuidance, speed: Speed
) -> float:
    """Time to the first token at a worker with so much in flight: the prompts before it, its own, and the decoding beside."""
    waiting = known.prefill_ratio * load_tokens
    prompt_tokens = waiting + uncached_tokens
    steps = 1.0 + prompt_tokens / speed.chunk_tokens
    beside = speed.step_seconds + in_flight * speed.running_seconds + load_tokens * speed.context_token_seconds
    return prompt_tokens * speed.prefill_token_seconds + steps * beside


def home_at_once(pool: Pool, demand: Demand, snapshot: Snapshot) -> tuple[Worker, Reason] | None:
    """What `prefix_affinity` and `session` would choose, where the home alone tells; None: all workers have to be looked at.

    A home that is up, and has so little to do that it is within the bound whatever others have, gets what belongs there. With
    hundreds of workers looking at them all costs more than everything else that a request takes.
    """
    if pool.policy not in _BY_HOME or snapshot.share or snapshot.avoided or snapshot.busy:
        return None
    ring = _ring(pool, snapshot)
    key, reason = demand.affinity, _AFFINITY
    if pool.policy == "session" and demand.session is not None:
        key, reason = demand.session, _SESSION
    if key is None or ring is None:
        return None
    if snapshot.guidance.pools:
        known = snapshot.guidance.pools.get(pool_key(pool.model, pool.name))
        if known is not None and (known.moved or known.least_model_len is not None):
            if reason is _AFFINITY and key in known.moved:
                return None
            if known.least_model_len is not None and demand.least_tokens > known.least_model_len:
                return None
    home, is_up = ring.home(key), snapshot.is_up
    bound = load_bound(0.0, demand)
    if is_up[home.index] == 0.0 or home.is_draining or snapshot.load_tokens[home.index] > bound:
        return None
    if snapshot.crowded and snapshot.crowded.get(home.index, 0.0) > bound:
        return None
    for worker in pool.workers:  # as a rule the first one or the second
        if worker is not home and is_up[worker.index] != 0.0 and not worker.is_draining:
            return home, reason
    return None  # it is the only one, which is another reason


def _at_home(
    ring: Ring, key: int, candidates: Sequence[Worker], demand: Demand, snapshot: Snapshot, reason: Reason
) -> tuple[Worker, Reason]:
    """The key's own worker, or the next on the ring that is a candidate and within the bound."""
    able = candidates
    if snapshot.crowded:
        candidates = _roomy(candidates, snapshot, load_bound(0.0, demand))
    loads = _loads(candidates, demand, snapshot)
    bound = _bound(loads, candidates, demand, snapshot)
    home = ring.home(key)
    if ring.size == len(candidates) and not snapshot.share and snapshot.load_tokens[home.index] <= bound:  # nearly always
        return home, reason
    load = {worker.index: tokens for worker, tokens in zip(candidates, loads, strict=True)}
    for worker in ring.walk(key):
        if worker.index in load and load[worker.index] <= bound:  # at the latest the least loaded one
            break
    return worker, Reason.LOAD_BOUND if worker is not home and any(one is home for one in able) else reason


def _roomy(candidates: Sequence[Worker], snapshot: Snapshot, slack_tokens: float) -> Sequence[Worker]:
    """Those that are not above their share by more than this; all of them if all are."""
    crowded = snapshot.crowded
    return [worker for worker in candidates if crowded.get(worker.index, 0.0) <= slack_tokens] or candidates


def _ring(pool: Pool, snapshot: Snapshot) -> Ring | None:
    """The pool's ring; none where that is of another topology, which a request that has waited may still be of."""
    ring = snapshot.rings.get(pool.index)
    return ring if ring is not None and ring.workers is pool.workers else None


def load_bound(mean: float, demand: Demand) -> float:
    """The load in tokens up to which a worker gets what is at home there, with the mean of all being this; never below that."""
    slack = BOUND_SLACK_TOKENS + BOUND_SLACK_PROMPTS * demand.estimate.tokens
    return max(BOUND_FACTOR * mean, mean + slack)


def _bound(loads: Sequence[float], candidates: Sequence[Worker], demand: Demand, snapshot: Snapshot) -> float:
    """The bound among these; whoever has least is always within it, also where all of them start slowly."""
    load = snapshot.load_tokens
    tokens = [load[worker.index] for worker in candidates] if snapshot.share else loads
    return max(load_bound(sum(tokens) / len(tokens), demand), min(loads))


def _loads(candidates: Sequence[Worker], demand: Demand, snapshot: Snapshot) -> list[float]:
    """Tokens in flight. One that is only to get a share of what the others get counts as fuller, with this request on top."""
    load, share = snapshot.load_tokens, snapshot.share
    if not share:
        return [load[worker.index] for worker in candidates]
    tokens = demand.total_tokens
    return [(load[worker.index] + tokens) / share[worker.index] if share[worker.index] > 0.0 else inf for worker in candidates]


def _mixed(number: int) -> int:
    """64 bits that look random, the same for the same number."""
    number = (number + 1) * _MIX & _MASK
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


Policy = Callable[[Pool, Sequence[Worker], Demand, "Snapshot"], tuple[Worker, Reason]]
"""Choose among workers of a pool that could all take the request; at least two."""

_BY_HOME = frozenset({"prefix-affinity", "session"})
POLICIES: dict[str, Policy] = {
    "round-robin": round_robin,
    "least-load": least_load,
    "power-of-two": power_of_two,
    "prefix-affinity": prefix_affinity,
    "session": session,
    "fastest": fastest,
}
