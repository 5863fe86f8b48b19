"""Control tells who has more than their share, from what workers say of themselves and what its own processes have there."""

from __future__ import annotations

from pathlib import Path

from proxy.control.crowding import CrowdingWatch
from proxy.control.fleet import Fleet
from proxy.control.overlay import Overlay
from proxy.control.view import GatewayView
from proxy.rundir import serving_cells
from routing.topology import Topology
from telemetry.catalog import Writer
from telemetry.cells import create_cells
from telemetry.layout import Layout, slot
from tests.dashboards.live.requests_made import a_record
from tests.proxy.fleets import a_topology, running_fleet

THREE = a_topology({"default": ["w-0", "w-1", "w-2"]})


def a_view(run_dir: Path, topology: Topology, control: memoryview[float]) -> GatewayView:
    return GatewayView(version="1", run_dir=run_dir, processes=1, topology=topology, control=control, log_dropped=lambda: 0)


def said(fleet: Fleet) -> list[float]:
    layout = Layout.of(fleet.topology)
    return [
        fleet.cells.values[layout.worker_base(worker.index) + slot("ridgeline_worker_crowding_tokens")]
        for worker in fleet.topology.workers
    ]


async def test_a_worker_that_others_have_filled_is_crowded(tmp_path: Path) -> None:
    """By requests of the usual size here, beside this gateway's own; and not any more once it says nothing of itself."""
    layout = Layout.of(THREE)
    serving = create_cells(serving_cells(tmp_path, 0), layout, Writer.SERVING).values
    serving[layout.worker_base(2) + slot("ridgeline_in_flight_tokens")] = 1000.0
    serving[layout.worker_base(2) + slot("ridgeline_in_flight_requests")] = 1.0
    serving[layout.worker_base(2) + slot("ridgeline_in_flight_further_sequences")] = 3.0
    async with running_fleet(tmp_path, THREE) as fleet:
        view = a_view(tmp_path, THREE, fleet.cells.values)
        watch = CrowdingWatch(view)
        watch.take([a_record(model="m", pool="default", load_tokens=tokens) for tokens in (50, 150, 100, None)])

        watch.look(fleet, 41.0)
        assert said(fleet) == [0.0, 0.0, 0.0]  # nobody has answered a scrape
        assert view.in_flight_reader()("w-2") == (4.0, 1000.0)
        assert view.in_flight_reader()("w-9") == (0.0, 0.0)
        for probing, others in zip(fleet._probing.values(), (60.0, 10.0, 10.0), strict=True):
            probing.probe.others = others
        watch.look(fleet, 42.0)

        assert said(fleet) == [6000.0 - 1.25 * 3000.0 - 200.0, 0.0, 0.0]
        assert fleet.cells.values[slot("ridgeline_crowding_at_seconds")] == 42.0
        fleet.change(Overlay().drain(THREE, "w-1"))
        watch.look(fleet, 42.5)
        assert said(fleet) == [6000.0 - 1.25 * 4000.0 - 200.0, 0.0, 0.0]  # of the two that get requests
        for probing in fleet._probing.values():
            probing.probe.others = None
        watch.look(fleet, 43.0)
        assert said(fleet) == [0.0, 0.0, 0.0]
