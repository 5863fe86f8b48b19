"""What the connections of one serving process share, and how it goes on with another topology."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from proxy.published import publish
from proxy.rundir import CONTROL_CELLS
from proxy.serving.exchange import Exchange
from proxy.serving.hedged import HedgedExchange
from proxy.serving.state import EXPIRED_AT_ONCE, TICK_SECONDS, Lag, ServingState
from proxy.upstream.usage_refusals import NEEDED
from routing.ring import rings_of
from routing.topology import Key, Topology, assemble
from telemetry.catalog import Writer
from telemetry.cells import create_cells
from telemetry.layout import Layout, offset, slot
from tests.proxy.fleets import a_decision, a_topology

TWO = a_topology({"default": ["w-0", "w-1"]}, key="old-key")
MORE = a_topology({"default": ["w-2", "w-0", "w-1"]}, key="old-key")
IN_FLIGHT = slot("ridgeline_in_flight_requests")


@pytest.fixture
async def state(tmp_path: Path) -> ServingState:
    return a_state(tmp_path)


def a_state(run_dir: Path, topology: Topology = TWO, number: int = 0) -> ServingState:
    publish(run_dir, topology)
    return ServingState(topology, run_dir, number, 2, asyncio.get_running_loop())


def adopt(state: ServingState, topology: Topology) -> None:
    state.adopt(topology, rings_of(topology.pools))


def in_flight(state: ServingState, worker: str) -> float:
    (index,) = [each.index for each in state.topology.workers if each.name == worker]
    return state.loads._values[Layout.of(state.topology).worker_base(index) + IN_FLIGHT]


async def test_a_published_topology_is_in_force_after_the_next_look(state, tmp_path):
    """Models, workers and keys are the new ones, and what is in flight goes on counting."""
    state.loads.begin(a_decision(TWO, "w-1"), 10)
    key = Key(index=0, name="a", sha256=sha256(b"text").digest())
    fresh = assemble(MORE.models, (key,), MORE.limits)

    publish(tmp_path, fresh)
    assert state.topology.workers == TWO.workers
    state.tick()

    assert state.topology == fresh
    assert state.keys.get(sha256(b"text").digest()) == key
    assert state.keys.get(sha256(b"other").digest()) is None
    assert (in_flight(state, "w-1"), in_flight(state, "w-0")) == (1, 0)


async def test_a_removed_key_is_not_found_any_more(tmp_path):
    """Keys are looked up in the topology in force."""
    keys = tuple(Key(index=at, name=text, sha256=sha256(text.encode()).digest()) for at, text in enumerate("ab"))
    state = a_state(tmp_path, assemble(TWO.models, keys, TWO.limits))

    adopt(state, assemble(TWO.models, keys[1:], TWO.limits))

    assert state.keys.get(sha256(b"a").digest()) is None
    assert state.keys.get(sha256(b"b").digest()) is not None


async def test_counters_are_carried_over(state):
    """A reload loses no count, and the peers find the new array under the same path."""
    state._count_dropped(3)

    adopt(state, MORE)
    state._count_dropped(1)

    assert state.loads._values[offset("ridgeline_records_dropped_total")] == 4


async def test_a_restarted_process_has_nothing_in_flight(state, tmp_path):
    """Requests of the one before ended with it; what it counted stays."""
    state.loads.begin(a_decision(TWO, "w-1"), 10)
    state._count_dropped(3)

    again = a_state(tmp_path)

    assert in_flight(again, "w-1") == 0
    assert again.loads.snapshot().load_tokens[1] == 0
    assert again.loads._values[offset("ridgeline_records_dropped_total")] == 3


async def test_a_restart_under_another_topology_has_nothing_in_flight(state, tmp_path):
    """The same when the topology has changed while the process was away."""
    state.loads.begin(a_decision(TWO, "w-1"), 10)

    again = a_state(tmp_path, MORE)

    assert [in_flight(again, worker.name) for worker in MORE.workers] == [0, 0, 0]


async def test_connections_to_a_kept_worker_are_kept(state):
    """The pool of connections belongs to name and address; another address under the same name begins anew."""
    worker = TWO.workers[1]
    kept = state.connections_to(worker)

    adopt(state, MORE)
    assert state.connections_to(worker) is kept
    adopt(state, a_topology({"default": ["w-2", "w-0"]}))

    assert state.connections_to(worker) is not kept


async def test_what_was_learned_of_a_worker_leaves_with_it(state):
    """Pods come and go under new addresses for ever; what stays keeps what is known of it."""
    gone, stays = (worker.url for worker in TWO.workers)
    for url in (gone, stays):
        state.fingerprints[url] = "fp"
        state.reports_cached.add(url)
        for _ in range(NEEDED):
            state.usage_refusals.add(url, 0.0)
        state.usage_refusals.add(f"{url}0", 0.0)

    adopt(state, a_topology({"default": ["w-2", "w-1"]}))

    assert state.fingerprints == {stays: "fp"}
    assert state.reports_cached == {stays}
    assert [state.usage_refusals.has(url, 1.0) for url in (gone, stays)] == [False, True]
    assert state.usage_refusals.suspects == {}


async def test_a_restarted_worker_has_said_nothing_of_its_cache_yet(state, tmp_path):
    """It may have come back without the flag: what it does not tell would count as nothing cached."""
    layout = Layout.of(TWO)
    restarted, other = TWO.workers
    control = create_cells(tmp_path / CONTROL_CELLS, layout, Writer.CONTROL).values
    state.tick()
    state.reports_cached.update((restarted.url, other.url))

    control[layout.worker_base(restarted.index) + slot("ridgeline_worker_restarts_total")] += 1.0
    state.tick()

    assert state.reports_cached == {other.url}


async def test_new_limits_hold_for_kept_connections(state):
    """How long a connection may take and stay is what the topology in force says."""
    adopt(state, a_topology({"default": ["w-0", "w-1"]}, limits={"connect_seconds": 1.5, "worker_idle_seconds": 2.5}))

    connections = state.connections_to(state.topology.workers[0])
    assert (connections.connect_seconds, connections.idle_seconds) == (1.5, 2.5)


async def test_a_new_worker_key_is_sent_from_then_on(state):
    """Every request that is decided after the reload carries it, whatever an earlier request did in between."""
    endpoint = state.endpoints.find(b"POST", b"/v1/chat/completions")
    before = a_decision(TWO, "w-0")
    assert b"Bearer old-key\r\n" in state.request_prefix(before, endpoint)
    fresh = a_topology({"default": ["w-0", "w-1"]}, key="new-key")
    adopt(state, fresh)

    state.request_prefix(before, endpoint)  # a request that was connecting during the reload is sent now

    assert b"Bearer new-key\r\n" in state.request_prefix(a_decision(fresh, "w-0"), endpoint)


async def test_an_array_that_cannot_be_made_is_tried_again(state, tmp_path):
    """When memory for the new array is short the old topology stays in force, until there is room."""
    obstacle = tmp_path / "serving-0.cells.new"
    obstacle.mkdir()
    publish(tmp_path, MORE)
    state.tick()
    assert state.topology == TWO

    obstacle.rmdir()
    state.tick()

    assert state.topology == MORE


async def test_damage_to_what_was_published_changes_nothing(state, tmp_path):
    """A process goes on with what it has."""
    state.tick()
    (tmp_path / "topology.msgpack").write_bytes(b"\xc1")
    state.tick()
    (tmp_path / "topology.msgpack").unlink()
    state.tick()

    assert state.topology == TWO


async def test_request_ids_are_unlike(tmp_path):
    """No two requests of a gateway share an id, also over processes."""
    states = [a_state(tmp_path, number=number) for number in (0, 1)]

    assert len({state.new_request_id() for state in states for _ in range(100)}) == 200


async def test_names_in_headers_are_plain_ascii(tmp_path):
    """Whatever a name holds, it cannot end a header line."""
    fresh = a_topology({"default": ["w-0"]})
    odd = fresh.workers[0]
    pool = fresh.pools[0]
    pool = replace(pool, name="p\r\nx: y", workers=(replace(odd, name="wörk"),))
    model = replace(fresh.models[0], pools=(pool,))
    state = a_state(tmp_path, assemble((model,), (), fresh.limits))

    lines = state.worker_lines(a_decision(state.topology, "wörk"))

    assert lines == b"x-ridgeline-worker: w??rk\r\nx-ridgeline-pool: p??x: y\r\n"


def test_lag_is_the_largest_of_the_last_ticks():
    """A stall shows for at least ten ticks and is gone after twenty."""
    lag = Lag()
    shown = [lag.add(1.0 if tick == 3 else 0.01) for tick in range(25)]

    assert shown[2] == 0.01
    assert set(shown[3:14]) == {1.0}
    assert shown[-1] == 0.01


async def test_only_who_hedges_has_exchanges_that_do(state):
    """From the topology in force on; what a budget has earned stays over a reload."""
    hedged = a_topology({"default": ["w-0", "w-1"]}, hedging={"after_seconds": 1})
    assert state.exchange_type is Exchange

    adopt(state, hedged)
    budget = state.hedge_budgets["m", "default"]
    adopt(state, a_topology({"default": ["w-0", "w-1", "w-2"]}, hedging={"after_quantile": 0.9}))

    assert state.exchange_type is HedgedExchange
    assert state.hedge_budgets == {("m", "default"): budget}
    adopt(state, TWO)
    assert (state.exchange_type, state.hedge_budgets) == (Exchange, {})


class Looked:
    """Something that is looked at, and may fail."""

    decision = sent_at = None

    def __init__(self, *, fails: bool = False) -> None:
        self.looks = 0
        self.fails = fails

    def expire(self, now: float) -> None:
        self.looks += 1
        if self.fails:
            raise RuntimeError("a fault of ours")


class Later:
    """A loop that keeps what is to be called later."""

    def __init__(self) -> None:
        self.calls = []

    def call_later(self, seconds, call, *arguments):
        self.calls.append((seconds, call, arguments))


async def test_many_requests_are_looked_at_in_parts(state):
    """The loop is free in between, all have been looked at before the next look, and a fault costs only its part."""
    running = [Looked(fails=number == 0) for number in range(2 * EXPIRED_AT_ONCE + 1)]
    state.exchanges, state.clients, state.loop = running, set(), Later()

    state.tick()
    looks, seconds = [sum(each.looks for each in running)], 0.0
    while following := [call for call in state.loop.calls if call[1] != state.tick]:
        state.loop.calls.clear()
        ((after_seconds, call, arguments),) = following
        seconds += after_seconds
        call(*arguments)
        looks.append(sum(each.looks for each in running))

    assert looks == [1, 1 + EXPIRED_AT_ONCE, 2 + EXPIRED_AT_ONCE]
    assert seconds < TICK_SECONDS
