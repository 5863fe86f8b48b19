"""What has been found for each pool, as values, and how it goes into the topology.

Pure but for the two functions at the end, which keep it for a control process that is started again: whatever cannot be asked
then, the workers that were known last stay in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from proxy.config.errors import RefusedError
from proxy.config.values import MAX_NAME_LENGTH, check_name
from proxy.config.worker_url import WorkerUrl
from routing.topology import Model, Pool, Topology, Worker

MAX_WORKERS = 2000
"""Most workers that one pool may be given by what finds them."""

PoolName = tuple[str, str]
"""Model and pool."""


class SourceError(Exception):
    """Nothing can be learned from a source now, so what was known stays; the text says why, for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWorker:
    """A worker that was found. Names and addresses are unique within the pool, as `checked` sees to."""

    name: str
    url: WorkerUrl
    is_draining: bool = False  # on its way out: what it has goes on, new requests do not go there
    is_gone: bool = False  # draining because nobody names it any more
    source: str = "config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """All that is found and in force, by model and pool. A pool that is absent has never been looked up."""

    pools: Mapping[PoolName, tuple[FoundWorker, ...]] = field(default_factory=dict)

    def over(self, configured: Topology) -> Topology:
        """The configured topology with the workers that were found, indices counted anew."""
        if not any(pool.finds_workers for pool in configured.pools):
            return configured
        taken = {worker.name for worker in configured.workers}
        models: list[Model] = []
        first = 0
        for model in configured.models:
            pools: list[Pool] = []
            for pool in (*model.pools, *model.stages):
                workers = (
                    _workers(pool, self.pools.get((pool.model, pool.name), ()), taken) if pool.finds_workers else pool.workers
                )
                placed = tuple(replace(worker, index=index) for index, worker in enumerate(workers, start=first))
                first += len(placed)
                pools.append(replace(pool, workers=placed))
            models.append(replace(model, pools=tuple(pools[: len(model.pools)]), stages=tuple(pools[len(model.pools) :])))
        return configured.with_models(tuple(models))

    @property
    def gone(self) -> frozenset[tuple[str, str, str]]:
        """Model, pool and URL of those that nobody names any more."""
        return frozenset(
            (*pool, worker.url.url) for pool, workers in self.pools.items() for worker in workers if worker.is_gone
        )

    def given(self, pool: PoolName, workers: tuple[FoundWorker, ...]) -> Found:
        """The same with these workers of one pool."""
        return Found(pools={**self.pools, pool: workers})

    def under(self, configured: Topology, before: Topology) -> Found:
        """What a reload goes on with: pools that find workers keep theirs; one that had a list keeps it until more is known."""
        kept: dict[PoolName, tuple[FoundWorker, ...]] = {}
        listed = {(pool.model, pool.name): pool for pool in before.pools if not pool.finds_workers}
        for pool in configured.pools:
            which = (pool.model, pool.name)
            if not pool.finds_workers:
                continue
            if which in self.pools:
                kept[which] = self.pools[which]
            elif which in listed:
                kept[which] = tuple(_as_found(worker) for worker in listed[which].workers)
        return Found(pools=kept)


def checked(workers: Iterable[FoundWorker]) -> tuple[FoundWorker, ...]:
    """One of each name and address, in the order of names. The first of two is kept; raises `SourceError` for too many.

    Whoever calls puts first what is to be preferred.
    """
    names: dict[str, FoundWorker] = {}
    urls: set[WorkerUrl] = set()
    for worker in workers:
        if worker.name in names or worker.url in urls:
            continue
        try:
            check_name(worker.name)
        except RefusedError as error:
            raise SourceError(f"a worker cannot be called {worker.name[:MAX_NAME_LENGTH]!r}: {error.wrong}") from None
        names[worker.name] = worker
        urls.add(worker.url)
    if len(names) > MAX_WORKERS:
        raise SourceError(f"there are {len(names):,} workers, more than {MAX_WORKERS:,}")
    return tuple(names[name] for name in sorted(names))


def _workers(pool: Pool, found: tuple[FoundWorker, ...], taken: set[str]) -> list[Worker]:
    """The workers of a pool; ``taken`` are names that are given already, and grows."""
    workers: list[Worker] = []
    for each in found:
        name = each.name
        if name in taken:  # a server of two pools: the second one's figures go under another name
            name = f"{name}@{pool.model}/{pool.name}"
        if name in taken:
            continue
        taken.add(name)
        workers.append(worker_at(each.url, name, each.source, is_draining=each.is_draining))
    return workers


def worker_at(url: WorkerUrl, name: str, source: str, *, is_draining: bool = False) -> Worker:
    """A worker whose place in the topology is not known yet."""
    return Worker(
        index=0,
        name=name,
        url=url.url,
        host=url.host,
        port=url.port,
        base_path=url.base_path,
        authority=url.authority,
        is_draining=is_draining,
        source=source,
    )


def _as_found(worker: Worker) -> FoundWorker:
    url = WorkerUrl(host=worker.host, port=worker.port, base_path=worker.base_path, scheme="https" if worker.is_tls else "http")
    return FoundWorker(name=worker.name, url=url, is_draining=worker.is_draining, source=worker.source)


_FILE = "found.msgpack"
_Kept = list[tuple[PoolName, tuple[FoundWorker, ...]]]


def keep_found(run_dir: Path, found: Found) -> None:
    """Keep what is in force for a control process that is started again. Raises OSError."""
    fresh = run_dir / f"{_FILE}.new"
    fresh.write_bytes(msgspec.msgpack.encode(list(found.pools.items())))
    fresh.replace(run_dir / _FILE)


def kept_found(run_dir: Path) -> Found:
    """What an earlier control process of this gateway kept; nothing if there was none."""
    with suppress(OSError, msgspec.MsgspecError):
        return Found(pools=dict(msgspec.msgpack.decode((run_dir / _FILE).read_bytes(), type=_Kept)))
    return Found()
