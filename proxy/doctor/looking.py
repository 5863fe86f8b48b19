"""Looking at workers, a gateway that runs and this machine: asks everything at the same time and within bounds.

All of it ends in about ten seconds whatever hangs. Keys go to the workers they are meant for and nowhere else.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import aiohttp

from proxy.config.checks import LISTENERS, warnings_of
from proxy.config.settings import Config
from proxy.config.wiring import build_topology, gpu_source
from proxy.config.worker_url import ListenAddress, parse_listen_address, parse_worker_url
from proxy.doctor.asking import ask, in_thread, open_session
from proxy.doctor.observations import (
    Failure,
    GatewaySeen,
    GpusAsked,
    ListenerSeen,
    Observations,
    Reply,
    Target,
    WorkerSeen,
    read_state,
    targets_of,
)
from proxy.listener import open_listener
from proxy.supervisor import CONTROL_END_SECONDS, KILL_MARGIN_SECONDS
from proxy.tls import WorkerContexts
from routing.topology import Pool, WorkerTls

_TLS_OF = {"listen": "tls", "observe_listen": "observe_tls", "admin_listen": "admin_tls"}
_AT_ONCE = 64  # workers, each with up to five connections


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long is waited, in seconds."""

    first: float = 2.0  # for the gateway, and for a worker's health
    page: float = 3.0  # for each other page of a worker
    completion: float = 5.0  # for one token, when asked for
    all_workers: float = 7.5


async def observe(
    config: Config | None,
    *,
    wants_completion: bool = False,
    patience: Patience | None = None,
    token: str | None = None,
    folder: Path | None = None,
) -> Observations:
    """Look at everything; the admin listener is sent this token, and the file lies in ``folder``.

    The file limit is that of this process, which is the gateway's when started from the same place.
    """
    patience = patience or Patience()
    addresses = {name: parse_listen_address(getattr(config, name) if config else LISTENERS[name]) for name in LISTENERS}
    unseen: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    async with open_session() as session:
        look = _Look(session, patience, _trust(config, folder or Path()), wants_completion=wants_completion)
        secure = set() if config is None else {name for name, tls in _TLS_OF.items() if getattr(config, tls) is not None}
        asking = asyncio.create_task(look.at_gateway(addresses, token, secure))
        keys, targets = _configured(config) if config else ({}, ())
        if config is None and (state := read_state((await asking).state)):
            targets = targets_of(state)
        found: tuple[Target, ...] = ()
        if config is not None and (searched := _searched(config)):
            state = read_state((await asking).state)
            found = _found_targets(searched, targets_of(state, with_draining=False) if state else ())
            names = {where: f"{where[0]}/{where[1]}" for where in searched}
            unseen = tuple(names.values()) if state is None else ()
            empty = () if state is None else tuple(set(names.values()) - {f"{one.model}/{one.pool}" for one in found})
        targets = (*targets, *found) if config is None else with_gpus(config, (*targets, *found))
        workers = await look.at_workers(targets, keys)
        gateway = await asking
    listeners: tuple[ListenerSeen, ...] = ()
    if config is not None and not gateway.is_running:
        tried = (_try_listener(name, address, patience.first) for name, address in addresses.items())
        listeners = tuple(await asyncio.gather(*tried))
    _, file_limit = resource.getrlimit(resource.RLIMIT_NOFILE)  # the hard one: the supervisor raises its own to it
    return Observations(
        workers=workers,
        gateway=gateway,
        listeners=listeners,
        has_configuration=config is not None,
        unseen_pools=unseen,
        empty_pools=tuple(sorted(empty)),
        warnings=warnings_of(config) if config else (),
        file_limit=file_limit if file_limit != resource.RLIM_INFINITY else sys.maxsize,
        drain_seconds=config.limits.drain_seconds if config else None,
        ending_seconds=KILL_MARGIN_SECONDS + CONTROL_END_SECONDS,
    )


def _trust(config: Config | None, folder: Path) -> dict[str, WorkerTls]:
    """How workers with an https URL are trusted, by their name."""
    topology = None if config is None else build_topology(config, folder)
    return {} if topology is None else {worker.name: pool.worker_tls for pool in topology.pools for worker in pool.workers}


def _configured(config: Config) -> tuple[dict[str, str], tuple[Target, ...]]:
    """The workers' keys by worker, and the workers to look at."""
    topology = build_topology(config)
    keys = {worker.name: pool.worker_key for pool in topology.pools for worker in pool.workers if pool.worker_key}
    return keys, tuple(
        Target(
            worker=worker.name,
            url=worker.url,
            model=model.name,
            aliases=model.aliases,
            pool=pool.name,
            max_total_tokens=pool.max_total_tokens,
            has_key=worker.name in keys,
            health_path=pool.health_path,
        )
        for model in topology.models
        for pool in (*model.pools, *model.stages)
        for worker in pool.workers
    )


def with_gpus(config: Config, targets: Iterable[Target]) -> tuple[Target, ...]:
    """The same with where their GPUs are told of, as far as that is configured."""
    pools = {(model.name, pool.name): pool for model in config.models for pool in model.pools_in_force}
    made = []
    for target in targets:
        pool = pools.get((target.model, target.pool))
        source = None if pool is None else gpu_source(pool, target.worker, parse_worker_url(target.url).host)
        asked = None
        if pool is not None and source is not None:
            asked = GpusAsked(url=source.url, labels=source.labels, gpus_per_worker=pool.gpus_per_worker)
        made.append(replace(target, gpus=asked))
    return tuple(made)


