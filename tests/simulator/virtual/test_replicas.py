"""Several gateways before one simulated fleet decide by what they know themselves, and by what workers say."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.policies import engines_on, hardware
from routing.policy import Reason
from routing.topology import Model, Pool
from simulator import traces
from simulator.arrivals import Arrival, Poisson
from simulator.virtual.fleet import simulate
from simulator.virtual.replicas import Outcome, simulate_replicas
from simulator.virtual.routing import by_model, workers_named

PLACEMENT = hardware()
WORKERS = 4
ARRIVALS = traces.chat(300, Poisson(per_second=10.0), seed=3, shape=traces.Chat(think_seconds=2.0))


def model_of(policy: str, workers: int = WORKERS) -> Model:
    named = workers_named([f"worker-{number}" for number in range(workers)])
    return Model(index=0, name="m", aliases=(), pools=(Pool(index=0, model="m", name="default", workers=named, policy=policy),))


def outcome_of(policy: str, replicas: int) -> Outcome:
    return simulate_replicas(engines_on(PLACEMENT, WORKERS), ARRIVALS, model_of(policy), replicas=replicas, seed=1)


@pytest.mark.parametrize("policy", ["prefix-affinity", "least-load"])
def test_one_gateway_is_what_it_is_without_replicas(policy: str) -> None:
    """It sees all that is in flight, so that each request is served as in a run without replicas."""
    alone = simulate(engines_on(PLACEMENT, WORKERS), ARRIVALS, by_model(model_of(policy)))

    assert outcome_of(policy, 1).served == alone


def test_each_decides_by_its_own_load_alone() -> None:
    """By least load the first two requests of two gateways may meet at one worker, of one gateway they never do."""
    arrivals = traces.mixed(200, Poisson(per_second=1e6), seed=1, shape=traces.Mixed(long_ratio=0.0))
    met = []
    for replicas in (1, 50):
        outcome = simulate_replicas(
            engines_on(PLACEMENT, 200), arrivals, model_of("least-load", 200), replicas=replicas, seed=1
        )
        met.append(len({one.worker for one in outcome.served}))

    assert met[0] == 200
    assert met[1] < 180


def test_all_is_given_back_when_requests_end() -> None:
    """Of two requests with a long time between them the second finds its gateway empty and goes by turn again."""
    arrivals = traces.mixed(40, Poisson(per_second=0.05), seed=1, shape=traces.Mixed(long_ratio=0.0))
    outcome = simulate_replicas(engines_on(PLACEMENT, 2), arrivals, model_of("least-load", 2), replicas=1)

    assert all(one.worker != other.worker for one, other in pairwise(outcome.served))


def test_gateways_are_drawn_evenly_and_the_same_each_time() -> None:
    """Each gets its part, all are in the result, and the same seed says the same."""
    first, again = outcome_of("prefix-affinity", 3), outcome_of("prefix-affinity", 3)

    assert {number: first.replicas.count(number) > 70 for number in range(3)} == dict.fromkeys(range(3), True)
    assert (first.replicas, first.reasons, first.served) == (again.replicas, again.reasons, again.served)
    assert len(first.reasons) == len(first.served) == 300
    assert set(first.reasons) <= {Reason.AFFINITY, Reason.LOAD_BOUND}
    assert all(1.0 <= peak <= WORKERS for peak in first.peaks)


def test_no_gateway_is_refused() -> None:
    """There is nobody who could decide."""
    with pytest.raises(ValueError, match="at least 1 replica, got 0"):
        outcome_of("least-load", 0)


def hot_arrivals(count: int) -> list[Arrival]:
    """Each second is always the same prompt; what comes between has nothing in common."""
    arrivals = traces.mixed(count, Poisson(per_second=100.0), seed=1, shape=traces.Mixed(long_ratio=0.0))
    return [replace(one, prompt=arrivals[0].prompt) if number % 2 == 0 else one for number, one in enumerate(arrivals)]


def test_by_the_workers_gauges_a_full_home_is_seen_by_all() -> None:
    """Of a prompt that everybody sends, each of many gateways sees too little itself; what they do not know they ask."""
    outcomes = [
        simulate_replicas(
            engines_on(PLACEMENT, 10),
            hot_arrivals(2500),
            model_of("prefix-affinity", 10),
            replicas=30,
            seed=1,
            reads_gauges=reads,
        )
        for reads in (False, True)
    ]

    blind, seeing = (sorted(outcome.peaks[10:])[len(outcome.peaks[10:]) // 2] for outcome in outcomes)
    assert blind > 6.0 > 4.0 > seeing
    assert Reason.LOAD_BOUND in outcomes[1].reasons
