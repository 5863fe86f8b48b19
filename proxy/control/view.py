"""What the gateway looks like from the control process: its arrays, the figures of its workers, the newest records."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import isnan
from pathlib import Path
from time import monotonic

import msgspec

from proxy.rundir import STOPPING_MARK, serving_cells
from routing.health import EJECTED, Condition
from routing.topology import Pool, Topology, Worker
from telemetry.cells import Cells, map_cells
from telemetry.exemplars import Exemplars
from telemetry.exposition import Writer
from telemetry.layout import Layout, slot
from telemetry.points import Snapshot
from telemetry.record import RequestRecord
from telemetry.sinks.jsonlog import json_object

RECENT_RECORDS = 100
_ADOPTION_SECONDS = 5.0  # after which a topology is shown whoever has adopted it

_REQUESTS = slot("ridgeline_in_flight_requests")
_FURTHER = slot("ridgeline_in_flight_further_sequences")
_TOKENS = slot("ridgeline_in_flight_tokens")
_CONDITIONS = {
    Condition.WELL: "up",
    Condition.ERRORS: "ejected: errors",
    Condition.SILENCE: "ejected: silence",
    Condition.SLOW_START: "slow start",
}


class ServingArrays:
    """The serving processes' cells, mapped as their files appear and again when a file was replaced or damaged."""

    def __init__(self, directory: Path, layout: Layout, processes: int) -> None:
        self._paths = [serving_cells(directory, number) for number in range(processes)]
        self._layout = layout
        self._mapped: list[tuple[tuple[int, int], Cells] | None] = [None] * processes
        self._is_frozen = False

    def freeze(self) -> None:
        """Keep what is mapped now: the files are about to be replaced by arrays of another layout."""
        self.by_slot()
        self._is_frozen = True

    def thaw(self) -> None:
        """The files have not been replaced after all."""
        self._is_frozen = False

    def by_slot(self) -> list[memoryview[float] | None]:
        """Return the current arrays; ``None`` for a process that has none (yet), or none that can be read."""
        return [self._current(number) for number in range(len(self._paths))]

    def _current(self, number: int) -> memoryview[float] | None:
        if self._is_frozen:
            kept = self._mapped[number]
            return None if kept is None else kept[1].values
        path = self._paths[number]
        try:
            status = path.stat()
        except OSError:
            self._mapped[number] = None
            return None
        identity = (status.st_ino, status.st_size)
        entry = self._mapped[number]
        if entry is None or entry[0] != identity:
            # The old one is not closed but left to its last reader: a page may be in the making.
            cells = map_cells(path, self._layout)
            entry = self._mapped[number] = None if cells is None else (identity, cells)
        return None if entry is None else entry[1].values


class _Scene:
    """One topology and the arrays that are laid out for it."""

    __slots__ = ("bases", "control", "layout", "serving", "topology", "writer")

    def __init__(
        self, topology: Topology, control: Sequence[float], serving: ServingArrays, layout: Layout, version: str
    ) -> None:
        self.topology = topology
        self.control = control
        self.serving = serving
        self.layout = layout
        self.bases = {worker.name: layout.worker_base(worker.index) for worker in topology.workers}
        self.writer = Writer(topology, layout, version=version)


