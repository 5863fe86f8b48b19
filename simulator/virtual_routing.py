"""The gateway's own routing functions before a simulated fleet: what they decide there is what they would decide in service."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.policy import Impossible, Policy, Snapshot, choose
from routing.topology import Model, Worker
from simulator.arrivals import Arrival
from simulator.virtual import Choose, Fleet


def workers_named(names: Sequence[str]) -> tuple[Worker, ...]:
    """Workers in the order of a fleet's engines, with addresses that nobody calls."""
    return tuple(
        Worker(index=index, name=name, url=f"http://{name}", host=name, port=80, base_path="", authority=name)
        for index, name in enumerate(names)
    )


def by_policy(policy: Policy, engines: int) -> Choose:
    """Choose among so many engines by one policy: a single pool in which everybody is up."""
    candidates = workers_named([f"worker-{number}" for number in range(engines)])

    def chosen(arrival: Arrival, fleet: Fleet) -> int:
        return policy(candidates, demand_of(arrival), _snapshot(fleet))[0].index

    return chosen


def by_model(model: Model, estimate: Callable[[int], TokenEstimate] | None = None) -> Choose:
    """Choose pool and worker as for a request to this model, whose workers' indices are those of the fleet's engines.

    ``estimate`` makes an estimate of a prompt's true tokens; ``None``: it is exact. Who fits no pool is refused.
    """

    def chosen(arrival: Arrival, fleet: Fleet) -> int | None:
        decision = choose(model, demand_of(arrival, estimate), _snapshot(fleet))
        return None if isinstance(decision, Impossible) else decision.worker.index

    return chosen


def demand_of(arrival: Arrival, estimate: Callable[[int], TokenEstimate] | None = None) -> Demand:
    """What an arrival asks for; without ``estimate`` its tokens are known exactly."""
    tokens = arrival.prompt.tokens
    guess = TokenEstimate(tokens, tokens, tokens) if estimate is None else estimate(tokens)
    return Demand(guess, max_tokens=arrival.max_tokens)


def _snapshot(fleet: Fleet) -> Snapshot:
    return Snapshot(is_up=[1.0] * len(fleet.engines), load_tokens=fleet.load_tokens, turn=fleet.turn, in_flight=fleet.in_flight)
