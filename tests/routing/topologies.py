"""Small topologies for the tests of routing and of what routes by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from routing.topology import Key, Model, Pool, Topology, Worker


def a_worker(index: int) -> Worker:
    return Worker(
        index=index,
        name=f"w-{index}",
        url="http://127.0.0.1:8000",
        host="127.0.0.1",
        port=8000,
        base_path="",
        authority="127.0.0.1:8000",
    )


def a_pool(*workers: int, name: str = "default", upto: int | None = None, policy: str = "least-load", **others: Any) -> Pool:
    return Pool(
        index=0, model="m", name=name, workers=tuple(map(a_worker, workers)), policy=policy, max_total_tokens=upto, **others
    )


def a_model(*pools: Pool, name: str = "m", aliases: tuple[str, ...] = ()) -> Model:
    return Model(index=0, name=name, aliases=aliases, pools=pools)


def a_topology(*models: Model, keys: tuple[Key, ...] = ()) -> Topology:
    """The models with their pools numbered through; workers have to be numbered already."""
    pools: list[Pool] = []
    numbered = []
    for index, model in enumerate(models):
        own = tuple(replace(pool, index=len(pools) + at, model=model.name) for at, pool in enumerate(model.pools))
        pools += own
        numbered.append(replace(model, index=index, pools=own))
    return Topology(
        models=tuple(numbered),
        pools=tuple(pools),
        workers=tuple(worker for pool in pools for worker in pool.workers),
        keys=keys,
    )
