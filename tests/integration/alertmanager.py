"""A real Alertmanager with the product's configuration, and the webhook that it calls."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from dashboards.rules.rule import Clock
from tests.integration.gateway import free_ports
from tests.integration.prometheus import is_ready
from tests.integration.prometheus_tools import ROOT, tool

CONFIG = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
_TIMES = ("group_wait", "group_interval", "repeat_interval")


@dataclass(frozen=True, slots=True)
class Notice:
    """One alert of one call of the webhook."""

    at: float  # monotonic
    name: str
    is_firing: bool
    labels: dict[str, str]
    annotations: dict[str, str]


@dataclass(slots=True)
class Receiver:
    """What the webhook was told, and where the Alertmanager is."""

    address: str = ""
    notices: list[Notice] = field(default_factory=list)

    def fired(self, **labels: str) -> dict[str, float]:
        """Alerts that were told as firing and bear these labels, with the instant of the first time."""
        found: dict[str, float] = {}
        for notice in self.notices:
            if notice.is_firing and labels.items() <= notice.labels.items():
                found.setdefault(notice.name, notice.at)
        return found

    async def until(self, name: str, timeout_seconds: float, **labels: str) -> float:
        """Wait until an alert with these labels was told; the instant. TimeoutError with what was told instead."""
        ends_at = time.monotonic() + timeout_seconds
        while name not in self.fired(**labels):
            if time.monotonic() > ends_at:
                raise TimeoutError(f"{name} {labels} was not told; others were: {[(n.name, n.labels) for n in self.notices]}")
            await asyncio.sleep(0.05)
        return self.fired(**labels)[name]


@asynccontextmanager
async def running_alertmanager(folder: Path, clock: Clock) -> AsyncIterator[Receiver]:
    """The product's configuration, with the test's webhook as receiver and times as short as the clock makes them."""
    receiver = Receiver()
    program = tool("prometheus-alertmanager")

    async def take(request: web.Request) -> web.Response:
        for alert in json.loads(await request.text())["alerts"]:
            labels = alert["labels"]
            name = labels.pop("alertname")
            receiver.notices.append(Notice(time.monotonic(), name, alert["status"] == "firing", labels, alert["annotations"]))
        return web.Response()

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    config = yaml.safe_load(CONFIG.read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route.update({name: clock(route[name]) for name in _TIMES if name in route})
    config["receivers"][0]["webhook_configs"][0]["url"] = f"http://{host}:{port}/"
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    receiver.address = f"127.0.0.1:{free_ports(1)[0]}"
    command: list[Any] = [
        program,
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={receiver.address}",
        "--cluster.listen-address=",
    ]
    with (folder / "alertmanager.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        async with aiohttp.ClientSession(trust_env=False) as session:
            is_up = await is_ready(session, f"http://{receiver.address}", process)
            assert is_up, (folder / "alertmanager.log").read_text(errors="replace")
        yield receiver
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await runner.cleanup()
