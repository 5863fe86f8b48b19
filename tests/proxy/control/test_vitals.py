"""What control finds out about the gateway itself."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from math import isnan, nan
from pathlib import Path

import pytest

from proxy.control.fleet import Fleet
from proxy.control.view import GatewayView
from proxy.control.vitals import Vitals, why_left_out
from proxy.rundir import PROCESSES, serving_cells
from routing.health import Condition
from telemetry.catalog import Writer
from telemetry.cells import create_cells
from telemetry.labels import LABELS
from telemetry.layout import Layout, most_series, slot
from tests.proxy.fleets import a_topology, running_fleet

FLEET = a_topology({"default": ["w-0", "w-1"]})
LAYOUT = Layout.of(FLEET)


@pytest.mark.parametrize(
    ("is_draining", "up", "condition", "reason"),
    [
        (False, 1.0, Condition.WELL, None),
        (False, nan, Condition.WELL, None),
        (False, 1.0, Condition.SLOW_START, None),
        (False, 1.0, Condition.ERRORS, "errors"),
        (False, 1.0, Condition.SILENCE, "silence"),
        (False, 0.0, Condition.SILENCE, "down"),
        (True, 0.0, Condition.ERRORS, "draining"),
    ],
)
def test_the_first_reason_that_holds(is_draining, up, condition, reason) -> None:
    """What somebody asked for goes first, then what its own health check says, then what became of requests."""
    assert why_left_out(replace(FLEET.workers[0], is_draining=is_draining), up, condition) == reason


class Scene:
    def __init__(self, fleet: Fleet, run_dir: Path) -> None:
        self.fleet = fleet
        self.run_dir = run_dir
        self.dropped = 0
        self.serving = create_cells(serving_cells(run_dir, 0), LAYOUT, Writer.SERVING).values
        view = GatewayView(
            version="1", run_dir=run_dir, processes=1, topology=FLEET, control=fleet.cells.values, log_dropped=lambda: 0
        )
        self.vitals = Vitals(fleet, view, run_dir, 1, lambda: self.dropped)

    def figure(self, name: str, **labels: str) -> float:
        return self.fleet.cells.values[slot(f"ridgeline_{name}", **labels)]

    def reasons(self, worker: int) -> set[str]:
        """Those that are shown of a worker."""
        base = LAYOUT.worker_base(worker)
        cells = {
            reason: self.fleet.cells.values[base + slot("ridgeline_worker_left_out", reason=reason)]
            for reason in LABELS["ridgeline_worker_left_out.reason"]
        }
        return {reason for reason, value in cells.items() if not isnan(value)}


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with running_fleet(tmp_path, FLEET) as fleet:
        yield Scene(fleet, tmp_path)


async def test_a_worker_that_is_left_out_says_why(scene: Scene) -> None:
    """One reason at a time, none while it gets requests."""
    base = LAYOUT.worker_base(1)
    scene.vitals.look()
    assert (scene.reasons(0), scene.reasons(1)) == (set(), set())

    scene.serving[base + slot("ridgeline_worker_condition")] = Condition.SILENCE
    scene.vitals.look()
    assert (scene.reasons(0), scene.reasons(1)) == (set(), {"silence"})

    scene.fleet.cells.values[base + slot("ridgeline_worker_up")] = 0.0
    scene.vitals.look()
    assert scene.reasons(1) == {"down"}


async def test_restarts_and_memory_are_those_of_the_list(scene: Scene) -> None:
    """As the supervisor wrote it down; what was known stays while the list cannot be read."""
    (scene.run_dir / PROCESSES).write_text("control 0 1\nserving 0 2\nserving 0 3\n")
    scene.vitals.look()
    (scene.run_dir / PROCESSES).unlink()
    scene.vitals.look()

    assert scene.figure("process_restarts_total", role="serving") == 5
    assert scene.figure("process_restarts_total", role="control") == 1
    assert scene.figure("process_resident_bytes", role="supervisor") > 1e6  # the parent of this process
    assert isnan(scene.figure("process_resident_bytes", role="counting"))


async def test_a_process_that_is_short_of_descriptors_is_told_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """What is shown is the process nearest to its limit; it is told again only after it has had enough of them."""
    child = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE)
    (scene.run_dir / PROCESSES).write_text(f"serving {child.pid} 0\n")
    for most in (1000, 3, 3, 1000, 3):
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (most, 1000))
        scene.vitals.look()
    shown = [scene.figure(f"process_{name}_descriptors", role="serving") for name in ("open", "most")]
    await child.communicate(b"")

    assert shown[0] >= 3
    assert shown[1] == 3
    assert isnan(scene.figure("process_open_descriptors", role="counting"))
    assert len([line for line in caplog.messages if "file descriptors open that it may have" in line]) == 2


async def test_what_processes_use_is_read_less_often_than_the_rest(scene: Scene) -> None:
    """Every other second, and at once when the supervisor has started another one."""
    child = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE)
    listed = scene.run_dir / PROCESSES
    listed.write_text("serving 0 0\n")
    shown = []
    for now, text in ((100.0, None), (101.0, f"serving {child.pid} 1\n"), (101.5, None), (102.5, None), (103.5, None)):
        if text is not None:
            listed.write_text(text)
            os.utime(listed, ns=(0, 1))  # a change that any clock of files would tell
        if now == 101.5:
            resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (500, 1000))
        scene.vitals.look(now)
        shown.append(scene.figure("process_most_descriptors", role="serving"))
    await child.communicate(b"")

    assert isnan(shown[0])
    assert shown[1] == shown[2] == shown[3] != 500
    assert shown[4] == 500


async def test_lost_lines_of_the_log_are_counted_once(scene: Scene) -> None:
    """The log's own count begins anew with each control process, the counter does not."""
    for dropped in (3, 3, 5):
        scene.dropped = dropped
        scene.vitals.look()

    assert scene.figure("log_lines_dropped_total") == 5


async def test_the_room_for_series_is_shown(scene: Scene) -> None:
    """As many as the page can have with these workers."""
    scene.vitals.look()

    assert scene.figure("exported_series") == most_series(LAYOUT, 1, FLEET)
