"""The gateway's own routing functions before a simulated fleet: what they decide there is what they would decide in service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.guidance import NO_GUIDANCE, Guidance
from routing.policy import Impossible, Policy, Snapshot, choose
from routing.ring import Ring, rings_of
from routing.topology import Model, Pool, Worker
from simulator.arrivals import Arrival
from simulator.engine.prefix import BlockRuns
from simulator.virtual.fleet import Choose, Fleet


def workers_named(names: Sequence[str]) -> tuple[Worker, ...]:
    """Workers in the order of a fleet's engines, with addresses that nobody calls."""
    return tuple(
        Worker(index=index, name=name, url=f"http://{name}", host=name, port=80, base_path="", authority=name)
        for index, name in enumerate(names)
    )


def by_policy(policy: Policy, engines: int) -> Choose:
    """Choose among so many engines by one policy: a single pool in which everybody is up."""
    candidates = workers_named([f"worker-{number}" for number in range(engines)])
    pool = Pool(index=0, model="m", name="default", workers=candidates)
    rings = {0: Ring(candidates)}

    def chosen(arrival: Arrival, fleet: Fleet) -> int:
        return policy(pool, candidates, demand_of(arrival), _snapshot(fleet, rings, NO_GUIDANCE))[0].index

    return chosen


def by_model(model: Model, estimate: Callable[[int], TokenEstimate] | None = None, guidance: Guidance = NO_GUIDANCE) -> Choose:
    """Choose pool and worker as for a request to this model, whose workers' indices are those of the fleet's engines.

    ``estimate`` makes an estimate of a prompt's true tokens; ``None``: it is exact. Who fits no pool is refused.
    """

    rings = rings_of(model.pools)

    def chosen(arrival: Arrival, fleet: Fleet) -> int | None:
        decision = choose(model, demand_of(arrival, estimate), _snapshot(fleet, rings, guidance))
        return None if isinstance(decision, Impossible) else decision.worker.index

    return chosen


def demand_of(arrival: Arrival, estimate: Callable[[int], TokenEstimate] | None = None) -> Demand:
    """What an arrival asks for; without ``estimate`` its tokens are known exactly."""
    tokens = arrival.prompt.tokens
    guess = TokenEstimate(tokens, tokens, tokens) if estimate is None else estimate(tokens)
    return Demand(
        guess, max_tokens=arrival.max_tokens, affinity=_hash(_beginning(arrival)), session=_hash(f"session {arrival.session}")
    )


def _beginning(arrival: Arrival) -> str:
    """Names what comes behind the system prompt, which stands for both: it is another text after another system prompt."""
    blocks = arrival.prompt.blocks
    if isinstance(blocks, BlockRuns):
        return str(blocks.runs[min(1, len(blocks.runs) - 1)].start)
    return repr(blocks[:1])


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def _snapshot(fleet: Fleet, rings: Mapping[int, Ring], guidance: Guidance) -> Snapshot:
    return Snapshot(
        is_up=[1.0] * len(fleet.in_flight),
        load_tokens=fleet.load_tokens,
        turn=fleet.turn,
        in_flight=fleet.in_flight,
        guidance=guidance,
        rings=rings,
    )
