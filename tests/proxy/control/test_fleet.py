"""The topology in force in the control process: cells, what is shown, what is published, who is probed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from math import isnan
from pathlib import Path

import pytest

from proxy.control.fleet import Fleet
from proxy.control.overlay import Overlay, kept_overlay
from proxy.published import TopologyReader
from proxy.rundir import CONTROL_CELLS
from routing.topology import Topology
from telemetry.cells import map_cells
from telemetry.layout import Layout, slot
from tests.proxy.fleets import a_topology, an_addition, eventually, names, running_fleet

TWO = a_topology({"default": ["w-0", "w-1"]})
RELOADS = slot("ridgeline_reloads_total", result="ok")
Start = Callable[..., Awaitable[Fleet]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def make(configured: Topology = TWO, overlay: Overlay | None = None) -> Fleet:
            return await stack.enter_async_context(running_fleet(tmp_path, configured, overlay))

        yield make


def probe_count() -> int:
    """How many probes run now: the loop knows, whoever remembers them."""
    return sum(task.get_coro().__qualname__ == "WorkerProbe.run" and not task.cancelling() for task in asyncio.all_tasks())


def verdict(fleet: Fleet, name: str) -> float:
    (index,) = [worker.index for worker in fleet.topology.workers if worker.name == name]
    return fleet.cells.values[Layout.of(fleet.topology).worker_base(index) + slot("ridgeline_worker_up")]


async def are_probed(fleet: Fleet) -> None:
    """Wait until every worker has a verdict; nobody listens, so that takes no time."""
    await eventually(lambda: not any(isnan(verdict(fleet, worker.name)) for worker in fleet.topology.workers))


async def test_the_topology_is_published_at_the_start(start, tmp_path):
    """Serving processes get what is configured with the changes made by hand over it."""
    fleet = await start(TWO, Overlay().add(TWO, an_addition("w-9")))

    assert TopologyReader(tmp_path).read_news() == fleet.topology
    assert names(fleet.topology) == ["w-0", "w-1", "w-9"]
    assert probe_count() == 3


async def test_a_reload_puts_all_of_it_in_force(start, tmp_path):
    """Topology, cells, publication and probes are those of the new file; counters go on."""
    fleet = await start()
    fleet.cells.values[RELOADS] = 4
    fresh = a_topology({"default": ["w-1", "w-2", "w-3"]})

    fleet.reload(fresh)

    assert (fleet.topology, fleet.configured) == (fresh, fresh)
    assert TopologyReader(tmp_path).read_news() == fresh
    assert fleet.cells.values[RELOADS] == 4
    assert map_cells(tmp_path / CONTROL_CELLS, Layout.of(fresh)) is not None
    assert probe_count() == 3


async def test_changes_by_hand_stay_over_a_reload(start, tmp_path):
    """They lie over the new file and are kept for the next control process."""
    fleet = await start()
    fleet.change(fleet.overlay.add(TWO, an_addition("w-9")).remove(TWO, "w-0"))

    fleet.reload(a_topology({"default": ["w-0", "w-1", "w-2"]}))

    assert names(fleet.topology) == ["w-1", "w-2", "w-9"]
    assert kept_overlay(tmp_path) == fleet.overlay


async def test_probes_are_neither_doubled_nor_lost(start):
    """After any reloads there is one probe for each worker there is, and those of the others have been ended."""
    fleet = await start()
    for workers in (["w-0", "w-1"], ["w-1"], ["w-1", "w-0"], ["w-3"], ["w-3", "w-1"], ["w-0", "w-1"]):
        fleet.reload(a_topology({"default": workers}))
        await asyncio.sleep(0)
        assert probe_count() == len(workers)

    fleet.reload(a_topology({"default": ["w-0", "w-1"]}, key="another"))
    await asyncio.sleep(0)

    assert probe_count() == 2


async def test_a_verdict_follows_its_worker(start):
    """What is known of a worker is not lost when others come before it, and not mistaken for theirs."""
    fleet = await start()
    await are_probed(fleet)

    fleet.reload(a_topology({"default": ["w-5", "w-0", "w-1"]}))

    assert [verdict(fleet, name) for name in ("w-0", "w-1")] == [0.0, 0.0]
    assert isnan(verdict(fleet, "w-5"))


async def test_a_worker_that_is_down_is_down_in_another_pool_too(start):
    """A worker that the new file has in another pool is not taken for one that was never asked."""
    fleet = await start(a_topology({"short": ["w-0", "w-1"], "long": ["w-2"]}))
    await are_probed(fleet)

    fleet.reload(a_topology({"short": ["w-0"], "long": ["w-2", "w-1"]}))

    assert verdict(fleet, "w-1") == 0.0


@pytest.mark.parametrize("obstacle", ["control.cells.next.new", "topology.msgpack.new", "overlay.msgpack.new"])
async def test_a_change_that_cannot_be_written_down_changes_nothing(start, tmp_path, obstacle):
    """Whichever file cannot be made: topology, changes, cells, publication, what is shown and who is probed are as before."""
    fleet = await start()
    overlay = fleet.overlay.add(TWO, an_addition("w-9"))
    reader = TopologyReader(tmp_path)
    reader.read_news()
    (tmp_path / obstacle).mkdir()

    with pytest.raises(OSError, match="directory"):
        fleet.change(overlay)

    assert (fleet.topology, fleet.overlay) == (TWO, Overlay())
    assert b"w-9" not in fleet._view.state()
    assert map_cells(tmp_path / CONTROL_CELLS, Layout.of(TWO)) is not None
    assert (reader.read_news() or TWO) == TWO
    assert kept_overlay(tmp_path) == Overlay()
    assert probe_count() == 2


async def test_a_change_can_be_made_after_one_that_failed(start, tmp_path):
    """Once there is room the same change goes through."""
    fleet = await start()
    overlay = fleet.overlay.add(TWO, an_addition("w-9"))
    (tmp_path / "topology.msgpack.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        fleet.change(overlay)
    (tmp_path / "topology.msgpack.new").rmdir()

    fleet.change(overlay)

    assert names(fleet.topology) == ["w-0", "w-1", "w-9"]
    assert TopologyReader(tmp_path).read_news() == fleet.topology
    assert probe_count() == 3
