"""Work in flight, over several serving processes and from one topology to the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic as clock

import msgspec
import pytest

from proxy.rundir import CONTROL_CELLS, serving_cells
from proxy.upstream.ledger import beside
from proxy.upstream.load import WorkerLoads
from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.policy import PoolReason
from routing.ring import rings_of
from routing.topology import Topology
from telemetry.catalog import Writer
from telemetry.cells import create_cells
from telemetry.layout import Layout, slot
from tests.proxy.fleets import a_decision, a_topology

TWO = a_topology({"default": ["w-0", "w-1"]})
IN_FLIGHT = slot("ridgeline_in_flight_requests")
TOKENS = slot("ridgeline_in_flight_tokens")
UP = slot("ridgeline_worker_up")


class Process:
    """One serving process: its cells and its loads."""

    def __init__(self, run_dir: Path, number: int, topology: Topology = TWO, processes: int = 2) -> None:
        self.path = serving_cells(run_dir, number)
        self.topology = topology
        self.values = create_cells(self.path, Layout.of(topology), Writer.SERVING).values
        self.loads = WorkerLoads(self.values, Layout.of(topology), topology, run_dir, number, processes, first_turn=number)

    def adopt(self, topology: Topology) -> None:
        self.topology = topology
        self.values = create_cells(self.path, Layout.of(topology), Writer.SERVING).values
        self.loads.adopt(self.values, Layout.of(topology), topology, rings_of(topology.pools))

    def figure(self, worker: str, cell: int) -> float:
        (index,) = [each.index for each in self.topology.workers if each.name == worker]
        return self.values[Layout.of(self.topology).worker_base(index) + cell]

    def seen(self) -> list[float]:
        snapshot = self.loads.snapshot()
        return [snapshot.load_tokens[worker.index] for worker in self.topology.workers]


@pytest.fixture
def process(tmp_path) -> Callable[..., Process]:
    return lambda number=0, **settings: Process(tmp_path, number, **settings)


def control_says(run_dir: Path, topology: Topology, **up: float) -> None:
    layout = Layout.of(topology)
    values = create_cells(run_dir / CONTROL_CELLS, layout, Writer.CONTROL).values
    for worker in topology.workers:
        name = worker.name.replace("-", "_")
        if name in up:
            values[layout.worker_base(worker.index) + UP] = up[name]


def test_a_request_adds_to_its_worker_until_it_ends(process):
    """Requests and tokens rise and fall with it; how it was routed and how it went are counted."""
    one = process()
    decision = a_decision(TWO, "w-1")

    block = one.loads.begin(decision, 500)
    assert (one.figure("w-1", IN_FLIGHT), one.figure("w-1", TOKENS), one.seen()) == (1, 500, [0, 500])
    one.loads.end(block, 500, "answered")

    assert (one.figure("w-1", IN_FLIGHT), one.figure("w-1", TOKENS), one.seen()) == (0, 0, [0, 0])
    assert one.figure("w-1", slot("ridgeline_attempts_total", result="answered")) == 1
    routed = slot("ridgeline_routes_total", policy="prefix-affinity", reason="least_load")
    assert one.values[Layout.of(TWO).pool_base(0) + routed] == 1


def test_an_attempt_can_fail_while_the_request_stays(process):
    """It is counted, and the worker's load is as it was."""
    one = process()
    block = one.loads.begin(a_decision(TWO, "w-0"), 7)

    one.loads.count_attempt(block, "stale")

    assert one.figure("w-0", slot("ridgeline_attempts_total", result="stale")) == 1
    assert one.seen() == [7, 0]


def test_all_processes_see_the_same_load_at_once(process):
    """What one process begins and ends shows in the others' next decision, without their doing anything."""
    one, other = process(0), process(1)
    one.loads.look_around()
    decision = a_decision(TWO, "w-0")

    block = one.loads.begin(decision, 300)
    other.loads.begin(a_decision(TWO, "w-1"), 20)
    assert one.seen() == other.seen() == [300, 20]
    one.loads.end(block, 300, "answered")

    assert one.seen() == other.seen() == [0, 20]


def test_a_process_that_appears_later_is_found(process):
    """Until then it adds nothing; then its load counts exactly once, however often one looks."""
    one = process(0, processes=3)
    assert one.seen() == [0, 0]
    for number in (1, 2):
        process(number, processes=3).loads.begin(a_decision(TWO, "w-0"), 5)

    for _ in range(4):
        one.loads.look_around()

    assert one.seen() == [10, 0]


def test_verdicts_come_from_control(process, tmp_path):
    """Without control all workers count as up; with it its word counts as it changes."""
    one = process()
    assert list(one.loads.snapshot().is_up) == [1.0, 1.0]

    control_says(tmp_path, TWO, w_0=0.0)
    one.loads.look_around()

    assert one.loads.snapshot().is_up[0] == 0.0
    control_says(tmp_path, TWO, w_0=1.0)
    assert one.loads.snapshot().is_up[0] == 1.0


def test_processes_begin_at_different_workers(process):
    """The turn starts where it is told to and grows with every decision."""
    turns = [[each.loads.snapshot().turn for _ in range(3)] for each in (process(0), process(1))]

    assert turns == [[1, 2, 3], [2, 3, 4]]


