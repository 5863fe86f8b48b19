"""Fleets for the tests of the control process, as a configuration file would describe them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from proxy.config.settings import Config, parse_config
from proxy.config.wiring import build_topology
from proxy.config.worker_url import parse_worker_url
from proxy.control.fleet import Fleet, open_control_cells
from proxy.control.overlay import AddedWorker, Overlay
from proxy.control.probe import open_session
from proxy.control.view import GatewayView
from proxy.discovery.found import Found
from routing.policy import Decision, PoolReason, Reason
from routing.topology import Topology

Pools = Mapping[str, Sequence[str]]  # names of workers by name of pool


def url_of(worker: str) -> str:
    """Where a worker ``w-N`` is: nobody listens there, and a connection is refused at once."""
    return f"http://127.0.0.1:{int(worker.removeprefix('w-')) + 1}"


def a_file(pools: Pools, *, key: str | None = None, keys: Sequence[str] = (), **settings: Any) -> str:
    """The text of a configuration with one model ``m``; ``key`` is the workers' key, ``keys`` are names of API keys."""
    described = [
        {"name": pool, "workers": [{"name": name, "url": url_of(name)} for name in names], "max_total_tokens": 1000 * (at + 1)}
        for at, (pool, names) in enumerate(pools.items())
    ]
    whole: dict[str, Any] = {"models": [{"name": "m", "pools": described}], **settings}
    if key is not None:
        whole["worker_key"] = key
    if keys:
        whole["keys"] = [{"name": name, "sha256": f"{at + 1:064x}"} for at, name in enumerate(keys)]
    return yaml.safe_dump(whole)


def a_config(pools: Pools, **settings: Any) -> Config:
    return parse_config(a_file(pools, **settings), {}, "test")


def a_topology(pools: Pools, **settings: Any) -> Topology:
    return build_topology(a_config(pools, **settings))


def an_addition(name: str, url: str | None = None, pool: str = "default") -> AddedWorker:
    return AddedWorker(model="m", pool=pool, name=name, url=parse_worker_url(url or url_of(name)))


def names(topology: Topology, pool: str = "default") -> list[str]:
    """The workers of a pool in their order."""
    return [worker.name for each in topology.pools if each.name == pool for worker in each.workers]


def a_decision(topology: Topology, name: str) -> Decision:
    """A request goes to the worker of this name."""
    pool, worker = next((pool, worker) for pool in topology.pools for worker in pool.workers if worker.name == name)
    return Decision(pool, worker, PoolReason.CONTEXT_LENGTH, pool.policy, Reason.LEAST_LOAD)


@asynccontextmanager
async def running_fleet(
    run_dir: Path, configured: Topology, overlay: Overlay | None = None, found: Found | None = None
) -> AsyncIterator[Fleet]:
    """A fleet as the control process makes it."""
    overlay, found = overlay or Overlay(), found or Found()
    topology = overlay.over(found.over(configured))
    cells = open_control_cells(run_dir, topology)
    view = GatewayView(
        version="1", run_dir=run_dir, processes=1, topology=topology, control=cells.values, log_dropped=lambda: 0
    )
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        fleet = Fleet(configured, overlay, cells, run_dir, view, session, found)
        stack.push_async_callback(fleet.close)
        yield fleet


async def eventually(holds: Callable[[], bool], timeout_seconds: float = 5.0) -> None:
    """Let the loop run until it holds. TimeoutError if it never does."""
    async with asyncio.timeout(timeout_seconds):
        while True:
            if holds():
                return
            await asyncio.sleep(0)
