"""Which pool a request belongs to, and who helps when its own workers cannot."""

from __future__ import annotations

from typing import Any

import pytest

from routing.admission import Caps
from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.guidance import Guidance, PoolGuidance, WorkerGuidance, pool_key
from routing.policy import Decision, Impossible, PoolReason, Reason, Snapshot, choose, choose_pool
from routing.pools import most_total_tokens
from routing.topology import Model
from tests.routing.topologies import a_model, a_pool


def a_demand(tokens: int, max_tokens: int | None = 0, least: int | None = None, most: int | None = None) -> Demand:
    return Demand(TokenEstimate(tokens, tokens if least is None else least, tokens if most is None else most), max_tokens)


def lengths(model: Model, **known: int | None) -> Guidance:
    """What workers say they can hold, as control tells it; names with an underscore for the hyphen."""
    workers = {name.replace("_", "-"): length for name, length in known.items()}
    pools = {}
    for pool in model.pools:
        said = [length for worker in pool.workers if (length := workers.get(worker.name)) is not None]
        pools[pool_key("m", pool.name)] = PoolGuidance(
            least_model_len=min(said, default=None), most_model_len=max(said) if len(said) == len(pool.workers) else None
        )
    return Guidance(
        pools=pools, workers={name: WorkerGuidance(max_model_len=length) for name, length in workers.items() if length}
    )


def decided(
    model: Model, demand: Demand, load: tuple[float, ...] = (0.0,) * 4, tried: tuple[str, ...] = (), **more: Any
) -> Any:
    up = more.pop("up", (1.0,) * 4)
    decision = choose(model, demand, Snapshot(up, load, 0, **more), tried)
    if isinstance(decision, Decision):
        return decision.pool.name, decision.worker.index, decision.pool_reason
    return decision


ONE = a_model(a_pool(0, 1))
TWO = a_model(a_pool(0, 1, name="short", upto=1000), a_pool(2, 3, name="long", upto=8000))


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "expected"),
    [
        (3000, 1000, ("default", 0, PoolReason.ONLY_POOL)),  # the first holds 4,000; equals, so the first in turn
        (3000, 1001, ("default", 1, PoolReason.ONLY_POOL)),  # only the second holds 8,000
        (7000, 1001, Impossible.FIT),
        (7000, None, ("default", 1, PoolReason.ONLY_POOL)),  # no output was declared: whatever has room
    ],
)
def test_no_request_goes_to_a_worker_that_surely_cannot_hold_it(tokens, max_tokens, expected):
    """What the workers say of themselves is heeded, also where no range is configured."""
    assert decided(ONE, a_demand(tokens, max_tokens), guidance=lengths(ONE, w_0=4000, w_1=8000)) == expected


def test_the_worker_judges_what_may_fit():
    """Only the lower end of the estimate keeps a request from a worker; above it the worker's own verdict counts."""
    known = lengths(ONE, w_0=4000, w_1=4000)
    assert decided(ONE, a_demand(9000, 0, least=4000, most=20_000), guidance=known) == ("default", 0, PoolReason.ONLY_POOL)
    assert decided(ONE, a_demand(9000, 0, least=4001, most=20_000), guidance=known) is Impossible.FIT


def test_a_worker_that_says_nothing_may_hold_anything():
    """An unknown length is no reason to refuse."""
    known = lengths(ONE, w_0=4000, w_1=None)
    assert decided(ONE, a_demand(9000), guidance=known) == ("default", 1, PoolReason.ONLY_POOL)
    assert most_total_tokens(ONE, known) is None


def test_too_long_for_those_that_are_up_is_no_refusal_for_good():
    """The worker that could hold it is down: nobody can take it now, which is another answer than being too long."""
    known = lengths(ONE, w_0=4000, w_1=8000)
    assert decided(ONE, a_demand(5000), up=(1.0, 0.0), guidance=known) is Impossible.NO_WORKER


def test_a_pool_whose_workers_are_smaller_than_its_range_is_passed_over():
    """A range that promises more than the workers hold does not lead to refusals while a larger pool is there."""
    known = lengths(TWO, w_0=500, w_1=500)
    assert decided(TWO, a_demand(501), guidance=known) == ("long", 2, PoolReason.CONTEXT_LENGTH)
    assert decided(TWO, a_demand(500), guidance=known) == ("short", 0, PoolReason.CONTEXT_LENGTH)