class GatewayView:
    """The gateway as seen from the control process. `log_dropped` gives the number of log lines lost so far."""

    def __init__(
        self,
        *,
        version: str,
        run_dir: Path,
        processes: int,
        topology: Topology,
        control: Sequence[float],
        log_dropped: Callable[[], int],
        exemplars: Exemplars | None = None,
    ) -> None:
        self.recent: deque[RequestRecord] = deque(maxlen=RECENT_RECORDS)
        self._version = version
        self._run_dir = run_dir
        self._processes = processes
        self._log_dropped = log_dropped
        self._exemplars = exemplars
        self._scene = self._make_scene(topology, control)
        self._next: tuple[_Scene, float] | None = None  # and until when serving processes are waited for

    def _make_scene(self, topology: Topology, control: Sequence[float]) -> _Scene:
        layout = Layout.of(topology)
        return _Scene(topology, control, ServingArrays(self._run_dir, layout, self._processes), layout, self._version)

    def freeze_for(self, topology: Topology) -> None:
        """Arrays are about to be replaced by those of this topology: show the ones that are there until `adopt`."""
        if self._scene.layout.digest != Layout.of(topology).digest:
            self._scene.serving.freeze()

    def thaw(self) -> None:
        """Nothing comes of it: show what is there as before."""
        self._scene.serving.thaw()

    def adopt(self, topology: Topology, control: Sequence[float]) -> None:
        """Show another topology, as soon as the serving processes have their arrays for it: no counter goes back meanwhile."""
        self._next = (self._make_scene(topology, control), monotonic() + _ADOPTION_SECONDS)

    @property
    def processes(self) -> int:
        """Serving processes that there should be."""
        return self._processes

    @property
    def is_stopping(self) -> bool:
        """Whether the supervisor has begun to end the gateway."""
        return (self._run_dir / STOPPING_MARK).exists()

    @property
    def log_lines_dropped(self) -> int:
        """Lines of the request log that were lost so far."""
        return self._log_dropped()

    @property
    def _shown(self) -> _Scene:
        if self._next is not None:
            scene, until = self._next
            arrays = zip(self._scene.serving.by_slot(), scene.serving.by_slot(), strict=True)
            if monotonic() > until or all(new is not None for old, new in arrays if old is not None):
                self._scene = scene
                self._next = None
        return self._scene

    @property
    def is_ready(self) -> bool:
        """Whether at least one serving process has its cells."""
        return any(array is not None for array in self._shown.serving.by_slot())

    async def page(self, *, openmetrics: bool) -> list[bytes]:
        """Return the metrics in pieces, letting the loop run between two of them."""
        pieces: list[bytes] = []
        scene = self._shown
        arrays = scene.serving.by_slot()
        for piece in scene.writer.write(arrays, scene.control, openmetrics=openmetrics, exemplars=self._exemplars):
            pieces.append(piece)
            await asyncio.sleep(0)
        return pieces

    def snapshot(self) -> Snapshot:
        """What `page` would be written from now. Its arrays go on being written to, and stay readable."""
        scene = self._shown
        return Snapshot(scene.topology, tuple(scene.serving.by_slot()), scene.control, self._version)

    def state(self) -> bytes:
        """Return pools and workers with their present load, as JSON."""
        scene = self._shown
        arrays = [array for array in scene.serving.by_slot() if array is not None]
        return msgspec.json.encode(
            {
                "version": self._version,
                "serving_processes": len(arrays),
                "log_lines_dropped": self._log_dropped(),
                "pools": [_pool_state(scene, pool, arrays) for pool in scene.topology.pools],
            }
        )

    def workers(self) -> bytes:
        """Return every worker with its pool, its source and its present load, as a JSON list."""
        scene = self._shown
        arrays = [array for array in scene.serving.by_slot() if array is not None]
        return msgspec.json.encode(
            [
                {"model": pool.model, "pool": pool.name, **_worker_state(scene, worker, arrays)}
                for pool in scene.topology.pools
                for worker in pool.workers
            ]
        )

    def busy(self) -> frozenset[tuple[str, str, str]]:
        """Return model, pool and URL of every worker that has a request of this gateway."""
        scene = self._shown
        cell = slot("ridgeline_in_flight_requests")
        arrays = [array for array in scene.serving.by_slot() if array is not None]
        return frozenset(
            (pool.model, pool.name, worker.url)
            for pool in scene.topology.pools
            for worker in pool.workers
            if any(array[scene.layout.worker_base(worker.index) + cell] > 0 for array in arrays)
        )

    def in_flight_reader(self) -> Callable[[str], tuple[float, float]]:
        """What this gateway has at a worker of this name: sequences, and estimated tokens; nothing where that is not known."""
        scene = self._shown
        arrays = [array for array in scene.serving.by_slot() if array is not None]

        def read(worker: str) -> tuple[float, float]:
            base = scene.bases.get(worker)
            if base is None:
                return 0.0, 0.0
            sequences = sum([array[base + _REQUESTS] + array[base + _FURTHER] for array in arrays])
            return sequences, sum([array[base + _TOKENS] for array in arrays])

        return read

    def conditions(self) -> dict[str, tuple[Condition, int]]:
        """What the serving processes make of each worker, by name, and how many of them leave it out."""
        scene = self._shown
        arrays = [array for array in scene.serving.by_slot() if array is not None]
        return {worker.name: condition_of(scene.layout, worker, arrays) for worker in scene.topology.workers}

    def condition_reader(self) -> Callable[[Worker], tuple[Condition, int]]:
        """The same for one worker of the topology that is shown, as of now."""
        scene = self._shown
        arrays = [array for array in scene.serving.by_slot() if array is not None]
        return lambda worker: condition_of(scene.layout, worker, arrays)

    def revise(self, records: Iterable[RequestRecord]) -> None:
        """Put these in the place of the newest records of the same requests, whose causes are known better now."""
        fresh = {(record.request_id, record.ended_unix_seconds): record for record in records}
        revised = [fresh.get((record.request_id, record.ended_unix_seconds), record) for record in self.recent]
        self.recent.clear()
        self.recent.extend(revised)

    def records(self) -> bytes:
        """Return the newest records, newest first, as JSON."""
        return b"[" + b",".join(map(json_object, reversed(self.recent))) + b"]"


