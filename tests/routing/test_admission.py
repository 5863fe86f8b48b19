"""Caps of workers: where they come from, whether there is room, for whom a worker is kept, and when to come again."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import msgspec
import pytest

from routing.admission import Caps, DrainRate, caps_of, has_room, worker_to_keep
from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.guidance import NO_GUIDANCE, Guidance, PoolGuidance, WorkerGuidance, pool_key
from routing.policy import Decision, Impossible, Snapshot, choose
from routing.topology import Admission
from tests.routing.topologies import a_model, a_pool, a_topology, a_worker

POOL = a_pool(0, 1)
KNOWN = Guidance(workers={"w-0": WorkerGuidance(max_requests=40.0, max_tokens=9000.0)})


def a_demand(tokens: int) -> Demand:
    return Demand(TokenEstimate(tokens, tokens, tokens), max_tokens=0)


def a_snapshot(
    requests: tuple[float, ...] = (0, 0),
    load: tuple[float, ...] = (0, 0),
    caps: Caps | None = None,
    up: tuple[float, ...] = (1, 1),
) -> Snapshot:
    return Snapshot(up, load, 0, requests, NO_GUIDANCE, caps=caps)


def caps(admission: Admission, guidance: Guidance) -> Caps | None:
    return caps_of(a_topology(a_model(replace(POOL, admission=admission))), guidance)


def test_without_knowledge_and_settings_there_are_no_caps():
    """Nobody has to look, and everybody has room."""
    assert caps(Admission(), NO_GUIDANCE) is None
    assert has_room(a_worker(0), a_demand(10**9), a_snapshot((500, 0), (10**9, 0)))


def test_derived_caps_hold_where_none_is_configured():
    """What control says of a worker holds for it alone; a configured cap outranks it, and derive: false ends it."""
    assert caps(Admission(), KNOWN) == Caps((40.0, inf), (9000.0, inf))
    assert caps(Admission(max_requests_per_worker=7), KNOWN) == Caps((7.0, 7.0), (9000.0, inf))
    assert caps(Admission(derives=False), KNOWN) is None
    assert caps(Admission(derives=False, max_tokens_per_worker=100), KNOWN) == Caps((inf, inf), (100.0, 100.0))


def test_each_of_several_gateways_gives_a_worker_its_part():
    """Of configured and of derived caps; whole requests, and one at least."""
    assert caps(Admission(gateways=3), KNOWN) == Caps((13.0, inf), (3000.0, inf))
    assert caps(Admission(gateways=3, max_requests_per_worker=2, max_tokens_per_worker=100), KNOWN) == Caps(
        (1.0, 1.0), (100 / 3, 100 / 3)
    )


@pytest.mark.parametrize(
    ("requests", "load", "tokens", "has"),
    [
        (3, 500, 500, True),  # both just fill
        (4, 500, 100, False),  # one request too many
        (3, 501, 500, False),  # one token too many
        (0, 0, 5000, True),  # larger than the cap, and nothing else there
        (1, 10, 5000, False),
        (4, 1000, 0, True),  # no load at all
        (0, 900, 500, True),  # a load without requests is rounding
    ],
)
def test_room(requests, load, tokens, has):
    """A worker within both caps has room, and one without anything to do has room for any size."""
    snapshot = a_snapshot((requests, 0), (load, 0), Caps((4.0, inf), (1000.0, inf)))

    assert has_room(a_worker(0), a_demand(tokens), snapshot) is has


def test_a_choice_is_among_those_with_room():
    """A full worker gets nothing while another has room; without any the answer is busy, and down is still down."""
    model = a_model(POOL)
    cap = Caps((1.0, 1.0), (inf, inf))

    found = choose(model, a_demand(10), a_snapshot((1, 0), (10, 5000), cap))

    assert isinstance(found, Decision)
    assert found.worker.name == "w-1"
    assert choose(model, a_demand(10), a_snapshot((1, 1), (10, 10), cap)) is Impossible.BUSY
    assert choose(model, a_demand(10), a_snapshot((1, 1), (10, 10), cap, up=(0, 0))) is Impossible.NO_WORKER


def test_the_worker_to_keep_is_the_one_that_lacks_least():
    """Among those with room for something, the one with the most free tokens; nobody while there is no room at all."""
    cap = Caps((4.0, 4.0), (1000.0, 3000.0))

    assert worker_to_keep(POOL, a_demand(950), a_snapshot((1, 1), (100, 2000), cap)) == POOL.workers[1]
    assert worker_to_keep(POOL, a_demand(950), a_snapshot((1, 4), (100, 100), cap)) == POOL.workers[0]
    assert worker_to_keep(POOL, a_demand(950), a_snapshot((4, 4), (100, 100), cap)) is None
    assert worker_to_keep(POOL, a_demand(950), a_snapshot((1, 1), (1000, 100), cap, up=(1, 0))) is None
    assert worker_to_keep(POOL, a_demand(950), a_snapshot()) is None


def test_no_worker_is_kept_for_what_it_could_never_take():
    """Of a pool of unlike workers the one that holds the request is kept, full as it is; others may pass to the other one."""
    cap = Caps((4.0, 4.0), (1000.0, 1000.0))
    lengths = {"w-0": WorkerGuidance(max_model_len=8192), "w-1": WorkerGuidance(max_model_len=512)}
    told = Guidance(pools={pool_key("m", "default"): PoolGuidance(512, 8192)}, workers=lengths)
    snapshot = msgspec.structs.replace(a_snapshot((4, 1), (990, 10), cap), guidance=told)

    assert worker_to_keep(POOL, a_demand(950), snapshot) == POOL.workers[0]
    assert worker_to_keep(POOL, a_demand(100), snapshot) == POOL.workers[1]
    failing = msgspec.structs.replace(snapshot, avoided={1})
    assert worker_to_keep(POOL, a_demand(950), failing) is None


def test_a_kept_worker_gets_only_what_it_is_kept_for():
    """With anything to do it takes nothing more."""
    kept = Caps((4.0, 4.0), (1000.0, 1000.0)).without(a_worker(1))

    assert not has_room(a_worker(1), a_demand(1), a_snapshot((1, 1), (1, 1), kept))
    assert has_room(a_worker(0), a_demand(1), a_snapshot((1, 1), (1, 1), kept))


def test_when_to_come_again_follows_the_rate_at_which_the_queue_empties():
    """Ten ahead at two a second are some six seconds; the bounds are 1 and 60; without a rate, what was asked for is said."""
    rate = DrainRate()
    assert rate.per_second(0.0) is None
    assert rate.retry_after_seconds(0.0, 10, 30.0) == 30
    for number in range(60):
        rate.note(number * 0.5)

    assert rate.per_second(29.5) == pytest.approx(2.0, rel=0.1)
    assert rate.retry_after_seconds(29.5, 10, 30.0) in (5, 6)
    assert rate.retry_after_seconds(29.5, 0, 30.0) == 1
    assert rate.retry_after_seconds(29.5, 100_000, 30.0) == 60


def test_a_queue_that_has_stopped_emptying_has_a_falling_rate():
    """What was fast a minute ago is not said to be fast now."""
    rate = DrainRate()
    for number in range(100):
        rate.note(number * 0.1)

    assert (rate.per_second(70.0) or 0.0) < 0.1
