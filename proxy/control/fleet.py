"""The topology in force, in the control process: what is configured, found and changed by hand, its cells, its probes.

`adopt` puts another one in force: cells first, then what is shown, then what serving processes are told, then the probes.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

from aiohttp import ClientSession

from proxy.control.overlay import Overlay, keep_overlay
from proxy.control.probe import WorkerCells, WorkerProbe
from proxy.control.view import GatewayView
from proxy.discovery.found import Found, keep_found
from proxy.published import publish
from proxy.rundir import CONTROL_CELLS
from proxy.tls import WorkerContexts
from routing.topology import Pool, Topology, Worker, WorkerTls
from telemetry.catalog import Writer
from telemetry.cells import Cells, create_cells
from telemetry.layout import Layout, slot

# What probes find out of a worker.
_SAID = tuple(slot(f"ridgeline_worker_{name}") for name in ("up", "running_requests", "waiting_requests", "kv_usage_ratio"))
_FIRST_PROBES_SECONDS = 2.0  # over which the first probes of a large fleet are spread


@dataclass(slots=True)
class _Probing:
    probe: WorkerProbe
    task: asyncio.Task[None]


def open_control_cells(run_dir: Path, topology: Topology) -> Cells:
    """This process's cells. Unknown gauges are NaN from the moment the file appears, since 0 would mean *down*.

    Left by an earlier control process, counters go on, and its last verdicts stand until the first probes.
    """
    return create_cells(run_dir / CONTROL_CELLS, Layout.of(topology), Writer.CONTROL)


class Fleet:
    """One per control process, to be closed. `cells` and `topology` are those in force."""

    def __init__(
        self,
        configured: Topology,
        overlay: Overlay,
        cells: Cells,
        run_dir: Path,
        view: GatewayView,
        session: ClientSession,
        found: Found | None = None,
    ) -> None:
        self._found = found or Found()
        self.worker_contexts = WorkerContexts()
        self.topology = overlay.over(self._found.over(configured))
        self.cells = cells  # laid out for that topology
        self._configured = configured
        self._overlay = overlay
        self._run_dir = run_dir
        self._view = view
        self._session = session
        self._probing: dict[tuple[str, str, str | None, str, WorkerTls], _Probing] = {}  # by name, and how it is asked
        keep_found(run_dir, self._found)
        publish(run_dir, self.topology)
        self._probe_workers()

    def __repr__(self) -> str:
        return f"<Fleet {len(self.topology.workers)} workers, {self._overlay}>"

    @property
    def overlay(self) -> Overlay:
        """The changes made by hand that are in force."""
        return self._overlay

    @property
    def configured(self) -> Topology:
        """What the file says."""
        return self._configured

    @property
    def found(self) -> Found:
        """The workers that were found and are in force."""
        return self._found

    @property
    def base(self) -> Topology:
        """What the file says, with what was found: changes by hand lie over it."""
        return self._found.over(self._configured)

    def kv_tokens(self) -> dict[str, float]:
        """How many tokens the KV caches of workers hold, by name, as far as they have said it themselves."""
        return {name: each.probe.kv_tokens for (name, *_), each in self._probing.items() if each.probe.kv_tokens}

    def engine_versions(self) -> dict[str, str]:
        """The version of vLLM that workers run, by name, as far as they have said it themselves."""
        return {name: each.probe.engine_version for (name, *_), each in self._probing.items() if each.probe.engine_version}

    def engine_runs(self) -> dict[str, tuple[str, float | None]]:
        """The version of vLLM that workers run and when their processes began (Unix seconds, None if not told), by name."""
        return {
            name: (each.probe.engine_version, each.probe.started_unix_seconds)
            for (name, *_), each in self._probing.items()
            if each.probe.engine_version
        }

    def others(self) -> dict[str, float]:
        """How many requests of others workers have, by name, as their gauges said last; without those that did not."""
        return {name: each.probe.others for (name, *_), each in self._probing.items() if each.probe.others is not None}

    def reload(self, configured: Topology) -> None:
        """Put another configuration in force, changes made by hand over it. Raises OSError; nothing has changed then."""
        configured = replace(configured, is_settled=self._configured.is_settled)
        self._adopt(configured, self._overlay, self._found.under(configured, self._configured))

    def change(self, overlay: Overlay) -> None:
        """Put other changes in force. Raises OSError; nothing has changed then."""
        self._adopt(self._configured, overlay, self._found)

    def discovered(self, found: Found, *, is_settled: bool = True) -> None:
        """Put in force what was found; ``is_settled`` once all were looked up. Raises OSError; nothing has changed then."""
        self._adopt(replace(self._configured, is_settled=is_settled), self._overlay, found)

    def _adopt(self, configured: Topology, overlay: Overlay, found: Found) -> None:
        topology = overlay.over(found.over(configured))
        layout = Layout.of(topology)
        path = self._run_dir / CONTROL_CELLS
        cells = self.cells
        is_new = layout.digest != Layout.of(self.topology).digest
        keep_overlay(self._run_dir, overlay)
        try:
            if found is not self._found:
                keep_found(self._run_dir, found)
            if is_new:  # beside the old one, which stays until nothing can fail any more
                staged = path.with_name(f"{path.name}.next")
                staged.unlink(missing_ok=True)
                cells = create_cells(staged, layout, Writer.CONTROL, heir_of=path)
            self._view.freeze_for(topology)
            publish(self._run_dir, topology)
        except OSError:
            self._view.thaw()
            keep_overlay(self._run_dir, self._overlay)
            with suppress(OSError):  # the next thing found keeps what is right
                keep_found(self._run_dir, self._found)
            raise
        if is_new:
            staged.replace(path)
        self._view.adopt(topology, cells.values)
        self._configured, self._overlay, self._found = configured, overlay, found
        self.topology, self.cells = topology, cells
        self._probe_workers()

    def _probe_workers(self) -> None:
        """One probe for each worker there is: new ones begin, those of removed workers end, the others go on.

        What nobody names any more is as good as removed: nothing is known of it, and that it does not answer is no news.
        """
        layout = Layout.of(self.topology)
        vanished = self._found.gone
        before, self._probing = self._probing, {}
        spread = min(_FIRST_PROBES_SECONDS, 0.002 * len(self.topology.workers))
        for pool in self.topology.pools:
            for worker in pool.workers:
                which = (worker.name, worker.url, pool.worker_key, pool.health_path, pool.worker_tls)
                if vanished and (pool.model, pool.name, worker.url) in vanished:
                    for cell in _SAID:
                        self.cells.values[layout.worker_base(worker.index) + cell] = nan
                    continue
                cells = WorkerCells(self.cells.values, layout, worker)
                kept = before.pop(which, None)
                if kept is not None:
                    kept.probe.write_to(cells)
                    self._probing[which] = kept
                else:
                    self._probing[which] = self._begin(worker, cells, pool, spread)
        for gone in before.values():
            gone.task.cancel()

    def _begin(self, worker: Worker, cells: WorkerCells, pool: Pool, spread_seconds: float) -> _Probing:
        contexts, tls = self.worker_contexts, pool.worker_tls
        probe = WorkerProbe(
            worker,
            session=self._session,
            cells=cells,
            worker_key=pool.worker_key,
            health_path=pool.health_path,
            tls=(lambda: contexts.find(tls)) if worker.is_tls else None,
            server_name=tls.server_name if worker.is_tls else None,
            read_own=lambda: self._view.in_flight_reader()(worker.name)[0],
        )
        delay = random.uniform(0.0, spread_seconds)  # noqa: S311 -- jitter
        return _Probing(probe, asyncio.create_task(probe.run(delay)))

    async def close(self) -> None:
        """End all probes."""
        tasks = [each.task for each in self._probing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