def test_load_is_carried_over_to_another_topology(process):
    """A request that is under way when a worker is added ends where it began, and nothing is left of it."""
    one = process()
    decision = a_decision(TWO, "w-1")
    block = one.loads.begin(decision, 100)

    one.adopt(a_topology({"default": ["w-5", "w-0", "w-1"]}))
    assert one.seen() == [0, 0, 100]
    one.loads.end(block, 100, "answered")

    assert one.seen() == [0, 0, 0]
    assert one.figure("w-1", IN_FLIGHT) == 0


def test_a_worker_that_stays_counts_where_its_pool_is_now(process):
    """A reload that moves the figures of a pool moves what is counted with a kept worker as well."""
    one = process()
    other = a_topology({"before": ["w-5"], "default": ["w-0", "w-1"]})
    one.adopt(other)
    decision = a_decision(other, "w-1")

    one.loads.begin(decision, 100)

    routed = slot("ridgeline_routes_total", policy="prefix-affinity", reason="least_load")
    counted = [one.values[Layout.of(other).pool_base(pool.index) + routed] for pool in other.pools]
    assert counted == [float(pool.name == "default") for pool in other.pools]


def test_a_request_of_a_removed_worker_ends_quietly(process):
    """It has no figures any more, and nobody else gets them."""
    one = process()
    decision = a_decision(TWO, "w-1")
    block = one.loads.begin(decision, 100)

    one.adopt(a_topology({"default": ["w-0"]}))
    one.loads.end(block, 100, "answered")
    one.loads.count_attempt(block, "stale")

    assert one.seen() == [0]
    assert one.figure("w-0", IN_FLIGHT) == 0


def test_a_worker_that_comes_back_owes_nothing_for_what_it_had(process):
    """A request that began before its worker was removed and ends after it was added again does not leave a load below 0."""
    one = process()
    decision = a_decision(TWO, "w-1")
    block = one.loads.begin(decision, 100)
    one.adopt(a_topology({"default": ["w-0"]}))
    one.adopt(TWO)

    one.loads.end(block, 100, "answered")

    assert one.seen() == [0, 0]
    assert one.figure("w-1", IN_FLIGHT) == 0


def test_a_worker_that_moves_to_another_pool_owes_nothing(process):
    """The same for a worker that the new file has in another pool."""
    one = process(topology=a_topology({"short": ["w-0", "w-1"], "long": ["w-2"]}))
    decision = a_decision(one.topology, "w-1")
    block = one.loads.begin(decision, 100)

    one.adopt(a_topology({"short": ["w-0"], "long": ["w-2", "w-1"]}))
    one.loads.end(block, 100, "answered")

    assert min(one.seen()) >= 0
    assert one.figure("w-1", IN_FLIGHT) == 0


def test_peers_are_found_again_after_they_adopted_too(process):
    """A process that adopts first sees its own load, and the other's as soon as that one has followed."""
    one, other = process(0), process(1)
    other.loads.begin(a_decision(TWO, "w-0"), 40)
    more = a_topology({"default": ["w-0", "w-1", "w-2"]})

    one.adopt(more)
    other.adopt(more)
    for each in (one, other):
        each.loads.look_around()
    other.loads.begin(a_decision(more, "w-2"), 2)

    assert one.seen() == other.seen() == [40, 0, 2]


def test_verdicts_are_looked_up_anew_in_another_topology(process, tmp_path):
    """A worker that is down stays down when the one before it is removed."""
    one = process()
    control_says(tmp_path, TWO, w_0=1.0, w_1=0.0)
    one.loads.look_around()
    less = a_topology({"default": ["w-1"]})

    control_says(tmp_path, less)  # control changes its array first
    one.adopt(less)

    assert list(one.loads.snapshot().is_up) == [0.0]


def test_requests_of_ranks_leave_nothing_behind(process):
    """Each rank's load rises and falls with its requests, also when a reload has left fewer ranks meanwhile."""
    one = process()
    block = one.loads.begin(a_decision(TWO, "w-0"), 50)
    demand = Demand(TokenEstimate(40, 40, 40), max_tokens=10)

    ranks = [block.enter_rank(3, demand, 50) for _ in range(3)]
    assert (sorted(ranks), block.rank_tokens) == ([0, 1, 2], [50, 50, 50])
    assert block.enter_rank(2, demand, 50) in (0, 1)
    for rank in (*ranks, next(rank for rank, tokens in enumerate(block.rank_tokens) if tokens == 100)):
        block.leave_rank(rank, 50)
    assert block.rank_tokens == [0, 0, 0]


def test_requests_of_another_pool_are_counted_as_such(process):
    """Of where and how a request was sent, that it came from another pool is counted, not how the worker was chosen there."""
    one = process()
    decision = msgspec.structs.replace(a_decision(TWO, "w-0"), pool_reason=PoolReason.OVERFLOW)
    one.loads.begin(decision, 1)

    base = Layout.of(TWO).pool_base(0)
    assert one.values[base + slot("ridgeline_routes_total", policy="prefix-affinity", reason="overflow")] == 1
    assert one.values[base + slot("ridgeline_routes_total", policy="prefix-affinity", reason="least_load")] == 0


