"""How one of several workers is chosen."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.guidance import Guidance, PoolGuidance, Speed, pool_key
from routing.policies import BOUND_FACTOR, POLICIES, expected_ttft_seconds
from routing.policy import Reason, Snapshot
from routing.ring import Ring, rings_of
from tests.routing.topologies import a_pool

SPEED = Speed(prefill_token_seconds=1e-4, step_seconds=0.01, running_seconds=1e-4, context_token_seconds=1e-8)
KEY = 2**63 + 12345


def a_demand(tokens: int = 1000, affinity: int | None = None, session: int | None = None) -> Demand:
    return Demand(TokenEstimate(tokens, tokens, tokens), max_tokens=0, affinity=affinity, session=session)


def choose(
    policy: str,
    load: list[float],
    demand: Demand,
    *,
    turn: int = 0,
    without: tuple[int, ...] = (),
    share: tuple[float, ...] = (),
    guidance: PoolGuidance | None = None,
    in_flight: tuple[float, ...] = (),
    crowded: dict[int, float] | None = None,
) -> tuple[int, Reason]:
    pool = a_pool(*range(len(load)), policy=policy)
    snapshot = Snapshot(
        is_up=[1.0] * len(load),
        load_tokens=load,
        turn=turn,
        in_flight=in_flight,
        guidance=Guidance() if guidance is None else Guidance(pools={pool_key("m", "default"): guidance}),
        rings=rings_of([pool]),
        share=share,
        crowded=crowded or {},
    )
    candidates = [worker for worker in pool.workers if worker.index not in without]
    worker, reason = POLICIES[policy](pool, candidates, demand, snapshot)
    return worker.index, reason


def walk(workers: int, key: int = KEY) -> list[int]:
    return [worker.index for worker in Ring(a_pool(*range(workers)).workers).walk(key)]


def test_of_two_the_less_loaded_one():
    """Power of two never takes the fullest, takes each of the others, and the same for the same turn."""
    chosen = [choose("power-of-two", [9.0, 3.0, 5.0, 4.0], a_demand(), turn=turn) for turn in range(300)]

    assert chosen == [choose("power-of-two", [9.0, 3.0, 5.0, 4.0], a_demand(), turn=turn) for turn in range(300)]
    counts = Counter(index for index, _ in chosen)
    assert {reason for _, reason in chosen} == {Reason.TWO_CHOICES}
    assert set(counts) == {1, 2, 3}
    assert 120 < counts[1] < 180 > counts[3] > counts[2]


def test_equals_of_two_are_spread():
    """With nothing in flight the draws reach everybody about equally."""
    counts = Counter(choose("power-of-two", [0.0] * 4, a_demand(), turn=turn)[0] for turn in range(2000))

    assert all(420 < counts[index] < 580 for index in range(4))


@pytest.mark.parametrize(("policy", "reason"), [("prefix-affinity", Reason.AFFINITY), ("session", Reason.SESSION)])
def test_the_same_key_goes_to_the_same_worker(policy, reason):
    """Whatever the turn and a load within the bound, equal keys have equal homes, and different keys are spread."""
    draws = Random(1)
    for key in (draws.getrandbits(64) for _ in range(50)):
        demand = a_demand(affinity=key) if policy == "prefix-affinity" else a_demand(affinity=1, session=key)
        for turn in range(3):
            assert choose(policy, [5000.0 * turn, 0.0, 100.0, 0.0], demand, turn=turn) == (walk(4, key)[0], reason)
    assert len({walk(4, draws.getrandbits(64))[0] for _ in range(50)}) == 4


def test_a_home_with_too_much_to_do_is_passed_over():
    """Above factor and slack the next on the ring gets the request, and the one after it when that is too full as well."""
    first, second, third, fourth = walk(4)
    load = [0.0] * 4
    load[first] = 100_000.0
    assert choose("prefix-affinity", load, a_demand(affinity=KEY)) == (second, Reason.LOAD_BOUND)
    load[second] = 100_000.0
    assert choose("prefix-affinity", load, a_demand(affinity=KEY)) == (third, Reason.LOAD_BOUND)
    load[third] = load[fourth] = 100_000.0
    assert choose("prefix-affinity", load, a_demand(affinity=KEY)) == (first, Reason.AFFINITY)


def test_load_stays_bounded_whatever_the_keys():
    """Also if all requests begin alike, nobody is sent more with over factor times the mean, or the slack above it."""
    load = [0.0] * 8
    for number in range(4000):
        index, _ = choose("prefix-affinity", load, a_demand(1000, affinity=KEY), turn=number)
        mean = sum(load) / len(load)
        assert load[index] <= max(BOUND_FACTOR * mean, mean + 16_384 + 4000)
        load[index] += 1000

    assert max(load) <= BOUND_FACTOR * sum(load) / 8


def test_a_home_that_is_away_has_a_stand_in():
    """The next on the ring stands in, always the same one; that is affinity still, and no question of load."""
    first, second, *_ = walk(4)
    assert choose("prefix-affinity", [0.0] * 4, a_demand(affinity=KEY), without=(first,)) == (second, Reason.AFFINITY)


def test_a_ring_of_another_topology_is_not_looked_at():
    """A request that has waited through a reload goes by load, to a worker that it may go to."""
    pool = a_pool(0, 1, policy="prefix-affinity")
    rings = rings_of([a_pool(5, 6, policy="prefix-affinity")])
    snapshot = Snapshot(is_up=[1.0] * 7, load_tokens=[2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], turn=0, rings=rings)
    worker, reason = POLICIES["prefix-affinity"](pool, pool.workers, a_demand(affinity=KEY), snapshot)
    assert (worker.index, reason) == (1, Reason.LEAST_LOAD)


def test_without_a_key_the_load_decides():
    """A request that nothing ties to a worker goes to the least loaded; without a session's name its beginning is looked at."""
    load = [3.0, 1.0, 2.0]
    assert choose("prefix-affinity", load, a_demand()) == (1, Reason.LEAST_LOAD)
    assert choose("session", load, a_demand()) == (1, Reason.LEAST_LOAD)
    assert choose("session", load, a_demand(affinity=KEY)) == (walk(3)[0], Reason.AFFINITY)