def _searched(config: Config) -> dict[tuple[str, str], tuple[tuple[str, ...], Pool]]:
    """Pools whose workers are found, by model and name: the model's aliases, and the pool. What finds them is not asked."""
    topology = build_topology(config)
    return {
        (model.name, pool.name): (model.aliases, pool)
        for model in topology.models
        for pool in (*model.pools, *model.stages)
        if pool.finds_workers
    }


def _found_targets(
    searched: Mapping[tuple[str, str], tuple[tuple[str, ...], Pool]], running: Iterable[Target]
) -> tuple[Target, ...]:
    """The workers that a running gateway has found. No key is sent where only its state says that a worker is."""
    return tuple(
        replace(
            target,
            aliases=searched[where][0],
            has_key=None if searched[where][1].worker_key else False,
            health_path=searched[where][1].health_path,
        )
        for target in running
        if (where := (target.model, target.pool)) in searched
    )


class _Look:
    def __init__(
        self, session: aiohttp.ClientSession, patience: Patience, trust: Mapping[str, WorkerTls], *, wants_completion: bool
    ) -> None:
        self._session = session
        self._trust = trust
        self._contexts = WorkerContexts()
        self._patience = patience
        self._wants_completion = wants_completion
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def at_gateway(self, addresses: Mapping[str, ListenAddress], token: str | None, secure: set[str]) -> GatewaySeen:
        pages = {"listen": "/livez", "observe_listen": "/readyz", "admin_listen": "/api/state"}
        asked = (
            ask(
                self._session,
                f"{'https' if name in secure else 'http'}://{_reachable(addresses[name])}{page}",
                self._patience.first,
                key=token if name == "admin_listen" else None,
                tls=name not in secure,  # by its address: not what its certificate is for
            )
            for name, page in pages.items()
        )
        livez, readyz, state = await asyncio.gather(*asked)
        return GatewaySeen(livez=livez, readyz=readyz, state=state)

    async def at_workers(self, targets: Iterable[Target], keys: Mapping[str, str]) -> tuple[WorkerSeen, ...]:
        """Look at all of them; those that there is no time for have nothing but `Failure.NOT_ASKED`."""
        tasks = {asyncio.create_task(self._at_worker(target, keys.get(target.worker))): target for target in targets}
        if not tasks:
            return ()
        _, late = await asyncio.wait(tasks, timeout=self._patience.all_workers)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return tuple(WorkerSeen(target=target) if task.cancelled() else task.result() for task, target in tasks.items())

    async def _at_worker(self, target: Target, key: str | None) -> WorkerSeen:
        async with self._room:
            seen, gpus = await asyncio.gather(self._at_its_pages(target, key), self._at_its_gpus(target))
            return replace(seen, gpus=gpus)

    async def _at_its_gpus(self, target: Target) -> Reply:
        return Failure.NOT_ASKED if target.gpus is None else await ask(self._session, target.gpus.url, self._patience.page)

    async def _at_its_pages(self, target: Target, key: str | None) -> WorkerSeen:
        ask_it = partial(ask, self._session, key=key)
        if target.url.startswith("https:"):
            trust = self._trust.get(target.worker, WorkerTls())
            try:
                ask_it = partial(ask_it, tls=self._contexts.find(trust), server_name=trust.server_name)
            except OSError:
                return WorkerSeen(target=target, health=Failure.UNTRUSTED)
        health = await ask_it(f"{target.url}{target.health_path}", self._patience.first)
        if isinstance(health, Failure):
            return WorkerSeen(target=target, health=health)
        paths = ("/version", "/v1/models", "/metrics")
        questions = [ask_it(f"{target.url}{path}", self._patience.page) for path in paths]
        if self._wants_completion:
            body = {"model": target.model, "prompt": "Hello", "max_tokens": 1}
            questions.append(ask_it(f"{target.url}/v1/completions", self._patience.completion, body=body))
        version, models, metrics, *completion = await asyncio.gather(*questions)
        return WorkerSeen(
            target=target,
            health=health,
            version=version,
            models=models,
            metrics=metrics,
            completion=completion[0] if completion else None,
        )


def _reachable(address: ListenAddress) -> str:
    """HOST:PORT that a listener on this address answers on, from here."""
    return str(replace(address, host={"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)))  # noqa: S104 -- not bound


async def _try_listener(setting: str, address: ListenAddress, seconds: float) -> ListenerSeen:
    """Have a listener for a moment."""
    try:
        async with asyncio.timeout(seconds):
            await in_thread(lambda: open_listener(str(address)).close())
    except TimeoutError:
        return ListenerSeen(setting=setting, address=str(address), fault="its host name is not known in time")
    except OSError as error:
        fault = error.strerror or "it cannot be had"
        return ListenerSeen(setting=setting, address=str(address), fault=fault, is_in_use=error.errno == errno.EADDRINUSE)
    return ListenerSeen(setting=setting, address=str(address))
