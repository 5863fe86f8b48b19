"""Who has what its home has lost is learned from cached tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from proxy.control.fleet import Fleet
from proxy.control.prefixes import MOST_FAMILIES, Prefixes
from routing.guidance import NO_GUIDANCE, PoolGuidance, pool_key
from routing.ring import Ring
from telemetry.record import Outcome, PrefillResult, RequestRecord
from tests.proxy.fleets import a_topology

THREE = a_topology({"default": ["w-0", "w-1", "w-2"]})
ORDER = [worker.name for worker in Ring(THREE.pools[0].workers).walk(7)]
HOME, OTHER, THIRD = ORDER
KEY = pool_key("m", "default")


def a_fleet(topology: Any = THREE) -> Fleet:
    return cast("Fleet", SimpleNamespace(topology=topology))


def a_record(worker: str | None, cached: int | None, affinity: int = 7, **fields: Any) -> RequestRecord:
    known = {"affinity": affinity, "prompt_tokens": 1000, "pool": "default", **fields}
    return RequestRecord(
        request_id="r",
        ended_unix_seconds=0.0,
        model="m",
        endpoint="chat",
        outcome=Outcome.OK,
        worker=worker,
        cached_tokens=cached,
        **known,
    )


def moved(*records: RequestRecord) -> dict[int, str]:
    prefixes = Prefixes()
    prefixes.advise(NO_GUIDANCE, a_fleet())
    prefixes.take(records)
    return prefixes.advise(NO_GUIDANCE, a_fleet()).pools.get(KEY, PoolGuidance()).moved


def test_two_misses_at_home_and_a_hit_elsewhere():
    """Only together they say that the home has lost the beginning; who had it last is told."""
    hit, misses = a_record(OTHER, 900), [a_record(HOME, 0), a_record(HOME, 16)]
    assert moved(hit, *misses) == moved(*misses, hit) == {7: OTHER}
    assert moved(hit, misses[0]) == moved(*misses) == moved(hit) == {}
    assert moved(hit, *misses, a_record(HOME, 900)) == {}  # it has it again
    assert moved(hit, *misses, a_record(OTHER, 0)) == {}  # lost there as well
    assert moved(hit, *misses, a_record(THIRD, 900)) == {7: THIRD}


def test_a_hit_at_a_prefill_stage_is_not_the_pools():
    """It tells what a worker of the stage has, and neither that the pool's own has it nor that it lost it."""
    hit, misses = a_record(OTHER, 900), [a_record(HOME, 0), a_record(HOME, 16)]
    at_stage = PrefillResult.COMPUTED
    assert moved(a_record(OTHER, 900, prefill_result=at_stage), *misses) == {}
    assert moved(hit, misses[0], a_record(HOME, 0, prefill_result=at_stage)) == {}
    assert moved(hit, *misses, a_record(HOME, 900, prefill_result=at_stage)) == {7: OTHER}


def test_what_says_nothing_is_not_counted():
    """Unknown or estimated counts, short prompts, other pools and requests without a beginning teach nothing."""
    hit = a_record(OTHER, 900)
    for odd in (
        {"cached": None},
        {"cached": 0, "prompt_is_estimate": True},
        {"cached": 0, "prompt_tokens": 255},
        {"cached": 0, "prompt_tokens": None},
        {"cached": 0, "pool": "none"},
        {"cached": 0, "affinity": None},
    ):
        assert moved(hit, *[a_record(HOME, **odd)] * 3) == {}
    assert moved(hit, *[a_record(None, 0)] * 3) == {}


def test_memory_is_bounded():
    """Of more beginnings than are remembered, those that came longest ago are forgotten."""
    prefixes = Prefixes()
    prefixes.advise(NO_GUIDANCE, a_fleet())
    prefixes.take([a_record(HOME, 0, affinity=number) for number in range(2 * MOST_FAMILIES)])

    assert repr(prefixes) == f"<Prefixes {MOST_FAMILIES} families>"


def test_another_topology_has_other_homes():
    """Nobody is sent to a worker that is gone, and pools that are gone are forgotten."""
    prefixes = Prefixes()
    prefixes.advise(NO_GUIDANCE, a_fleet())
    prefixes.take([a_record(OTHER, 900), a_record(HOME, 0), a_record(HOME, 0)])
    left = a_topology({"default": [name for name in ("w-0", "w-1", "w-2") if name != OTHER]})

    assert prefixes.advise(NO_GUIDANCE, a_fleet(left)) == NO_GUIDANCE
    assert prefixes.advise(NO_GUIDANCE, a_fleet(a_topology({"else": ["w-0", "w-1"]}))) == NO_GUIDANCE
    assert repr(prefixes) == "<Prefixes 0 families>"
