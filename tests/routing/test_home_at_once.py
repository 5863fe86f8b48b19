"""The short way to a request's home: what it gives is what looking at all workers would have given."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing import policy
from routing.admission import Caps
from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.guidance import Guidance, PoolGuidance, WorkerGuidance, pool_key
from routing.policies import BOUND_SLACK_TOKENS, home_at_once
from routing.policy import Snapshot, choose
from routing.reasons import Reason
from routing.ring import rings_of
from routing.topology import Model, Pool
from tests.routing.topologies import a_model, a_pool

KEYS = tuple(number * 2**57 + 11 for number in range(128))


def choose_slowly(model: Model, demand: Demand, snapshot: Snapshot, tried: tuple[str, ...]) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "home_at_once", lambda *_: None)
        return choose(model, demand, snapshot, tried)


@settings(max_examples=300)
@given(st.data())
def test_the_short_way_leads_where_the_long_one_does(data):
    """With workers that are down, drain, fail, are full, too small or start slowly, and prompts that have moved."""
    draw = data.draw
    count = draw(st.integers(1, 5))
    each = st.lists  # one of something for each worker
    is_up = draw(each(st.sampled_from([1.0, 1.0, 1.0, 0.0, nan]), min_size=count, max_size=count))
    loads = draw(each(st.sampled_from([0.0, 100.0, 16_000.0, 20_000.0, 90_000.0]), min_size=count, max_size=count))
    running = [float(load > 0.0) for load in loads]
    draining = draw(each(st.sampled_from([False, False, False, True]), min_size=count, max_size=count))
    pool = a_pool(*range(count), policy=draw(st.sampled_from(["prefix-affinity", "session"])))
    pool = replace(pool, workers=tuple(replace(one, is_draining=is_) for one, is_ in zip(pool.workers, draining, strict=True)))
    keys = st.sampled_from(KEYS)
    demand = Demand(
        TokenEstimate(500, 400, 600), max_tokens=draw(st.sampled_from([0, 700])), affinity=draw(keys), session=draw(keys)
    )
    known = PoolGuidance(
        least_model_len=draw(st.sampled_from([None, 1000])),
        moved=draw(st.sampled_from([{}, {demand.affinity: "w-0"}, {demand.affinity: "w-1", demand.session: "w-0"}])),
    )
    guidance = Guidance(
        pools=draw(st.sampled_from([{}, {pool_key(pool.model, pool.name): known}])),
        workers={"w-0": WorkerGuidance(max_model_len=1000), "w-1": WorkerGuidance(max_model_len=4000)},
    )
    some = st.sampled_from([frozenset(), frozenset(), frozenset({0}), frozenset({0, 1})])
    caps = Caps((1.0,) * count, (1000.0,) * count)
    snapshot = Snapshot(
        is_up,
        loads,
        draw(st.integers(0, 9)),
        running,
        guidance,
        rings_of([pool]),
        share=draw(st.sampled_from([(), (), (0.5,) + (1.0,) * (count - 1)])),
        avoided=draw(some),
        busy=draw(some),
        caps=draw(st.sampled_from([None, None, caps])),
        crowded=draw(st.sampled_from([{}, {}, {0: 100.0}, {0: 90_000.0}, {0: 90_000.0, 1: 90_000.0}])),
    )
    model, tried = a_model(pool), draw(st.sampled_from([(), (), ("w-0",)]))

    assert choose(model, demand, snapshot, tried) == choose_slowly(model, demand, snapshot, tried)


def a_snapshot(pool: Pool, load: float = 0.0) -> Snapshot:
    count = len(pool.workers)
    return Snapshot([1.0] * count, [load] * count, 0, rings=rings_of([pool]))


def test_the_short_way_is_taken_as_a_rule():
    """Where it is not, hundreds of workers are looked at for each request."""
    pool = a_pool(*range(600), policy="prefix-affinity")
    snapshot = a_snapshot(pool)

    found = [home_at_once(pool, Demand(TokenEstimate(500, 400, 600), affinity=key), snapshot) for key in KEYS]

    assert {None if one is None else one[1] for one in found} == {Reason.AFFINITY}
    assert len({one[0].index for one in found if one is not None}) > 60


def test_a_home_with_much_to_do_is_compared_with_the_others():
    """Only they tell whether it is too much."""
    pool = a_pool(*range(4), policy="prefix-affinity")

    demand = Demand(TokenEstimate(0, 0, 0), affinity=KEYS[0])

    assert home_at_once(pool, demand, a_snapshot(pool, BOUND_SLACK_TOKENS)) is not None
    assert home_at_once(pool, demand, a_snapshot(pool, BOUND_SLACK_TOKENS + 1.0)) is None


def test_a_home_that_others_have_filled_is_compared_with_the_others():
    """Nothing of this gateway's is there, and what all gateways have is too much above its share."""
    pool = a_pool(*range(4), policy="prefix-affinity")
    demand = Demand(TokenEstimate(0, 0, 0), affinity=KEYS[0])
    home = rings_of([pool])[0].home(KEYS[0]).index

    def found(crowded: dict[int, float]) -> object:
        return home_at_once(pool, demand, msgspec.structs.replace(a_snapshot(pool), crowded=crowded))

    assert found({home: float(BOUND_SLACK_TOKENS)}) is not None
    assert found({home: BOUND_SLACK_TOKENS + 1.0}) is None
    assert found({home ^ 1: 1e9}) is not None