@pytest.mark.parametrize(
    ("known", "expected"),
    [({}, 8000), ({"w_2": 4000, "w_3": 6000}, 6000), ({"w_2": 4000}, 8000), ({"w_2": 9000, "w_3": 100}, 8000)],
)
def test_the_most_that_may_be_asked_for(known, expected):
    """The refusal names the smaller of range and worker, of the largest pool."""
    assert most_total_tokens(TWO, lengths(TWO, **known)) == expected


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (900, ("short", PoolReason.CONTEXT_LENGTH)),
        (901, ("long", PoolReason.UNCERTAIN)),
        (10**6, ("long", PoolReason.UNCERTAIN)),
    ],
)
def test_who_may_be_longer_goes_to_the_larger_pool(most, expected):
    """An estimate across the boundary of two pools goes to the larger one; counted exactly it would not."""
    chosen = choose_pool(TWO, a_demand(800, 100, least=700, most=most))
    assert not isinstance(chosen, Impossible)
    assert (chosen[0].name, chosen[1]) == expected


OVERFLOWING = a_model(a_pool(0, 1, name="short", upto=1000, overflow_to="long"), a_pool(2, 3, name="long", upto=8000))


@pytest.mark.parametrize(
    ("up", "tried", "expected"),
    [
        ((1, 1, 1, 1), (), ("short", 0, PoolReason.CONTEXT_LENGTH)),
        ((0, 1, 1, 1), (), ("short", 1, PoolReason.CONTEXT_LENGTH)),
        ((0, 0, 1, 1), (), ("long", 2, PoolReason.OVERFLOW)),
        ((0, 1, 1, 1), ("w-1",), ("long", 2, PoolReason.OVERFLOW)),
        ((1, 1, 1, 1), ("w-0", "w-1", "w-2"), ("long", 3, PoolReason.OVERFLOW)),
        ((0, 0, 0, 0), (), Impossible.NO_WORKER),
    ],
)
def test_a_pool_without_anybody_overflows(up, tried, expected):
    """Only when no worker of its own can take a request does it go to the pool that is named for it."""
    assert decided(OVERFLOWING, a_demand(10), up=up, tried=tried) == expected


@pytest.mark.parametrize(
    ("avoided", "expected"),
    [
        ({0}, ("short", 1, PoolReason.CONTEXT_LENGTH)),
        ({0, 1}, ("long", 2, PoolReason.OVERFLOW)),
        ({0, 1, 2}, ("long", 3, PoolReason.OVERFLOW)),
        ({0, 1, 2, 3}, ("long", 2, PoolReason.OVERFLOW)),
    ],
)
def test_a_pool_whose_workers_all_fail_overflows(avoided, expected):
    """They are still up by their health checks, and nobody has to find out one by one that they are not."""
    decision = choose(OVERFLOWING, a_demand(10), Snapshot((1.0,) * 4, (0.0,) * 4, 0, avoided=avoided))
    assert isinstance(decision, Decision)
    assert (decision.pool.name, decision.worker.index, decision.pool_reason) == expected


def test_who_fails_is_tried_where_the_other_pool_has_nobody():
    """Trying is better than refusing."""
    decision = choose(OVERFLOWING, a_demand(10), Snapshot((1.0, 1.0, 0.0, 0.0), (0.0,) * 4, 0, avoided={0, 1}))
    assert isinstance(decision, Decision)
    assert (decision.pool.name, decision.pool_reason) == ("short", PoolReason.CONTEXT_LENGTH)


def test_where_the_other_pool_is_full_a_request_waits():
    """Its own pool is down and the other one at its cap: that is no refusal."""
    caps = Caps((1.0,) * 4, (10.0**6,) * 4)
    snapshot = Snapshot((0.0, 0.0, 1.0, 1.0), (10.0,) * 4, 0, (1.0,) * 4, caps=caps)
    assert choose(OVERFLOWING, a_demand(10), snapshot) is Impossible.BUSY


def test_overflow_is_never_a_matter_of_course():
    """Without the setting a pool that is down refuses, whoever is idle beside it."""
    assert decided(TWO, a_demand(10), up=(0, 0, 1, 1)) is Impossible.NO_WORKER


def test_overflow_to_a_smaller_pool_takes_what_surely_fits():
    """Short requests of a long pool may use the short one; what may be longer than its range does not."""
    model = a_model(a_pool(0, 1, name="short", upto=1000), a_pool(2, 3, name="long", upto=8000, overflow_to="short"))
    up = (1, 1, 0, 0)
    assert decided(model, a_demand(800, 0, least=700, most=1001), up=up) is Impossible.NO_WORKER
    assert decided(model, a_demand(5000), up=up) is Impossible.NO_WORKER