def test_who_delivered_is_preferred_to_who_lost():
    """A beginning that its home has lost goes to the worker that had it cached, while that is there and within the bound."""
    first, second, third, _ = walk(4)
    moved = PoolGuidance(moved={KEY: f"w-{third}"})
    load = [0.0] * 4
    assert choose("prefix-affinity", load, a_demand(affinity=KEY), guidance=moved) == (third, Reason.DELIVERED)
    assert choose("prefix-affinity", load, a_demand(affinity=KEY + 1), guidance=moved) == (walk(4, KEY + 1)[0], Reason.AFFINITY)
    assert choose("prefix-affinity", load, a_demand(affinity=KEY), guidance=moved, without=(third,)) == (
        first,
        Reason.AFFINITY,
    )
    load[third] = 100_000.0
    assert choose("prefix-affinity", load, a_demand(affinity=KEY), guidance=moved) == (first, Reason.AFFINITY)
    assert second not in (first, third)


def test_a_worker_that_starts_slowly_gets_its_share():
    """Least load counts it as fuller by its share, and an empty one is not preferred for being empty; 0 gets nothing."""
    load, share = [10_000.0, 10_000.0, 0.0], (1.0, 1.0, 0.05)
    assert choose("least-load", load, a_demand(1000), share=share)[0] in (0, 1)
    assert choose("least-load", load, a_demand(10), share=share)[0] == 2
    assert choose("least-load", [5.0, 9.0, 0.0], a_demand(), share=(1.0, 1.0, 0.0))[0] == 0


def test_affinity_heeds_slow_starts():
    """A home that is to have a tenth of the load is passed over when it has more; with all shares at 0 somebody gets it."""
    first, second, *_ = walk(4)
    load, share = [20_000.0] * 4, [1.0] * 4
    share[first] = 0.1
    assert choose("prefix-affinity", load, a_demand(affinity=KEY), share=tuple(share)) == (second, Reason.LOAD_BOUND)
    load[first] = 1000.0
    assert choose("prefix-affinity", load, a_demand(affinity=KEY), share=tuple(share)) == (first, Reason.AFFINITY)
    assert choose("prefix-affinity", [2.0, 1.0, 3.0, 4.0], a_demand(affinity=KEY), share=(0.0,) * 4) == (first, Reason.AFFINITY)


def test_the_fastest_weighs_cache_against_queue():
    """An expected hit outweighs some load at the home; with more load there another worker is faster."""
    home = walk(3)[0]
    known = PoolGuidance(speed=SPEED, cached_ratio=0.9, prefill_ratio=0.5)
    load = [0.0] * 3
    load[home] = 5_000.0
    assert choose("fastest", load, a_demand(10_000, affinity=KEY), guidance=known) == (home, Reason.FASTEST)
    load[home] = 50_000.0
    assert choose("fastest", load, a_demand(10_000, affinity=KEY), guidance=known)[0] != home
    assert {choose("fastest", [0.0] * 3, a_demand(), guidance=known, turn=turn)[0] for turn in range(3)} == {0, 1, 2}


def test_the_fastest_minds_who_runs_beside():
    """Of equal tokens in flight the worker with fewer requests is faster."""
    known = PoolGuidance(speed=SPEED)
    assert choose("fastest", [100.0, 100.0], a_demand(), guidance=known, in_flight=(5.0, 2.0)) == (1, Reason.FASTEST)


def test_without_speeds_the_load_decides():
    """Nobody knows how fast the workers are: least load."""
    assert choose("fastest", [3.0, 1.0, 2.0], a_demand(affinity=KEY)) == (1, Reason.LEAST_LOAD)
    assert choose("fastest", [3.0, 1.0, 2.0], a_demand(affinity=KEY), guidance=PoolGuidance()) == (1, Reason.LEAST_LOAD)


