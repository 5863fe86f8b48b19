"""Leases of shared limits in control: how much is taken from the store, when, and what is said while it is away."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from math import isnan
from pathlib import Path

import pytest
import yaml

from proxy.config.settings import parse_config
from proxy.config.wiring import build_topology
from proxy.control.fleet import Fleet
from proxy.control.leasing import Leasing, StoreError
from telemetry.catalog import Writer
from telemetry.cells import create_cells
from telemetry.layout import Layout, offset, slot
from tests.proxy.fleets import a_file, running_fleet

SHA = "ab" * 32


class Store:
    """Counts what is taken; never forgets."""

    def __init__(self) -> None:
        self.taken = {"requests": 0, "tokens": 0}
        self.asked = 0
        self.is_away = False

    async def take(self, key: str, of: str, limit: int, cost: int) -> bool:
        self._ask()
        if self.taken[of] + cost > limit:
            return False
        self.taken[of] += cost
        return True

    async def remaining(self, key: str, of: str, limit: int) -> int:
        self._ask()
        return limit - self.taken[of]

    async def close(self) -> None:
        pass

    def _ask(self) -> None:
        self.asked += 1
        if self.is_away:
            raise StoreError("ConnectionError")


class Scene:
    """A fleet with one limited key, and its one serving process, which this test is."""

    def __init__(self, fleet: Fleet, run_dir: Path) -> None:
        self.fleet = fleet
        self.store = Store()
        self.leasing = Leasing(self.store, 0.1)
        layout = Layout.of(fleet.topology)
        self._serving = create_cells(run_dir / "serving-0.cells", layout, Writer.SERVING)
        self._base = layout.key_base(0)
        self.now = 1000.0

    async def looks(self, seconds: float = 0.02) -> None:
        self.now += seconds
        await self.leasing.lend(self.fleet, self.fleet._view, self.store, self.now)
        self.leasing.show(self.fleet, self.fleet._view, self.now)

    def uses(self, requests: int) -> None:
        self._serving.values[self._base + slot("ridgeline_quota_requests_total")] += requests

    def wants(self, requests: int) -> None:
        self._serving.values[self._base + slot("ridgeline_quota_wanted", of="requests")] = requests

    def figure(self, name: str, **labels: str) -> float:
        return self.fleet.cells.values[self._base + slot(f"ridgeline_quota_{name}", **labels)]

    @property
    def leased(self) -> float:
        return self.figure("leased_total", of="requests")

    @property
    def store_up(self) -> float:
        return self.fleet.cells.values[offset("ridgeline_quota_store_up")]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    key = {"name": "k", "sha256": SHA, "quota": {"requests_per_minute": 100}}
    text = {**yaml.safe_load(a_file({"default": ["w-0"]})), "keys": [key], "quotas": {"store": "redis://r"}}
    topology = build_topology(parse_config(yaml.safe_dump(text), {}, "test"))
    async with running_fleet(tmp_path, topology) as fleet:
        yield Scene(fleet, tmp_path)


async def test_nothing_is_leased_while_nobody_wants_anything(scene):
    """And the store is not asked."""
    for _ in range(5):
        await scene.looks()

    assert scene.store.asked == 0
    assert isnan(scene.store_up)


async def test_a_lease_is_taken_when_one_is_wanted_and_ahead_for_a_busy_key(scene):
    """A tenth of the limit at a time here; more where more waits; again once half of it is used."""
    scene.wants(1)
    await scene.looks()
    assert (scene.leased, scene.store.taken["requests"], scene.store_up) == (10, 10, 1)

    scene.wants(0)
    scene.uses(4)
    await scene.looks()
    assert scene.leased == 10
    scene.uses(2)
    await scene.looks()
    assert scene.leased == 20

    scene.wants(30)
    await scene.looks()
    assert scene.leased == scene.store.taken["requests"] == 36


async def test_what_is_left_goes_to_those_who_wait_and_then_they_are_told(scene):
    """Of several that wait some may go on; for the others there is a time."""
    scene.store.taken["requests"] = 95
    scene.wants(20)
    await scene.looks()

    assert scene.store.taken["requests"] == 100
    assert scene.leased == 5
    assert scene.figure("denied_at_seconds", of="requests") > 0
    assert 1 <= scene.figure("denied_for_seconds", of="requests") <= 60


async def test_a_lease_ends_after_a_minute(scene):
    """The store has forgotten by then that it was taken."""
    scene.wants(1)
    await scene.looks()
    scene.wants(0)
    scene.uses(3)
    await scene.looks()
    assert scene.leased == 10

    await scene.looks(61)
    assert scene.leased == 3


async def test_a_store_that_is_away_is_told_once_and_asked_every_second(scene, caplog):
    """What was let in meanwhile is not paid for afterwards."""
    scene.store.is_away = True
    scene.wants(1)
    await scene.looks()
    await scene.looks()
    assert scene.store_up == 0
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    asked = scene.store.asked

    scene.uses(50)
    await scene.looks(0.5)
    assert scene.store.asked == asked
    scene.store.is_away = False
    with caplog.at_level(logging.INFO):
        await scene.looks(1)
    assert scene.store_up == 1
    assert scene.leased == 60
    assert "answers again" in caplog.text


async def test_limits_and_what_is_left_are_shown(scene):
    """By this gateway's own count."""
    await scene.looks()
    scene.uses(30)
    await scene.looks(1)

    assert scene.figure("limit", limit="requests") == 100
    assert isnan(scene.figure("limit", limit="tokens"))
    assert scene.figure("remaining", of="requests") == 70
