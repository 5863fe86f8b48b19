"""Who computes a prompt for the workers of another pool."""

from __future__ import annotations

from dataclasses import replace

from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.policy import Decision, Snapshot, choose, choose_stage
from routing.topology import assemble
from tests.routing.topologies import a_model, a_pool

DEMAND = Demand(TokenEstimate(100, 100, 100), max_tokens=10)
STAGE = replace(a_pool(2, 3, name="a-prefill"), index=1, policy="least-load")
MODEL = replace(a_model(a_pool(0, 1, name="a")), stages=(STAGE,))


def a_snapshot(*, up: tuple[float, ...] = (1.0,) * 4, avoided: tuple[int, ...] = ()) -> Snapshot:
    return Snapshot(up, (0.0, 0.0, 50.0, 0.0), 0, (0.0,) * 4, avoided=avoided)


def test_a_stage_is_chosen_from_by_its_own_policy() -> None:
    """Among its own workers."""
    found = choose_stage(STAGE, DEMAND, a_snapshot())

    assert found is not None
    assert (found.pool.name, found.worker.name) == ("a-prefill", "w-3")


def test_a_stage_without_a_worker_that_is_well_is_passed_over() -> None:
    """Trying is no better than going on: the pool can do it all."""
    assert choose_stage(STAGE, DEMAND, a_snapshot(up=(1.0, 1.0, 0.0, 0.0))) is None
    assert choose_stage(STAGE, DEMAND, a_snapshot(avoided=(2, 3))) is None


def test_no_request_is_sent_to_a_stage() -> None:
    """It is no pool of the model, and all the same in the topology, where its workers are probed and counted."""
    topology = assemble((MODEL,), (), STAGE.limits)
    assert [pool.name for pool in topology.pools] == ["a", "a-prefill"]
    assert [worker.index for worker in topology.workers] == [0, 1, 2, 3]

    for turn in range(8):
        decision = choose(MODEL, DEMAND, replace_turn(turn))
        assert isinstance(decision, Decision)
        assert decision.pool.name == "a"


def replace_turn(turn: int) -> Snapshot:
    return Snapshot((1.0,) * 4, (0.0,) * 4, turn, (0.0,) * 4)