def test_expected_time_to_the_first_token():
    """2,000 tokens of its own and 500 before it at 0.1 ms, in 1 + 2,500 / 8,192 steps of 10 ms, with 0.4 ms of neighbours and
    0.05 ms of their cache."""
    known = PoolGuidance(speed=SPEED, prefill_ratio=0.1)
    steps = 1 + 2500 / 8192
    assert expected_ttft_seconds(2000, 5000, 4, known, SPEED) == pytest.approx(0.25 + steps * (0.01 + 0.0004 + 0.00005))


@pytest.mark.parametrize(
    ("policy", "reason"),
    [("least-load", Reason.LEAST_LOAD), ("power-of-two", Reason.TWO_CHOICES), ("fastest", Reason.FASTEST)],
)
def test_who_has_more_than_its_share_by_all_gateways_gets_nothing(policy, reason):
    """Though this gateway has nothing there; unless all that are left have."""
    guidance = PoolGuidance(speed=SPEED)

    def chosen(crowded: dict[int, float], without: tuple[int, ...] = ()) -> tuple[set[int], set[Reason]]:
        found = [
            choose(
                policy,
                [0.0, 9.0, 9.0],
                a_demand(),
                turn=turn,
                guidance=guidance,
                crowded=crowded,
                in_flight=(0, 1, 1),
                without=without,
            )
            for turn in range(60)
        ]
        return {index for index, _ in found}, {reason for _, reason in found}

    assert 0 in chosen({})[0]
    assert chosen({0: 1.0}) == ({1, 2}, {reason})
    assert 0 in chosen({0: 5.0, 1: 5.0, 2: 5.0})[0]
    assert chosen({0: 5.0, 1: 5.0})[0] == {2}
    assert chosen({0: 5.0, 1: 5.0}, without=(2,))[0] >= {0}


@pytest.mark.parametrize("policy", ["prefix-affinity", "session"])
def test_a_home_that_others_have_filled_is_passed_over(policy):
    """With more above its share than the slack of the bound, whatever this gateway has there; and so is the next like it."""
    demand = a_demand(affinity=KEY, session=KEY)
    first, second, third = walk(5)[:3]
    reason = Reason.AFFINITY if policy == "prefix-affinity" else Reason.SESSION

    def chosen(crowded: dict[int, float]) -> tuple[int, Reason]:
        return choose(policy, [0.0] * 5, demand, crowded=crowded)

    assert chosen({first: 20_384.0}) == (first, reason)
    assert chosen({first: 20_385.0}) == (second, Reason.LOAD_BOUND)
    assert chosen({first: 1e6, second: 1e5}) == (third, Reason.LOAD_BOUND)
    assert chosen(dict.fromkeys(range(5), 1e6)) == (first, reason)


def test_who_has_delivered_a_prompt_gets_it_no_more_once_others_have_filled_it():
    """It goes home then, like every other."""
    home, other = walk(5)[:2]
    guidance = PoolGuidance(moved={KEY: f"w-{other}"})

    def chosen(crowded: dict[int, float]) -> tuple[int, Reason]:
        return choose("prefix-affinity", [0.0] * 5, a_demand(affinity=KEY), guidance=guidance, crowded=crowded)

    assert chosen({}) == (other, Reason.DELIVERED)
    assert chosen({other: 1e6}) == (home, Reason.AFFINITY)


def test_a_home_is_passed_over_for_what_it_has_above_the_mean():
    """Not above the one that has least: among many somebody has nearly nothing at any time, and says nothing about the home."""
    demand = a_demand(1000, affinity=KEY)
    first, second, third = walk(4)[:3]

    def chosen(home: float, others: float) -> int:
        load = [others] * 4
        load[first], load[third] = home, 0.0  # the mean is a quarter of the home and half of the others
        return choose("prefix-affinity", load, demand)[0]

    assert chosen(909_000.0, 1e6) == first  # 1.25 times the mean of 727,250
    assert chosen(909_200.0, 1e6) == third  # the second is above the bound as well
    assert chosen(20_384.0 * 4 / 3, 0.0) == first  # 20,384 above the mean
    assert chosen(20_385.0 * 4 / 3 + 1, 0.0) == second


def test_where_all_start_slowly_the_least_loaded_takes_what_no_home_may():
    """Each counts as fuller than the bound by its share; one with a share of nothing counts for the mean as what it has."""
    demand = a_demand(1000, affinity=KEY)
    home, other = walk(2)
    load = [0.0, 0.0]
    load[home] = 500.0

    assert choose("prefix-affinity", load, demand, share=(0.01, 0.01)) == (other, Reason.LOAD_BOUND)
    share = [1.0, 1.0]
    share[other] = 0.0
    load[home] = 1e6
    assert choose("prefix-affinity", load, demand, share=tuple(share)) == (home, Reason.AFFINITY)
