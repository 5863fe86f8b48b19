"""Topologies for the tests of layout, cells and exposition."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routing.quota import Quota, QuotaSharing
from routing.topology import Hedging, Key, Model, Pool, Topology, Worker

HEDGED = Hedging(after_seconds=1.0)
UNLIMITED = Quota()


def _topology(
    pools: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("llama", "short", ("w-0", "w-1")),
        ("llama", "long", ("w-2",)),
        ("qwen", "default", ("w-3",)),
    ),
    keys: tuple[str, ...] = ("app-a", "app-b"),
    quota: Quota | None = UNLIMITED,
    hedging: Hedging = HEDGED,
) -> Topology:
    """A topology from (model, pool, worker names) in order."""
    made: list[Pool] = []
    workers: list[Worker] = []
    for model, name, names in pools:
        mine = tuple(
            Worker(
                index=len(workers) + at,
                name=worker,
                url="http://127.0.0.1:8000",
                host="127.0.0.1",
                port=8000,
                base_path="",
                authority="127.0.0.1:8000",
            )
            for at, worker in enumerate(names)
        )
        workers += mine
        made.append(Pool(index=len(made), model=model, name=name, workers=mine, hedging=hedging))
    models = tuple(
        Model(index=index, name=model, aliases=(), pools=tuple(pool for pool in made if pool.model == model))
        for index, model in enumerate(dict.fromkeys(pool.model for pool in made))
    )
    return Topology(
        models=models,
        pools=tuple(made),
        workers=tuple(workers),
        keys=tuple(Key(index=index, name=name, sha256=bytes(32), quota=quota) for index, name in enumerate(keys)),
        quota_sharing=None if quota is None else QuotaSharing(),
    )


@pytest.fixture(scope="session")
def a_topology() -> Callable[..., Topology]:
    return _topology