def _pool_state(scene: _Scene, pool: Pool, arrays: Sequence[Sequence[float]]) -> dict[str, object]:
    return {
        "model": pool.model,
        "pool": pool.name,
        "policy": pool.policy,
        "max_total_tokens": pool.max_total_tokens,
        "finds_workers": pool.finds_workers,
        "workers": [_worker_state(scene, worker, arrays) for worker in pool.workers],
    }


def _worker_state(scene: _Scene, worker: Worker, arrays: Sequence[Sequence[float]]) -> dict[str, object]:
    base = scene.layout.worker_base(worker.index)

    def said(name: str) -> int | None:
        figure = scene.control[base + slot(name)]
        return None if isnan(figure) else int(figure)

    up = said("ridgeline_worker_up")
    condition, left_out_by = condition_of(scene.layout, worker, arrays)
    return {
        "worker": worker.name,
        "url": worker.url,
        "source": worker.source,
        "is_draining": worker.is_draining,
        "is_up": None if up is None else bool(up),
        "condition": _CONDITIONS[condition] if up != 0 else "down",
        "left_out_by_processes": left_out_by,
        "in_flight_requests": sum(int(array[base + slot("ridgeline_in_flight_requests")]) for array in arrays),
        "running_requests": said("ridgeline_worker_running_requests"),
        "waiting_requests": said("ridgeline_worker_waiting_requests"),
        "kv_usage_ratio": scene.control[base + slot("ridgeline_worker_kv_usage_ratio")],  # NaN becomes null
        "scrape_failures": said("ridgeline_scrape_failures_total"),
        "restarts": said("ridgeline_worker_restarts_total"),
    }


def condition_of(layout: Layout, worker: Worker, arrays: Sequence[Sequence[float]]) -> tuple[Condition, int]:
    """What the serving processes make of a worker, the worst of it, and how many of them leave it out."""
    base = layout.worker_base(worker.index)
    said = [array[base + slot("ridgeline_worker_condition")] for array in arrays]
    left_out = [condition for condition in said if condition in EJECTED]
    if left_out:
        return Condition(int(max(left_out))), len(left_out)
    return Condition.SLOW_START if Condition.SLOW_START in said else Condition.WELL, 0
