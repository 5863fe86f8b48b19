"""What finds workers, one pool beside the other, and how it gets into force."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config.found import FoundWorkersConfig
from proxy.config.settings import Config, parse_config
from proxy.config.wiring import build_topology
from proxy.control.fleet import Fleet
from proxy.discovery import finder as finder_module
from proxy.discovery.dns import DnsSource
from proxy.discovery.file import FileSource
from proxy.discovery.finder import Finder, source_of
from proxy.discovery.found import Found, SourceError, kept_found
from proxy.discovery.kubernetes import KubernetesSource
from proxy.discovery.source import Listener, Source
from telemetry.layout import Layout, slot
from tests.proxy.discovery.finding import a_worker
from tests.proxy.fleets import running_fleet

M, N = ("m", "default"), ("n", "default")


class Told:
    """Sources that tell what a test says, by their name in DNS."""

    def __init__(self) -> None:
        self.listeners: dict[str, Listener] = {}
        self.started: list[str] = []
        self.has_known: dict[str, bool] = {}  # what they were told when they began
        self.ended: list[str] = []

    def start(self, settings: FoundWorkersConfig, _folder: Path, *, has_known: bool) -> Source:
        told, name = self, settings.dns or ""
        self.has_known[name] = has_known

        class One:
            async def run(self, listener: Listener) -> None:
                told.started.append(name)
                told.listeners[name] = listener
                try:
                    await asyncio.Event().wait()
                finally:
                    told.ended.append(name)

        return One()

    def says(self, name: str, *workers: str) -> None:
        self.listeners[name].found(tuple(a_worker(worker) for worker in workers))


class View:
    """Who is busy."""

    def __init__(self) -> None:
        self.busy_now: set[tuple[str, str, str]] = set()

    def busy(self) -> frozenset[tuple[str, str, str]]:
        return frozenset(self.busy_now)


def config_of(**models: Any) -> Config:
    text = yaml.safe_dump({"models": [{"name": name, "workers": workers} for name, workers in models.items()]})
    return parse_config(text, {}, "test")


def by_dns(name: str, **settings: Any) -> dict[str, Any]:
    return {"dns": name, "port": 8000, **settings}


BOTH = config_of(m=by_dns("a"), n=by_dns("b"))


class Rig:
    """A finder with a fleet."""

    def __init__(self, finder: Finder, fleet: Fleet, told: Told) -> None:
        self.finder = finder
        self.fleet = fleet
        self.told = told
        self.view = View()

    def put(self) -> None:
        self.finder.put_in_force(self.fleet, self.view)  # type: ignore[arg-type]  # it asks who is busy and nothing else

    @property
    def names(self) -> list[str]:
        return [f"({each.name})" if each.is_draining else each.name for each in self.fleet.topology.workers]

    def figure(self, name: str, pool: int | None = None, **labels: str) -> float:
        cell = slot(name, **labels)
        return self.fleet.cells.values[cell if pool is None else Layout.of(self.fleet.topology).pool_base(pool) + cell]


@asynccontextmanager
async def a_rig(tmp_path: Path, config: Config = BOTH, kept: Found | None = None) -> AsyncIterator[Rig]:
    told = Told()
    finder = Finder(tmp_path, kept or Found(), start=told.start)
    finder.follow(config)
    await asyncio.sleep(0)
    async with running_fleet(tmp_path, build_topology(config)) as fleet:
        fleet.discovered(finder.found, is_settled=finder.is_settled)
        try:
            yield Rig(finder, fleet, told)
        finally:
            await finder.close()


async def test_what_is_found_gets_into_force_and_is_counted(tmp_path: Path) -> None:
    """Each pool for itself; nothing is published when nothing is new."""
    async with a_rig(tmp_path) as rig:
        rig.told.says("a", "x", "y")
        rig.put()
        assert rig.names == ["x", "y"]
        topology = rig.fleet.topology
        rig.put()
        assert rig.fleet.topology is topology
        rig.told.says("b", "z")
        rig.told.says("a", "x")
        rig.put()

        assert rig.names == ["x", "(y)", "z"]
        assert rig.figure("ridgeline_discovered_workers", 0) == 1
        assert rig.figure("ridgeline_discovered_workers", 1) == 1
        assert rig.figure("ridgeline_discovery_changes_total", source="dns") == 3


async def test_a_stage_finds_its_workers_as_a_pool_does(tmp_path: Path) -> None:
    """Beside a pool that finds its own, or lists them; what nobody names any more drains, and its figures are its own."""
    text = yaml.safe_dump(
        {
            "models": [
                {
                    "name": "m",
                    "pools": [
                        {"name": "p", "workers": by_dns("a"), "prefill": {"workers": by_dns("b")}, "max_total_tokens": 10},
                        {"name": "q", "workers": ["http://127.0.0.1:1"], "prefill": {"workers": by_dns("c")}},
                    ],
                }
            ]
        }
    )
    async with a_rig(tmp_path, parse_config(text, {}, "test")) as rig:
        for name, workers in (("a", "x"), ("b", "yz"), ("c", "")):
            rig.told.says(name, *workers)
        rig.put()
        found = {pool.name: [worker.name for worker in pool.workers] for pool in rig.fleet.topology.pools}
        rig.told.says("b", "z")
        rig.put()

        assert found == {"p": ["x"], "q": ["127.0.0.1:1"], "p-prefill": ["y", "z"], "q-prefill": []}
        assert rig.names == ["x", "127.0.0.1:1", "(y)", "z"]
        assert [pool.name for pool in rig.fleet.topology.models[0].stages] == ["p-prefill", "q-prefill"]
        assert rig.fleet.topology.is_settled
        figures = [rig.figure("ridgeline_discovered_workers", pool.index) for pool in rig.fleet.topology.pools]
        assert (figures[0], isnan(figures[1]), figures[2:]) == (1, True, [1, 0])


async def test_a_gateway_is_settled_when_every_pool_has_been_looked_up(tmp_path: Path) -> None:
    """Also when nobody is found; and it stays so when a reload adds a pool that nothing is known of."""
    async with a_rig(tmp_path) as rig:
        rig.told.says("a", "x")
        rig.put()
        assert not rig.fleet.topology.is_settled
        assert isnan(rig.figure("ridgeline_discovered_workers", 1))
        rig.told.says("b")
        rig.put()
        assert rig.fleet.topology.is_settled
        assert rig.figure("ridgeline_discovered_workers", 1) == 0

        more = config_of(m=by_dns("a"), n=by_dns("b"), o=by_dns("c"))
        rig.fleet.reload(build_topology(more))
        rig.finder.follow(more, rig.fleet.found)
        rig.told.says("a", "x", "y")
        rig.put()
        assert rig.names == ["x", "y"]
        assert rig.fleet.topology.is_settled


async def test_the_start_waits_for_answers_but_not_for_ever(tmp_path: Path) -> None:
    """As soon as all are there it goes on."""
    told = Told()
    finder = Finder(tmp_path, Found(), start=told.start)
    finder.follow(BOTH)
    await finder.first(0.05)
    assert not finder.is_settled
    told.says("a", "x")
    waiting = asyncio.create_task(finder.first(30.0))
    await asyncio.sleep(0)
    told.says("b", "y")
    await asyncio.wait_for(waiting, 1.0)
    assert finder.is_settled
    await finder.close()


async def test_a_failure_is_told_once_and_again_when_it_is_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All are counted; when it works again that is told, too."""
    caplog.set_level("INFO")
    async with a_rig(tmp_path) as rig:
        rig.told.says("a", "x")
        for text in ("no answer", "no answer", "no answer", "refused"):
            rig.told.listeners["a"].failed(text)
        rig.put()
        assert rig.figure("ridgeline_discovery_failures_total", source="dns") == 4
        assert rig.names == ["x"]
        rig.told.says("a", "x")
        rig.told.says("a")
        rig.told.says("a")

    said = [record.getMessage() for record in caplog.records if record.name == finder_module.__name__]
    assert said.count("workers of m/default, by dns: no answer") == 1
    assert said.count("workers of m/default, by dns: refused") == 1
    assert said.count("workers of m/default are found by dns again") == 1
    assert said.count("dns finds no workers for m/default: requests are refused") == 1