def test_what_one_process_leaves_out_the_others_do_too(process):
    """A worker that one process could not reach gets no new requests of any; its peers learn it at the next look."""
    one, other = process(0), process(1)
    one.loads.look_around()
    one.loads.health.failed("w-0", "connect_failed", 0.0)
    one.loads.look_at_health(0.0)
    other.loads.look_at_health(0.0)

    assert set(one.loads.snapshot().avoided) == set(other.loads.snapshot().avoided) == {0}
    assert one.figure("w-0", slot("ridgeline_worker_ejected")) == 1
    assert other.figure("w-0", slot("ridgeline_worker_ejected")) == 0

    one.loads.look_at_health(5.0)
    one.loads.health.begins("w-0")
    one.loads.health.has_begun("w-0", 5.1)
    one.loads.look_at_health(5.5)
    other.loads.look_at_health(5.5)

    assert not other.loads.snapshot().avoided
    assert one.figure("w-0", slot("ridgeline_worker_ejected")) == 0


def test_what_is_left_out_stays_so_in_another_topology(process):
    """Workers keep what is known of them, whatever their place."""
    one = process()
    one.loads.health.failed("w-1", "connect_failed", 0.0)

    one.adopt(a_topology({"default": ["w-1", "w-2", "w-3"]}))

    assert set(one.loads.snapshot().avoided) == {0}
    one.loads.look_at_health(1.0)
    assert one.figure("w-1", slot("ridgeline_worker_ejected")) == 1


def test_a_process_that_follows_a_reload_later_ran_nothing_beside_a_request(process):
    """Between two readings its whole life seems to pass, since the first had none of it: nothing is said then."""
    one, two = process(0), process(1)
    begun_at = clock()
    busy = two.loads.enter(a_decision(TWO, "w-0"), 100, begun_at - 5000.0)
    two.loads.begin(a_decision(TWO, "w-0"), 100)
    two.loads.ledger.read(busy.block.base, begun_at - 1.0)
    three = a_topology({"default": ["w-0", "w-1", "w-2"]})
    one.adopt(three)
    stay = one.loads.enter(a_decision(three, "w-0"), 10, begun_at)
    one.loads.begin(a_decision(three, "w-0"), 10)

    two.adopt(three)
    one.loads.look_around()
    one.loads.ledger.remove(stay, begun_at + 2.0)

    assert stay.ended is not None
    assert beside(stay.begun, stay.ended, 10) is None


def test_a_request_of_many_sequences_counts_them_while_it_runs(process):
    """A worker's own gauge counts each of them, so that the others would seem to be somebody else's."""
    one = process()
    further = slot("ridgeline_in_flight_further_sequences")

    block = one.loads.begin(a_decision(TWO, "w-1"), 500, 3)
    plain = one.loads.begin(a_decision(TWO, "w-1"), 500)
    assert one.figure("w-1", further) == 3
    one.loads.end(plain, 500, "answered")
    one.loads.end(block, 500, "answered", 3)

    assert one.figure("w-1", further) == 0


def test_who_is_crowded_is_what_control_has_said_lately(process, tmp_path):
    """Of those that are; nobody without control, once it has been silent for a while, and under another topology."""
    one = process()
    assert one.loads.snapshot().crowded == {}
    layout = Layout.of(TWO)
    values = create_cells(tmp_path / CONTROL_CELLS, layout, Writer.CONTROL).values
    values[layout.worker_base(1) + slot("ridgeline_worker_crowding_tokens")] = 700.0
    one.loads.look_around()
    one.loads.look_at_crowding(1.0)
    assert one.loads.snapshot().crowded == {}  # it has not looked yet
    values[slot("ridgeline_crowding_at_seconds")] = 100.0

    def crowded(now: float) -> dict[int, float]:
        one.loads.look_at_crowding(now)
        return dict(one.loads.snapshot().crowded)

    assert crowded(101.0) == crowded(105.0) == {1: 700.0}
    assert crowded(105.5) == {}
    assert crowded(101.0) == {1: 700.0}
    one.adopt(a_topology({"default": ["w-1", "w-2"]}))
    assert one.loads.snapshot().crowded == {}


def test_a_restart_that_control_has_seen_is_told_once(process, tmp_path):
    """Not what had happened before the first look, and nothing across a reload, which numbers the workers anew."""
    one = process()
    assert one.loads.restarted() == []
    layout = Layout.of(TWO)
    values = create_cells(tmp_path / CONTROL_CELLS, layout, Writer.CONTROL).values
    cell = layout.worker_base(1) + slot("ridgeline_worker_restarts_total")
    values[cell] = 3.0
    one.loads.look_around()
    assert one.loads.restarted() == []

    values[cell] = 4.0
    assert [worker.name for worker in one.loads.restarted()] == ["w-1"]
    assert one.loads.restarted() == []
    one.adopt(a_topology({"default": ["w-1", "w-2"]}))
    one.loads.look_around()
    assert one.loads.restarted() == []
