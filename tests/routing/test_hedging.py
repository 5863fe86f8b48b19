"""When a second worker is asked as well, which one, and how often."""

from __future__ import annotations

import msgspec
import pytest

from routing.admission import Caps
from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.hedging import LENGTH_BOUNDS, HedgeBudget, Withheld, choose_second, delay_seconds, length_class
from routing.policy import Decision, PoolReason, Reason, Snapshot
from routing.topology import Hedging, Pool
from tests.routing.topologies import a_pool

THREE = a_pool(0, 1, 2)


def a_demand(tokens: int = 100) -> Demand:
    return Demand(TokenEstimate(tokens, tokens, tokens), max_tokens=0)


def first_at(worker: int, pool: Pool = THREE) -> Decision:
    return Decision(pool, pool.workers[worker], PoolReason.OVERFLOW, pool.policy, Reason.LEAST_LOAD)


def a_snapshot(load: tuple[float, ...] = (100, 50, 0), requests: tuple[float, ...] = (1, 1, 0), **fields: object) -> Snapshot:
    return msgspec.structs.replace(Snapshot((1,) * len(load), load, 0, requests), **fields)


def second(snapshot: Snapshot, waiting: frozenset[int] = frozenset(), tokens: int = 100) -> str:
    """The worker that is asked as well, or why none is."""
    found = choose_second(first_at(0), a_demand(tokens), snapshot, waiting)
    return found if isinstance(found, Withheld) else found.worker.name


def test_the_second_is_another_worker_of_the_pool_by_its_own_policy() -> None:
    """The decision says that it is a second one, and keeps why its pool was chosen."""
    found = choose_second(first_at(0), a_demand(), a_snapshot(), ())

    assert found == Decision(THREE, THREE.workers[2], PoolReason.OVERFLOW, "least-load", Reason.HEDGE)


@pytest.mark.parametrize(
    ("fields", "waiting", "expected"),
    [
        ({}, {2}, "w-1"),
        ({"avoided": {2}}, {}, "w-1"),
        ({"busy": {2}}, {}, "w-1"),
        ({"is_up": (1, 1, 0)}, {}, "w-1"),
        ({"avoided": {2}}, {1}, Withheld.NO_WORKER),
        ({"avoided": {1, 2}}, {}, Withheld.NO_WORKER),
        ({"busy": {1, 2}}, {}, Withheld.NO_WORKER),
        ({"is_up": (1, 0, 0)}, {}, Withheld.NO_WORKER),
    ],
)
def test_only_one_that_is_well_and_has_time_is_asked(fields: dict[str, object], waiting: set[int], expected: str) -> None:
    """A worker that fails, is busy, is down or has a queue of its own would be no help."""
    assert second(a_snapshot(**fields), frozenset(waiting)) == expected


@pytest.mark.parametrize(
    ("requests", "caps", "expected"),
    [
        ((1, 1, 0), Caps((4, 4, 4), (1e9,) * 3), "w-2"),
        ((4, 4, 1), Caps((4, 4, 4), (1e9,) * 3), Withheld.LOAD),  # ten of twelve is more than four fifths
        ((4, 4, 0), Caps((4, 4, 4), (1e9,) * 3), "w-2"),
        ((1, 1, 0), Caps((1e9,) * 3, (100, 100, 100)), Withheld.LOAD),
        ((1, 1, 4), Caps((99, 1, 4), (1e9,) * 3), Withheld.LOAD),  # far from the caps, and no other worker has room
    ],
)
def test_near_the_caps_nothing_is_sent_twice(requests: tuple[float, ...], caps: Caps, expected: str) -> None:
    """Others will need the room."""
    assert second(a_snapshot(requests=requests, caps=caps)) == expected


def test_the_delay_is_the_configured_one_or_what_is_learned_of_the_length() -> None:
    """Where neither is known, nothing is sent twice."""
    learned = (0.1, None, 0.8, 2.0, 9.0)

    assert delay_seconds(Hedging(after_seconds=0.5), 100, learned) == 0.5
    assert [delay_seconds(Hedging(after_quantile=0.95), tokens, learned) for tokens in (512, 513, 5000, 10**6)] == [
        *(0.1, None, 0.8, 9.0)
    ]
    assert delay_seconds(Hedging(after_quantile=0.95), 100, ()) is None
    assert delay_seconds(Hedging(), 100, learned) is None


def test_every_length_has_a_class() -> None:
    """Bounds are inclusive, and the last one has no end."""
    assert [length_class(tokens) for tokens in (0, 512, 513, 32_768, 32_769, 2**30)] == [0, 0, 1, 3, 4, 4]
    assert len(LENGTH_BOUNDS) == 5


def test_no_more_than_the_share_is_sent_twice() -> None:
    """Over any number of requests, from the first on."""
    budget, taken = HedgeBudget(), 0
    for number in range(1, 1001):
        budget.earn(0.05)
        taken += budget.take()
        assert taken <= 0.05 * number + 1e-6

    assert taken == 50


def test_what_was_not_used_is_kept_for_ten() -> None:
    """A stall after an hour of quiet may not send an hour's share at once."""
    budget = HedgeBudget()
    for _ in range(100_000):
        budget.earn(0.05)

    assert sum(budget.take() for _ in range(100)) == 10