async def test_a_busy_worker_that_vanished_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is idle, or its time is over; those of another pool with the same address are another matter."""
    now = 1000.0
    monkeypatch.setattr(finder_module, "monotonic", lambda: now)
    async with a_rig(tmp_path) as rig:
        rig.told.says("a", "x", "y", "z")
        rig.told.says("b", "x")
        rig.put()
        rig.told.says("a", "z")
        rig.view.busy_now = {("m", "default", "http://x:8000"), ("n", "default", "http://y:8000")}
        rig.put()
        assert rig.names == ["(x)", "(y)", "z", "x@n/default"]
        now += 31.0
        rig.put()
        assert rig.names == ["(x)", "z", "x@n/default"]
        now += 600.0
        rig.put()
        assert rig.names == ["z", "x"]


async def test_a_worker_that_vanished_is_not_asked_how_it_is(tmp_path: Path) -> None:
    """It is dead as a rule, which is no news, and what was known of it holds no more; when it comes back it is asked again."""

    def probed(rig: Rig) -> set[str]:
        return {name for name, *_ in rig.fleet._probing}

    async with a_rig(tmp_path) as rig:
        rig.told.says("a", "x", "y")
        rig.put()
        assert probed(rig) == {"x", "y"}
        up = Layout.of(rig.fleet.topology).worker_base(1) + slot("ridgeline_worker_up")
        rig.fleet.cells.values[up] = 1.0
        rig.told.says("a", "x")
        rig.put()
        assert rig.names == ["x", "(y)"]
        assert probed(rig) == {"x"}
        assert isnan(rig.fleet.cells.values[up])
        rig.told.says("a", "x", "y")
        rig.put()
        assert probed(rig) == {"x", "y"}


async def test_searches_whose_settings_stay_go_on_over_a_reload(tmp_path: Path) -> None:
    """Others begin anew and keep what was known; those of pools that are gone end."""
    async with a_rig(tmp_path) as rig:
        rig.told.says("a", "x")
        rig.told.says("b", "y")
        rig.put()
        another = config_of(m=by_dns("a", drain_seconds=5), n=by_dns("c"))
        rig.fleet.reload(build_topology(another))
        rig.finder.follow(another, rig.fleet.found)
        await asyncio.sleep(0.01)
        rig.put()

        assert rig.told.started == ["a", "b", "c"]
        assert rig.told.ended == ["b"]
        assert rig.names == ["x", "y"]
        rig.told.says("c", "z")
        rig.put()
        assert rig.names == ["x", "(y)", "z"]

        listed = config_of(m=["http://l:8000"], n=by_dns("c"))
        rig.fleet.reload(build_topology(listed))
        rig.finder.follow(listed, rig.fleet.found)
        await asyncio.sleep(0.01)
        rig.put()
        assert rig.told.ended == ["b", "a"]
        assert rig.names == ["l:8000", "(y)", "z"]
        assert isnan(rig.figure("ridgeline_discovered_workers", 0))


async def test_control_that_is_started_again_goes_on_with_what_was_known(tmp_path: Path) -> None:
    """It does not wait, and whoever cannot be asked takes nobody away."""
    kept = Found(pools={M: (a_worker("x"), a_worker("y", is_draining=True, is_gone=True)), N: ()})
    async with a_rig(tmp_path, kept=kept) as rig:
        await asyncio.wait_for(rig.finder.first(30.0), 1.0)
        assert rig.told.has_known == {"a": True, "b": False}
        rig.told.listeners["a"].failed("nobody answers")
        rig.put()
        assert rig.names == ["x", "(y)"]
        assert kept_found(tmp_path) == kept


async def test_what_is_in_force_from_the_start_is_kept_too(tmp_path: Path) -> None:
    """Control may die before anything changes."""
    found = Found(pools={M: (a_worker("x"),)})
    async with running_fleet(tmp_path, build_topology(BOTH), found=found):
        assert kept_found(tmp_path) == found


async def test_what_cannot_be_published_is_tried_again(tmp_path: Path) -> None:
    """Nothing has changed meanwhile, neither what is in force nor what is kept."""
    async with a_rig(tmp_path) as rig:
        rig.told.says("a", "x")
        rig.put()
        blocked = tmp_path / "topology.msgpack.new"
        blocked.mkdir()
        rig.told.says("a", "x", "y")
        with pytest.raises(OSError, match=r".*"):
            rig.put()
        assert rig.names == ["x"]
        assert len(kept_found(tmp_path).pools[M]) == 1
        blocked.rmdir()
        rig.put()
        assert rig.names == ["x", "y"]


async def test_a_source_that_breaks_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours in one of them is logged, and costs the others nothing."""
    monkeypatch.setattr(finder_module, "PERIOD_SECONDS", 0.002)
    starts = 0

    class Broken:
        async def run(self, listener: Listener) -> None:
            nonlocal starts
            starts += 1
            raise SourceError("a bug")

    finder = Finder(tmp_path, Found(), start=lambda *_, **__: Broken())
    finder.follow(BOTH)
    async with asyncio.timeout(5):
        while starts < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await finder.close()


