"""Which pool, which worker, and why."""

from __future__ import annotations

from collections import Counter
from math import nan

import pytest

from routing.demand import ASSUMED_OUTPUT_TOKENS, Demand
from routing.estimate import TokenEstimate
from routing.policy import (
    POLICIES,
    Decision,
    Impossible,
    PoolReason,
    Reason,
    Snapshot,
    choose,
    choose_pool,
)
from routing.topology import Model
from tests.routing.topologies import a_model, a_pool

ONE = a_model(a_pool(0, 1, 2))
TWO = a_model(a_pool(0, 1, name="short", upto=1000), a_pool(2, 3, name="long", upto=8000))
OPEN = a_model(a_pool(0, name="short", upto=1000), a_pool(1, name="rest"))
LIMITED = a_model(a_pool(0, upto=1000))


def an_estimate(tokens: int, least: int | None = None) -> TokenEstimate:
    return TokenEstimate(tokens, tokens // 4 if least is None else least, tokens * 4)


def a_snapshot(up: tuple[float, ...] = (1, 1, 1, 1), load: tuple[float, ...] = (0, 0, 0, 0), turn: int = 0) -> Snapshot:
    return Snapshot(up, load, turn)


@pytest.mark.parametrize(("max_tokens", "total"), [(None, 10 + ASSUMED_OUTPUT_TOKENS), (0, 10), (500, 510)])
def test_total(max_tokens, total):
    """Prompt and declared output; an output budget of 0 is one, and only an absent one is assumed."""
    assert Demand(an_estimate(10), max_tokens).total_tokens == total


@pytest.mark.parametrize(
    ("model", "estimate", "max_tokens", "expected"),
    [
        (ONE, an_estimate(10**9), 10**9, ("default", PoolReason.ONLY_POOL)),
        (LIMITED, an_estimate(900), 100, ("default", PoolReason.ONLY_POOL)),
        (LIMITED, an_estimate(900), 101, ("default", PoolReason.MAY_FIT)),
        (LIMITED, an_estimate(900, 900), 100, ("default", PoolReason.ONLY_POOL)),
        (LIMITED, an_estimate(2000, 900), 100, ("default", PoolReason.MAY_FIT)),
        (LIMITED, an_estimate(2000, 901), 100, Impossible.FIT),
        (LIMITED, an_estimate(2000, 1000), None, ("default", PoolReason.MAY_FIT)),
        (LIMITED, an_estimate(2000, 1001), None, Impossible.FIT),
        (LIMITED, an_estimate(1, 0), 1001, Impossible.FIT),
        (TWO, an_estimate(10), 10, ("short", PoolReason.CONTEXT_LENGTH)),
        (TWO, TokenEstimate(500, 500, 500), 500, ("short", PoolReason.CONTEXT_LENGTH)),
        (TWO, TokenEstimate(500, 125, 501), 500, ("long", PoolReason.UNCERTAIN)),
        (TWO, an_estimate(500), 501, ("long", PoolReason.CONTEXT_LENGTH)),
        (TWO, an_estimate(10), None, ("long", PoolReason.CONTEXT_LENGTH)),  # 1024 assumed
        (TWO, an_estimate(7000), 1000, ("long", PoolReason.CONTEXT_LENGTH)),
        (TWO, an_estimate(7000, 6999), 1001, ("long", PoolReason.MAY_FIT)),
        (TWO, an_estimate(7000, 7000), 1001, Impossible.FIT),
        (OPEN, an_estimate(10), 10, ("short", PoolReason.CONTEXT_LENGTH)),
        (OPEN, an_estimate(300), 10, ("rest", PoolReason.UNCERTAIN)),
        (TWO, TokenEstimate(500, 100, 10**6), 10, ("long", PoolReason.UNCERTAIN)),
        (OPEN, an_estimate(10**9), None, ("rest", PoolReason.CONTEXT_LENGTH)),
    ],
)
def test_choosing_a_pool(model, estimate, max_tokens, expected):
    """The smallest whose range holds prompt and output; the largest while the least may fit; refused only when it cannot."""
    chosen = choose_pool(model, Demand(estimate, max_tokens))

    assert (chosen if isinstance(chosen, Impossible) else (chosen[0].name, chosen[1])) == expected


@pytest.mark.parametrize(
    ("snapshot", "tried", "expected"),
    [
        (a_snapshot(load=(5, 3, 4, 0)), (), (1, Reason.LEAST_LOAD)),
        (a_snapshot(load=(5, 3, 4, 0)), ("w-1",), (2, Reason.RETRY)),
        (a_snapshot(load=(5, 3, 4, 0)), ("w-1", "w-2"), (0, Reason.RETRY)),
        (a_snapshot(load=(5, 3, 4, 0)), ("w-0", "w-1", "w-2"), Impossible.NO_WORKER),
        (a_snapshot(up=(1, 0, 1, 1), load=(5, 3, 4, 0)), (), (2, Reason.LEAST_LOAD)),
        (a_snapshot(up=(1, nan, 1, 1), load=(5, 3, 4, 0)), (), (1, Reason.LEAST_LOAD)),
        (a_snapshot(up=(nan, nan, nan, nan)), (), (0, Reason.LEAST_LOAD)),
        (a_snapshot(up=(0, 0, 1, 0)), (), (2, Reason.ONLY_WORKER)),
        (a_snapshot(up=(0, 0, nan, 0)), (), (2, Reason.ONLY_WORKER)),
        (a_snapshot(up=(0, 0, 1, 0)), ("w-2",), Impossible.NO_WORKER),
        (a_snapshot(up=(0, 1, 1, 0)), ("w-2",), (1, Reason.RETRY)),
        (a_snapshot(up=(0, 0, 0, 1)), (), Impossible.NO_WORKER),  # the one that is up is another pool's
        (a_snapshot(up=(0.0, -0.0, 0, 1)), (), Impossible.NO_WORKER),
    ],
)
def test_choosing_a_worker(snapshot, tried, expected):
    """Workers that are down or tried are left out, unknown ones are not; the reason says what decided."""
    decision = choose(ONE, Demand(an_estimate(10), 10), snapshot, tried)

    assert (decision if isinstance(decision, Impossible) else (decision.worker.index, decision.reason)) == expected


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"power-of-two"}))
def test_equals_take_turns(policy):
    """Over as many decisions as there are equal workers each is chosen equally often, whatever the first turn; so do they by
    policies that find nothing to go by."""
    model = a_model(a_pool(0, 1, 2, policy=policy))
    chosen: Counter[int] = Counter()
    for turn in range(7, 16):
        decision = choose(model, Demand(an_estimate(10), 10), a_snapshot(turn=turn))
        assert isinstance(decision, Decision)
        chosen[decision.worker.index] += 1

    assert chosen == {0: 3, 1: 3, 2: 3}