BORROWING = a_model(
    a_pool(0, 1, name="short", upto=1000, borrows_from="long", borrow_below_ratio=0.25),
    a_pool(2, 3, name="long", upto=8000),
)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ((0, 0, 0, 0), ("short", 0, PoolReason.CONTEXT_LENGTH)),
        ((0, 400, 0, 0), ("short", 0, PoolReason.CONTEXT_LENGTH)),  # one of its own is idle
        ((400, 400, 0, 9000), ("long", 2, PoolReason.BORROWED)),
        ((400, 800, 100, 9000), ("long", 2, PoolReason.BORROWED)),
        ((400, 800, 101, 9000), ("short", 0, PoolReason.CONTEXT_LENGTH)),
        ((400, 800, 90, 80), ("long", 3, PoolReason.BORROWED)),
    ],
)
def test_idle_workers_of_another_pool_help(load, expected):
    """While all of its own are busy, and the other has at most that share of the least load among them."""
    assert decided(BORROWING, a_demand(10), load) == expected


def test_those_who_lend_do_not_borrow():
    """Requests of the lending pool stay in it, however busy it is, and borrowing needs the setting."""
    assert decided(BORROWING, a_demand(5000), (0, 0, 9e4, 8e4)) == ("long", 3, PoolReason.CONTEXT_LENGTH)
    assert decided(TWO, a_demand(10), (400, 400, 0, 0)) == ("short", 0, PoolReason.CONTEXT_LENGTH)


def test_only_workers_with_nothing_to_do_are_borrowed_by_default():
    """Without a share a single request in flight keeps a worker from being borrowed."""
    model = a_model(a_pool(0, 1, name="short", upto=1000, borrows_from="long"), a_pool(2, 3, name="long", upto=8000))
    assert decided(model, a_demand(10), (400, 400, 1, 0)) == ("long", 3, PoolReason.BORROWED)
    assert decided(model, a_demand(10), (400, 400, 1, 1)) == ("short", 0, PoolReason.CONTEXT_LENGTH)


def test_nobody_is_borrowed_who_is_down_or_too_small():
    """The lender's worker is down, tried or cannot hold the request: it stays at home."""
    busy = (400, 400, 0, 9000)
    assert decided(BORROWING, a_demand(10), busy, up=(1, 1, 0, 1))[0] == "short"
    assert decided(BORROWING, a_demand(10), busy, tried=("w-2",))[0] == "short"
    assert decided(BORROWING, a_demand(900), busy, guidance=lengths(BORROWING, w_2=100, w_3=8000))[0] == "short"


def test_nobody_is_borrowed_whom_other_gateways_have_filled():
    """A worker with nothing of this gateway's and more than its share of others' is not idle; the next one may be."""
    busy = (400, 400, 0, 10)
    assert decided(BORROWING, a_demand(10), busy) == ("long", 2, PoolReason.BORROWED)
    assert decided(BORROWING, a_demand(10), busy, crowded={2: 5000.0}) == ("long", 3, PoolReason.BORROWED)
    assert decided(BORROWING, a_demand(10), busy, crowded={2: 5000.0, 3: 5000.0})[0] == "short"


def test_a_pool_that_is_not_there_helps_nobody():
    """A reload may have taken the other pool away: the request is treated as if none were named."""
    model = a_model(a_pool(0, 1, name="short", overflow_to="gone", borrows_from="gone"))
    assert decided(model, a_demand(10), (400, 400, 0, 0)) == ("short", 0, PoolReason.ONLY_POOL)
    assert decided(model, a_demand(10), up=(0, 0, 1, 1)) is Impossible.NO_WORKER


def test_the_other_pool_chooses_by_its_own_policy():
    """Who overflows is subject to the policy of the pool that it comes to, and so is its label."""
    model = a_model(a_pool(0, name="short", upto=1000, overflow_to="long"), a_pool(2, 3, name="long", policy="round-robin"))
    decision = choose(model, a_demand(10), Snapshot((0, 1, 1, 1), (0.0,) * 4, 1))
    assert isinstance(decision, Decision)
    assert (decision.worker.index, decision.policy, decision.reason) == (3, "round-robin", Reason.TURN)