async def test_bursts_become_few_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of changes in a moment are put in force a few times, the last one for sure."""
    monkeypatch.setattr(finder_module, "PERIOD_SECONDS", 0.1)
    async with a_rig(tmp_path) as rig:
        changes: list[Found] = []
        discovered = rig.fleet.discovered
        rig.fleet.discovered = lambda found, **settled: (changes.append(found), discovered(found, **settled))[1]  # type: ignore[method-assign]
        running = asyncio.create_task(rig.finder.run(rig.fleet, rig.view))  # type: ignore[arg-type]
        for number in range(200):
            rig.told.says("a", f"w{number:03}", "stays")
            await asyncio.sleep(0.001)
        async with asyncio.timeout(5):
            while "w199" not in rig.names:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        running.cancel()

    assert 1 <= len(changes) <= 10


def test_settings_say_what_is_asked(tmp_path: Path) -> None:
    """One kind of source for each way; relative files lie beside the configuration."""
    assert repr(source_of(FoundWorkersConfig(file="w.yaml"), tmp_path)) == f"<FileSource {tmp_path}/w.yaml>"
    assert repr(source_of(FoundWorkersConfig(dns="A.b.", port=1), tmp_path)) == "<DnsSource a.b. A AAAA>"
    assert repr(source_of(FoundWorkersConfig(dns="a", port=1, family="ipv6"), tmp_path)) == "<DnsSource a AAAA>"
    assert repr(source_of(FoundWorkersConfig(srv="_http._tcp.a"), tmp_path)) == "<DnsSource _http._tcp.a SRV>"
    assert isinstance(source_of(FoundWorkersConfig(file="/w"), tmp_path), FileSource)
    asked = source_of(FoundWorkersConfig(dns="a", port=1, nameserver="[::1]:5353"), tmp_path)
    assert isinstance(asked, DnsSource)
    assert asked._nameserver == ("::1", 5353)
    service = FoundWorkersConfig.model_validate({"kubernetes": {"service": "vllm", "namespace": "x", "api": "http://h"}})
    assert isinstance(source_of(service, tmp_path), KubernetesSource)
