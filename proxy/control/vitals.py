"""What control finds out about the gateway itself: who is left out and what was lost, once a second; what its processes use."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf, nan
from pathlib import Path
from time import monotonic

from proxy.control.fleet import Fleet
from proxy.control.usage_of_processes import CpuCount, Usage, read_list, usages
from proxy.control.view import GatewayView
from proxy.rundir import PROCESSES
from routing.health import Condition
from routing.topology import Topology, Worker
from telemetry.labels import LABELS
from telemetry.layout import Layout, most_series, slot

_log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
PROCESSES_SECONDS = 2.0
"""How old figures of processes get; a restart is seen at the next look."""

_LEFT_OUT = {reason: slot("ridgeline_worker_left_out", reason=reason) for reason in LABELS["ridgeline_worker_left_out.reason"]}
_UP = slot("ridgeline_worker_up")
_CPU = {role: slot("ridgeline_process_cpu_seconds_total", role=role) for role in LABELS["role"]}
_RESIDENT = {role: slot("ridgeline_process_resident_bytes", role=role) for role in LABELS["role"]}
_OPEN = {role: slot("ridgeline_process_open_descriptors", role=role) for role in LABELS["role"]}
_MOST = {role: slot("ridgeline_process_most_descriptors", role=role) for role in LABELS["role"]}
_RESTARTS = {
    role: slot("ridgeline_process_restarts_total", role=role) for role in LABELS["ridgeline_process_restarts_total.role"]
}
_SERIES = slot("ridgeline_exported_series")
_LOG_LINES = slot("ridgeline_log_lines_dropped_total")
_UNWRITTEN = {file: slot("ridgeline_unwritten_files", file=file) for file in LABELS["file"]}
_SHORT_RATIO, _ENOUGH_RATIO = 0.95, 0.8  # of its descriptors that a process has open: it is told, and may be told again


def why_left_out(worker: Worker, up: float, condition: Condition) -> str | None:
    """The first reason that holds for not giving a worker new requests; ``None`` if it gets them.

    ``up`` is 0 when its health check fails; the condition is the worst that serving processes make of it.
    """
    if worker.is_draining:
        return "draining"
    if up == 0.0:
        return "down"
    if condition is Condition.SILENCE:
        return "silence"
    return "errors" if condition is Condition.ERRORS else None


class Vitals:
    """One per control process. ``log_dropped`` gives the lines that the request log has lost so far.

    ``is_unwritten`` tells of each file of control's whether it could not be written at the last try.
    """

    def __init__(
        self,
        fleet: Fleet,
        view: GatewayView,
        run_dir: Path,
        processes: int,
        log_dropped: Callable[[], int],
        is_unwritten: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._is_unwritten = is_unwritten
        self._fleet = fleet
        self._view = view
        self._list = run_dir / PROCESSES
        self._processes_due_at = 0.0
        self._list_changed_ns: int | None = None  # when it was changed last, as of the last look at processes
        self._processes = processes
        self._log_dropped = log_dropped
        self._log_told = 0
        self._short: set[tuple[int, int]] = set()  # processes that have been told to be short of descriptors
        self._topology: Topology | None = None
        self._layout = Layout.of(fleet.topology)
        self._cpu = CpuCount(goes_on=any(fleet.cells.values[cell] for cell in _CPU.values()))

    def __repr__(self) -> str:
        return f"<Vitals of {self._fleet}>"

    async def run(self) -> None:
        """Look every second until cancelled. A fault of ours in one look is logged and does not end it."""
        while True:
            try:
                self.look(monotonic())
            except Exception:
                _log.exception("the gateway could not look at itself")
            await asyncio.sleep(PERIOD_SECONDS)

    def look(self, now: float = inf) -> None:
        """Write down what is there.

        What processes use takes longest, and is only looked at when that is due at ``now``, a monotonic instant.
        """
        topology, cells = self._fleet.topology, self._fleet.cells.values
        if topology is not self._topology:
            self._topology, self._layout = topology, Layout.of(topology)
            cells[_SERIES] = most_series(self._layout, self._processes, topology)
        conditions = self._view.conditions()
        for worker in topology.workers:
            base = self._layout.worker_base(worker.index)
            condition, left_out_by = conditions.get(worker.name, (Condition.WELL, 0))
            reason = why_left_out(worker, cells[base + _UP], condition if left_out_by else Condition.WELL)
            for name, cell in _LEFT_OUT.items():
                cells[base + cell] = 1.0 if name == reason else nan
        dropped = self._log_dropped()
        cells[_LOG_LINES] += dropped - self._log_told
        self._log_told = dropped
        for file, cell in _UNWRITTEN.items():
            cells[cell] = float(self._is_unwritten(file))
        if now >= self._processes_due_at or _changed_ns(self._list) != self._list_changed_ns:
            self._processes_due_at = now + PROCESSES_SECONDS
            self._look_at_processes(cells)

    def _look_at_processes(self, cells: memoryview[float]) -> None:
        self._list_changed_ns = _changed_ns(self._list)
        listed = read_list(self._list)
        used = usages(listed, os.getppid())
        for role, seconds in self._cpu.take(used).items():
            cells[_CPU[role]] += seconds
        for role, cell in _RESIDENT.items():
            cells[cell] = sum(usage.resident_bytes for usage in used if usage.role == role) or nan
        for role, cell in _OPEN.items():
            fullest = max((usage for usage in used if usage.role == role), key=_open_ratio, default=None)
            cells[cell] = nan if fullest is None or fullest.open_descriptors is None else fullest.open_descriptors
            cells[_MOST[role]] = nan if fullest is None or fullest.most_descriptors is None else fullest.most_descriptors
        self._tell_short(used)
        for role, cell in _RESTARTS.items():
            cells[cell] = sum(one.restarts for one in listed if one.role == role) or cells[cell]

    def _tell_short(self, used: Sequence[Usage]) -> None:
        """Once for each process, until it has had enough of them again."""
        self._short &= {usage.identity for usage in used if _open_ratio(usage) > _ENOUGH_RATIO}
        for usage in used:
            if _open_ratio(usage) >= _SHORT_RATIO and usage.identity not in self._short:
                self._short.add(usage.identity)
                _log.warning(
                    "%s process %d has %d of the %d file descriptors open that it may have: new connections fail; raise the "
                    "limit (LimitNOFILE= in systemd, ulimit -n)",
                    usage.role,
                    usage.identity[0],
                    usage.open_descriptors,
                    usage.most_descriptors,
                )


def _changed_ns(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return None


def _open_ratio(usage: Usage) -> float:
    return (usage.open_descriptors or 0) / (usage.most_descriptors or 1)
