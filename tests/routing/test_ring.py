"""Who is at home where."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from routing.ring import PLACED_AT_ONCE, Ring, merged, needs_ring, rings_in_steps, rings_of
from tests.routing.topologies import a_pool, a_worker

_random = Random(4)
KEYS = [_random.getrandbits(64) for _ in range(20_000)]


def homes(*numbers: int) -> list[str]:
    ring = Ring([a_worker(number) for number in numbers])
    return [ring.home(key).name for key in KEYS]


def test_replicas_agree_without_talking():
    """A ring is made of names alone: whatever the order and the indices of the workers, each key has the same home."""
    assert homes(0, 1, 2, 3) == homes(3, 1, 0, 2)


def test_shares_are_about_equal():
    """No worker of 16 is home to a third more or less than its share."""
    counts = Counter(homes(*range(16)))

    assert len(counts) == 16
    assert all(0.67 < count * 16 / len(KEYS) < 1.33 for count in counts.values())


def test_a_new_worker_moves_only_what_becomes_its_own():
    """Every key keeps its home or goes to the new worker, and about one in five does."""
    moved = [(before, after) for before, after in zip(homes(0, 1, 2, 3), homes(0, 1, 2, 3, 4), strict=True) if before != after]

    assert {after for _, after in moved} == {"w-4"}
    assert 0.13 < len(moved) / len(KEYS) < 0.27


def test_a_lost_worker_moves_only_what_was_its_own():
    """What is at home elsewhere stays, and what is left without a home is spread over all others."""
    moved = [(before, after) for before, after in zip(homes(0, 1, 2, 3), homes(0, 1, 3), strict=True) if before != after]

    assert {before for before, _ in moved} == {"w-2"}
    assert {after for _, after in moved} == {"w-0", "w-1", "w-3"}


@pytest.mark.parametrize("numbers", [(0, 1, 2, 3), (3, 1, 0, 2), (0, 2, 3), (0, 1, 2, 3, 9, 4), (5, 6), (1, 7), ()])
def test_a_ring_made_of_an_earlier_one_is_no_other(numbers):
    """Workers that came, left, or changed places: homes and walks are those of a ring made anew, and the workers its own."""
    before = Ring([a_worker(number) for number in range(4)])
    workers = [replace(a_worker(number), index=10 + place) for place, number in enumerate(numbers)]

    anew, made = Ring(workers), Ring(workers, before)

    assert made.size == len(numbers)
    if numbers:
        assert [made.home(key) for key in KEYS[:2000]] == [anew.home(key) for key in KEYS[:2000]]
        assert list(made.walk(KEYS[0])) == list(anew.walk(KEYS[0]))
        assert [before.home(key).index < 10 for key in KEYS[:50]] == [True] * 50


@pytest.mark.parametrize("fresh", [[], [(5, "x")], [(1, "z"), (7, "a"), (7, "n"), (7, "z"), (9, "b"), (12, "m")]])
def test_points_come_between_those_that_are_there(fresh):
    """As if all were sorted at once, before the first and behind the last, and by name where points are equal."""
    old = [(3, "m"), (7, "b"), (7, "o"), (9, "c")]

    points, names = merged([point for point, _ in old], [name for _, name in old], fresh)

    assert list(zip(points, names, strict=True)) == sorted(old + fresh)


def test_a_pool_that_stays_keeps_its_places():
    """Nothing is placed again where only other things of the topology have changed."""
    before, after = (a_pool(*range(3), policy="session", upto=upto) for upto in (None, 100))
    (ring,) = rings_of([before]).values()
    (kept,) = rings_of([after], {("m", "default"): ring}).values()

    assert kept._points is ring._points
    assert kept.workers is after.workers


@pytest.mark.parametrize("key", [0, 1, KEYS[0], 2**64 - 1])
def test_a_walk_meets_everybody_once(key):
    """It begins at the key's home and names each worker once; who stands in is the home without the first."""
    workers = [a_worker(number) for number in range(5)]
    ring = Ring(workers)
    order = [worker.name for worker in ring.walk(key)]

    assert order[0] == ring.home(key).name
    assert sorted(order) == [worker.name for worker in workers]
    assert Ring([worker for worker in workers if worker.name != order[0]]).home(key).name == order[1]


def test_only_pools_with_a_choice_and_a_policy_that_looks_have_rings():
    """A ring costs memory: a pool of one worker and a policy that looks at the load alone have none."""
    pools = [a_pool(0, 1), a_pool(2, policy="session"), a_pool(3, 4, policy="prefix-affinity")]

    assert [needs_ring(pool) for pool in pools] == [False, False, True]
    assert rings_of(pools[:2]) == {}
    assert repr(rings_of(pools)[0]) == "<Ring of 2 workers>"


def test_many_new_workers_are_placed_in_steps():
    """No step places more than so many, over all pools together, and the rings that come last are those made at once."""
    lots = [range(30), range(30, 45), range(45, 50)]
    pools = [replace(a_pool(*lot, policy="session"), index=index) for index, lot in enumerate(lots)]

    *steps, rings = rings_in_steps(pools)

    assert steps == [None] * ((50 - 1) // PLACED_AT_ONCE)
    assert rings is not None
    assert {index: (ring._points, ring._names) for index, ring in rings.items()} == {
        pool.index: (whole._points, whole._names) for pool in pools for whole in [Ring(pool.workers)]
    }


def test_workers_that_stay_take_no_step():
    """They are on the earlier ring: what is left is made at once, however many they are."""
    before = {("m", "default"): Ring([a_worker(number) for number in range(3 * PLACED_AT_ONCE)])}

    (rings,) = rings_in_steps([a_pool(*range(1, 3 * PLACED_AT_ONCE + 1), policy="session")], before)

    assert rings is not None
    assert rings[0].home(KEYS[0]) == Ring([a_worker(number) for number in range(1, 3 * PLACED_AT_ONCE + 1)]).home(KEYS[0])