def test_only_equals_take_turns():
    """With least load a busier worker gets no turn; round robin asks nobody's load."""
    load = (2.0, 1.0, 1.0, 0.0)

    def chosen(model: Model) -> list[int]:
        decisions = [choose(model, Demand(an_estimate(10), 10), a_snapshot(load=load, turn=turn)) for turn in range(4)]
        return [decision.worker.index for decision in decisions if isinstance(decision, Decision)]

    assert chosen(a_model(a_pool(0, 1, 2))) == [1, 2, 1, 2]
    assert chosen(a_model(a_pool(0, 1, 2, policy="round-robin"))) == [0, 1, 2, 0]


def test_the_pool_decides_before_the_worker():
    """A request for the long pool goes to no worker of the short one, also when the long pool is down."""
    decision = choose(TWO, Demand(an_estimate(3000), 10), a_snapshot(load=(0, 0, 9, 5)))
    assert isinstance(decision, Decision)
    assert (decision.pool.name, decision.worker.index, decision.pool_reason) == ("long", 3, PoolReason.CONTEXT_LENGTH)

    assert choose(TWO, Demand(an_estimate(3000), 10), a_snapshot(up=(1, 1, 0, 0))) is Impossible.NO_WORKER
    assert choose(TWO, Demand(an_estimate(10**6), 10), a_snapshot(up=(0, 0, 0, 0))) is Impossible.FIT


@pytest.mark.parametrize(
    ("avoided", "busy", "down", "tried", "expected"),
    [
        ({0}, set(), (), (), {1, 2}),
        (set(), {0, 1}, (), (), {2}),
        ({0}, {1}, (), (), {2}),
        ({0}, {1, 2}, (), (), {1, 2}),  # to be busy is less than to fail
        ({0, 1, 2}, set(), (), (), {0, 1, 2}),  # trying is better than refusing
        ({0}, set(), (1, 2), (), {0}),
        ({0, 1}, set(), (), ("w-2",), {0, 1}),
        ({0}, {1}, (2,), ("w-1",), {0}),
    ],
)
def test_workers_that_fail_or_are_busy_are_passed_over(avoided, busy, down, tried, expected):
    """As long as there are others: first those that nothing is held against, then the busy ones, then all that are up."""
    up = tuple(0.0 if at in down else 1.0 for at in range(3))
    demand = Demand(an_estimate(10), max_tokens=10)
    found = set()
    for turn in range(6):
        decision = choose(ONE, demand, Snapshot(up, (0.0,) * 3, turn, avoided=avoided, busy=busy), tried)
        assert isinstance(decision, Decision)
        found.add(decision.worker.index)

    assert found == expected
