"""Runs what finds workers, a source for each pool that has one, and puts what they find in force, at most once a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import nan
from operator import is_
from pathlib import Path
from time import monotonic

from proxy.config.found import SOURCES, FoundWorkersConfig, split_nameserver
from proxy.config.pools import stage_name
from proxy.config.settings import Config
from proxy.control.fleet import Fleet
from proxy.control.view import GatewayView
from proxy.discovery.dns import DnsSource
from proxy.discovery.file import FileSource
from proxy.discovery.found import Found, FoundWorker, PoolName
from proxy.discovery.kubernetes import KubernetesSource
from proxy.discovery.members import Members
from proxy.discovery.source import Listener, Source
from telemetry.layout import Layout, slot

_log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
"""Least time between two sets put in force: a restart of hundreds of workers is a few changes, not hundreds."""
FIRST_SECONDS = 3.0
"""How long the start waits for the first answers; then the gateway serves with what there is, and is not ready yet."""
_CHANGES = {source: slot("ridgeline_discovery_changes_total", source=source) for source in SOURCES}
_FAILURES = {source: slot("ridgeline_discovery_failures_total", source=source) for source in _CHANGES}
_WORKERS = slot("ridgeline_discovered_workers")


def source_of(settings: FoundWorkersConfig, folder: Path, *, has_known: bool = False) -> Source:
    """What these settings say; relative paths begin at ``folder``. ``has_known``: workers are in force from before."""
    if settings.file is not None:
        return FileSource(folder / settings.file)
    if settings.kubernetes is not None:
        return KubernetesSource.of(settings.kubernetes, scheme=settings.scheme)
    nameserver = None if settings.nameserver is None else split_nameserver(settings.nameserver)
    if settings.srv is not None:
        return DnsSource(settings.srv, ("SRV",), nameserver=nameserver, scheme=settings.scheme, has_known=has_known)
    assert settings.dns is not None
    kinds = {"all": ("A", "AAAA"), "ipv4": ("A",), "ipv6": ("AAAA",)}[settings.family]
    return DnsSource(settings.dns, kinds, settings.port, nameserver, scheme=settings.scheme, has_known=has_known)


@dataclass(slots=True)
class _Search:
    """One pool's source at work."""

    settings: FoundWorkersConfig
    members: Members
    task: asyncio.Task[None] | None = None
    has_answered: bool = False
    told: str | None = None  # the failure that was told last, while it lasts
    failures: int = 0  # not counted in the cells yet
    has_told_empty: bool = False

    @property
    def source(self) -> str:
        return self.settings.source


