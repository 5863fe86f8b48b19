"""Control tells when workers are left out and taken back, and why."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from proxy.control.conditions import ConditionWatch
from proxy.control.view import GatewayView
from proxy.rundir import CONTROL_CELLS, serving_cells
from proxy.upstream.load import WorkerLoads
from routing.topology import Topology
from telemetry.catalog import Writer
from telemetry.cells import create_cells
from telemetry.layout import Layout, slot
from tests.proxy.fleets import a_topology

TWO = a_topology({"default": ["w-0", "w-1"]})
LAYOUT = Layout.of(TWO)


class Gateway:
    """Two serving processes and what control shows of them."""

    def __init__(self, run_dir: Path, topology: Topology = TWO) -> None:
        cells = create_cells(run_dir / CONTROL_CELLS, LAYOUT, Writer.CONTROL)
        self.up = cells.values
        self.loads = [
            WorkerLoads(
                create_cells(serving_cells(run_dir, number), LAYOUT, Writer.SERVING).values,
                LAYOUT,
                topology,
                run_dir,
                number,
                2,
            )
            for number in range(2)
        ]
        self.view = GatewayView(
            version="1", run_dir=run_dir, processes=2, topology=topology, control=cells.values, log_dropped=lambda: 0
        )

    def look(self, now: float) -> None:
        for loads in self.loads:
            loads.look_at_health(now)

    def state(self, worker: int) -> tuple[str, int]:
        shown = json.loads(self.view.state())["pools"][0]["workers"][worker]
        return shown["condition"], shown["left_out_by_processes"]


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    return Gateway(tmp_path)


def test_the_state_says_why(gateway: Gateway) -> None:
    """The worst that a serving process makes of a worker, and how many leave it out; a failed health check goes first."""
    assert gateway.state(0) == ("up", 0)
    for loads, result in zip(gateway.loads, ("connect_failed", "silent"), strict=True):
        for _ in range(5):
            loads.health.failed("w-0", result, 0.0)
    gateway.look(0.0)

    assert gateway.state(0) == ("ejected: silence", 2)
    assert gateway.state(1) == ("up", 0)
    gateway.up[LAYOUT.worker_base(0) + slot("ridgeline_worker_up")] = 0.0
    assert gateway.state(0) == ("down", 2)


def test_a_slow_start_is_shown(gateway: Gateway) -> None:
    """A worker that one process has taken back and does not fully trust yet."""
    health = gateway.loads[1].health
    health.failed("w-1", "connect_failed", 0.0)
    health.look(5.0, [1.0, 1.0])
    health.begins("w-1")
    health.has_begun("w-1", 5.0)
    gateway.look(6.0)

    assert gateway.state(1) == ("slow start", 0)


def test_one_line_when_it_begins_and_one_when_it_ends(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    """However often one looks; with the reason, and again when the reason is another."""
    caplog.set_level(logging.INFO)
    watch = ConditionWatch(gateway.view)
    watch.look()
    assert caplog.messages == []

    gateway.loads[0].health.failed("w-0", "connect_failed", 0.0)
    gateway.look(0.0)
    watch.look()
    watch.look()
    assert caplog.messages == ["worker w-0 gets no new requests: its requests fail, or no connection can be made"]

    gateway.loads[0].health.look(5.0, [1.0, 1.0])
    gateway.loads[0].health.has_begun("w-0", 5.0)
    gateway.look(5.5)
    watch.look()
    gateway.loads[1].health.seems_silent("w-0", 6.0)
    gateway.look(6.0)
    watch.look()

    assert caplog.messages[1:] == [
        "worker w-0 gets requests again",
        "worker w-0 gets no new requests: it takes requests and says nothing",
    ]
