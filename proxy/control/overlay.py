"""Changes to the fleet that were made while it runs: workers added, drained and removed by hand.

They lie over what is configured, survive a reload as far as they still make sense and a restart of the control process, and are
gone after a restart of the gateway: the file is what lasts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from proxy.config.worker_url import WorkerUrl
from proxy.discovery.found import worker_at
from routing.topology import Model, Pool, Topology, Worker


class OverlayError(Exception):
    """A change that makes no sense now; the text says why, for the operator."""


class LastWorkerError(OverlayError):
    """A pool would be left without any worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedWorker:
    """A worker that the configuration does not name."""

    model: str
    pool: str
    name: str
    url: WorkerUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """All changes in force. Frozen: a change makes a new one, so that a refused change leaves nothing behind."""

    added: tuple[AddedWorker, ...] = ()
    draining: frozenset[str] = field(default_factory=frozenset)  # names of workers
    removed: frozenset[str] = field(default_factory=frozenset)

    def add(self, configured: Topology, worker: AddedWorker) -> Overlay:
        """One worker more. Raises `OverlayError` for an unknown pool and a name or address that is taken."""
        topology = self.over(configured)
        pool = next((pool for pool in topology.pools if (pool.model, pool.name) == (worker.model, worker.pool)), None)
        if pool is None:
            raise OverlayError(f"there is no pool {worker.pool!r} of a model {worker.model!r}")
        if any(other.name == worker.name for other in topology.workers):
            raise OverlayError(f"there is a worker {worker.name!r} already")
        if any(other.url == worker.url.url for other in pool.workers):
            raise OverlayError(f"the pool has a worker at {worker.url.url} already")
        return replace(self, added=(*self.added, worker), draining=self.draining - {worker.name})

    def drain(self, configured: Topology, name: str) -> Overlay:
        """No new requests for this worker. Raises `OverlayError` for an unknown one."""
        self._require(configured, name)
        return replace(self, draining=self.draining | {name})

    def resume(self, configured: Topology, name: str) -> Overlay:
        """New requests again. Raises `OverlayError` for an unknown worker."""
        self._require(configured, name)
        return replace(self, draining=self.draining - {name})

    def remove(self, configured: Topology, name: str) -> Overlay:
        """The worker is gone; requests it has go on. Raises `OverlayError` for an unknown one and the last of its pool."""
        self._require(configured, name)
        if any(len(pool.workers) == 1 and pool.workers[0].name == name for pool in self.over(configured).pools):
            raise LastWorkerError(f"{name!r} is the last worker of its pool; drain it instead")
        return Overlay(
            added=tuple(worker for worker in self.added if worker.name != name),
            draining=self.draining - {name},
            removed=self.removed | ({name} & {worker.name for worker in configured.workers}),
        )

    def _require(self, configured: Topology, name: str) -> None:
        if all(worker.name != name for worker in self.over(configured).workers):
            raise OverlayError(f"there is no worker {name!r}")

    def over(self, configured: Topology) -> Topology:
        """The configured topology with these changes, indices counted anew. What does not fit any more is left out."""
        if self == Overlay():
            return configured
        models: list[Model] = []
        first_worker = 0
        names = {worker.name for worker in configured.workers} - self.removed  # which what is added may not take
        for model in configured.models:
            pools: list[Pool] = []
            for pool in (*model.pools, *model.stages):
                workers = self._workers(pool, first_worker, names)
                first_worker += len(workers)
                pools.append(replace(pool, workers=workers))
            models.append(replace(model, pools=tuple(pools[: len(model.pools)]), stages=tuple(pools[len(model.pools) :])))
        return configured.with_models(tuple(models))

    def _workers(self, pool: Pool, first: int, names: set[str]) -> tuple[Worker, ...]:
        kept = [worker for worker in pool.workers if worker.name not in self.removed]
        for added in self.added:
            is_here = (added.model, added.pool) == (pool.model, pool.name) and added.name not in names
            if is_here and all(worker.url != added.url.url for worker in kept):
                kept.append(worker_at(added.url, added.name, "admin"))
        if not kept and not pool.finds_workers:
            kept = list(pool.workers)  # a reload can leave a pool with removed workers only
        return tuple(
            replace(worker, index=index, is_draining=worker.is_draining or worker.name in self.draining)
            for index, worker in enumerate(kept, start=first)
        )


_FILE = "overlay.msgpack"


def keep_overlay(run_dir: Path, overlay: Overlay) -> None:
    """Keep the changes for a control process that is started again. Raises OSError."""
    fresh = run_dir / f"{_FILE}.new"
    fresh.write_bytes(msgspec.msgpack.encode(overlay))
    fresh.replace(run_dir / _FILE)


def kept_overlay(run_dir: Path) -> Overlay:
    """The changes that an earlier control process of this gateway kept; none if there was none."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.msgpack.decode((run_dir / _FILE).read_bytes(), type=Overlay)
    return Overlay()