class Finder:
    """One per control process. `follow` it with the configuration, let it `run`, and `close` it."""

    def __init__(self, folder: Path, kept: Found, *, start: Callable[..., Source] = source_of) -> None:
        self._folder = folder
        self._start = start
        self._searches: dict[PoolName, _Search] = {}
        self._kept = kept
        self._news = asyncio.Event()
        self._counted: tuple[object, ...] = ()  # what the figures are of

    def __repr__(self) -> str:
        return f"<Finder {len(self._searches)} pools>"

    @property
    def is_settled(self) -> bool:
        """Whether every pool has been looked up once, or is known from before."""
        return all(search.has_answered for search in self._searches.values())

    @property
    def found(self) -> Found:
        """What is to be in force now."""
        return Found(pools={which: search.members.in_force for which, search in self._searches.items() if search.has_answered})

    def follow(self, config: Config, found: Found | None = None) -> None:
        """Look for what this configuration says; ``found`` is what is in force. Searches whose settings are the same go on."""
        found = self._kept if found is None else found
        before, self._searches = self._searches, {}
        for which, settings in _settings_of(config).items():
            search = before.get(which)
            if search is not None and search.settings.model_copy(update={"drain_seconds": settings.drain_seconds}) == settings:
                search.settings = settings
                self._searches[which] = before.pop(which)
                continue
            members = search.members if search is not None else Members.going_on(found.pools.get(which, ()), monotonic())
            is_known = which in found.pools
            self._searches[which] = search = _Search(settings, members, has_answered=is_known)
            search.task = asyncio.create_task(self._run(which, search))
        for gone in before.values():
            if gone.task is not None:
                gone.task.cancel()

    async def first(self, seconds: float = FIRST_SECONDS) -> None:
        """Wait until every pool has been looked up, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.is_settled:
                    self._news.clear()
                    await self._news.wait()

    async def run(self, fleet: Fleet, view: GatewayView) -> None:
        """Put in force what is found until cancelled."""
        self.count(fleet)
        is_failing = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_SECONDS):
                    await self._news.wait()
            self._news.clear()
            try:
                needs_rest = self.put_in_force(fleet, view)
            except OSError as error:
                if not is_failing:  # told once, and tried until it goes well
                    _log.warning("what was found could not be put in force: %s", error.strerror)
                needs_rest = is_failing = True
            else:
                is_failing = False
            if needs_rest:
                await asyncio.sleep(PERIOD_SECONDS)

    def put_in_force(self, fleet: Fleet, view: GatewayView) -> bool:
        """Put in force what is found, if it is another set than the one in force; whether it was.

        Raises OSError; then nothing has changed.
        """
        now = monotonic()
        if any(search.members.leaving for search in self._searches.values()):
            busy = view.busy()
            for which, search in self._searches.items():
                search.members = search.members.settled(
                    lambda worker, which=which: (*which, worker.url.url) in busy,  # type: ignore[misc]
                    search.settings.drain_seconds,
                    now,
                )
        found, before, was_settled = self.found, fleet.found, fleet.configured.is_settled
        is_news = found.pools != before.pools or (self.is_settled and not was_settled)
        if is_news:
            fleet.discovered(found, is_settled=self.is_settled or was_settled)
            for which, workers in found.pools.items():
                if workers != before.pools.get(which):
                    self._tell_change(which, before.pools.get(which, ()), workers)
                    fleet.cells.values[_CHANGES[self._searches[which].source]] += 1
        self.count(fleet)
        return is_news

    def count(self, fleet: Fleet) -> None:
        """Bring the figures up to date."""
        values = fleet.cells.values
        for search in self._searches.values():
            values[_FAILURES[search.source]] += search.failures
            search.failures = 0
        state = (fleet.topology, *(search.members for search in self._searches.values()))
        if len(state) == len(self._counted) and all(map(is_, state, self._counted)):
            return
        self._counted = state
        layout = Layout.of(fleet.topology)
        for pool in fleet.topology.pools:
            one = self._searches.get((pool.model, pool.name))
            is_known = one is not None and one.has_answered
            figure = sum(not worker.is_draining for worker in one.members.present) if one and is_known else nan
            values[layout.pool_base(pool.index) + _WORKERS] = figure

    async def _run(self, which: PoolName, search: _Search) -> None:
        def found(workers: tuple[FoundWorker, ...]) -> None:
            if search.told is not None and workers:
                _log.info("workers of %s/%s are found by %s again", *which, search.source)
                search.told = None
            if not workers and not search.has_told_empty:
                _log.warning("%s finds no workers for %s/%s: requests are refused", search.source, *which)
            search.has_told_empty = not workers
            members = search.members.after(workers, monotonic())
            if members != search.members or not search.has_answered:
                search.members = members
                search.has_answered = True
                self._news.set()

        def failed(text: str) -> None:
            search.failures += 1
            if text != search.told:
                _log.warning("workers of %s/%s, by %s: %s", *which, search.source, text)
                search.told = text

        while True:
            try:
                source = self._start(search.settings, self._folder, has_known=bool(search.members.present))
                await source.run(Listener(found, failed))
            except Exception:
                _log.exception("looking for workers of %s/%s failed", *which)
                search.failures += 1
                await asyncio.sleep(5 * PERIOD_SECONDS)

    def _tell_change(self, which: PoolName, before: tuple[FoundWorker, ...], after: tuple[FoundWorker, ...]) -> None:
        old = {worker.name for worker in before if not worker.is_draining}
        new = {worker.name for worker in after if not worker.is_draining}
        if old != new:
            _log.info(
                "%s/%s has %d workers by %s: %d new, %d leaving",
                *which,
                len(new),
                self._searches[which].source,
                len(new - old),
                len(old - new),
            )

    async def close(self) -> None:
        """End all searches."""
        tasks = [search.task for search in self._searches.values() if search.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _settings_of(config: Config) -> Mapping[PoolName, FoundWorkersConfig]:
    found: dict[PoolName, FoundWorkersConfig] = {}
    for model in config.models:
        for pool in model.pools_in_force:
            if pool.finds_workers is not None:
                found[model.name, pool.name] = pool.finds_workers
            if pool.prefill is not None and pool.prefill.finds_workers is not None:
                found[model.name, stage_name(pool.name)] = pool.prefill.finds_workers
    return found
