"""Every query of every dashboard has an answer from a real Prometheus, of a gateway under mixed load with faults."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml
from aiohttp import web

from dashboards.grafana import gpus
from simulator.faults import End, Faults
from simulator.server import RunningWorker, WorkerSettings, start_worker
from tests.dashboards.grafana_json import dashboards, panels
from tests.dashboards.promql import names_in
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.prometheus import Prometheus, running_prometheus
from tests.integration.scene import CHAT, COMPLETIONS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=1)]

MODEL = "llama-3.1-8b"
KEY = "a key of the tests"
QUOTA = {"requests_per_minute": 10_000, "tokens_per_minute": 10_000_000, "concurrent_requests": 1000}
ROUNDS = 5
SHOWN_SECONDS = 240  # all of the run, also on a busy machine
WINDOW = "8s"  # for $__rate_interval: eight scrapes


def queries() -> dict[str, str]:
    """Every query of every dashboard by where it stands, with everything chosen and windows that fit a run of seconds."""
    found = {}
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            found |= {f"{name}: {panel['title']} {target['refId']}": target["expr"] for target in panel["targets"]}
        found |= {f"{name}: {mark['name']}": mark["expr"] for mark in dashboard["annotations"]["list"]}
    return {where: filled_in(expr) for where, expr in found.items()}


def filled_in(expr: str) -> str:
    """The expression with variables replaced; fixed windows and offsets are made as short as the run."""
    expr = expr.replace("$__rate_interval", WINDOW).replace("$__range", "30s")
    expr = re.sub(r"\[\d+[mh]\]", "[30s]", expr)
    expr = expr.replace("offset 30m", "offset 2s")
    return re.sub(r"\$([a-z_]+)", ".*", expr)


class Load:
    """Requests of every kind on one gateway."""

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self._gateway = gateway
        self._session = session
        self._count = 0

    async def ask(self, path: str = CHAT, *, key: str = KEY, leaves: bool = False, **body: Any) -> int:
        """One request, read to its end unless the client leaves at the first byte; the status, 0 for a broken answer."""
        headers = {"Authorization": f"Bearer {key}"}
        with suppress(aiohttp.ClientError, TimeoutError):
            whole = {"model": MODEL, "max_tokens": 12, "ignore_eos": True, **body}
            async with self._session.post(self._gateway.base_url + path, json=whole, headers=headers) as answer:
                if leaves:
                    await answer.content.readany()
                    answer.close()
                else:
                    await answer.read()
                return answer.status
        return 0

    async def round(self) -> None:
        """Shared prompts, plain answers, long and far too long ones, unknown models, wrong keys, clients that leave."""
        self._count += 1
        system = {"role": "system", "content": "You answer as a librarian would. " * 120}
        ask = {"role": "user", "content": f"Question {self._count}: where are the maps?"}
        long = {"role": "user", "content": "A very long letter. " * 1500}
        await asyncio.gather(
            *(self.ask(messages=[system, {**ask, "content": f"{ask['content']} {n}"}], stream=True) for n in range(6)),
            *(self.ask(messages=[system, ask], stream=False) for _ in range(2)),
            self.ask(messages=[long], stream=True),
            self.ask(COMPLETIONS, prompt="Once upon a time", stream=True),
            self.ask(messages=[system, ask], stream=True, leaves=True, max_tokens=400),
            self.ask(messages=[{"role": "user", "content": "long " * 180_000}], stream=True),
            self.ask(messages=[ask], model="nobody"),
            self.ask(messages=[ask], key="wrong"),
        )

    async def one_after_the_other(self, count: int) -> None:
        """Cold streams that nobody else's prompt is in the way of: what a worker attains is taken from such."""
        for number in range(count):
            system = {"role": "system", "content": f"Region {number}: you know all of its maps. " * 120}
            await self.ask(messages=[system, {"role": "user", "content": f"Map {number}?"}], stream=True, max_tokens=4)


async def exporter(stack: AsyncExitStack, names: set[str]) -> str:
    """A page with the DCGM exporter's series of one GPU; returns its address."""
    labels = ",".join(f'{name}="0"' for name in sorted(gpus.LABELS - {"job", "instance"}))
    text = "".join(f"# TYPE {name} gauge\n{name}{{{labels}}} 0.5\n" for name in sorted(names))

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return "{}:{}".format(*runner.addresses[0])


def settings(port: int = 0) -> WorkerSettings:
    return WorkerSettings(model=MODEL, gpu="h100-sxm", port=port, prompt_tokens_details=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prometheus(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    """One that has watched a gateway with two pools through a load with a slow, a failing, a full and a restarted worker."""
    folder = tmp_path_factory.mktemp("grafana")
    async with AsyncExitStack() as stack:
        workers: list[RunningWorker] = []
        urls = []
        for _ in range(4):
            running, url = await start_worker(settings())
            workers.append(running)
            urls.append(url)
        stack.push_async_callback(end, workers)
        listed = folder / "workers.json"
        listed.write_text(json.dumps([{"name": "long-1", "url": urls[2]}]))
        gateway = await stack.enter_async_context(running_gateway(config(urls, listed, urls[3])))
        rules = folder / "rules.yaml"
        rules.write_text(yaml.safe_dump(an_alert()))
        dcgm = {name for expr in queries().values() for name in names_in(expr) if name.startswith("DCGM_FI_")}
        targets = {"ridgeline": [gateway.observe_url.removeprefix("http://")], "dcgm": [await exporter(stack, dcgm)]}
        prometheus = await stack.enter_async_context(running_prometheus(folder, targets, rules=[rules]))
        session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        load = Load(gateway, session)
        await disturb(load, gateway, workers)
        yield prometheus


async def end(workers: list[RunningWorker]) -> None:
    """Whoever is among the workers then."""
    for running in workers:
        await running.cleanup()


def config(urls: list[str], listed: Path, stage: str) -> dict[str, Any]:
    """The stage of the long pool has no connector: its legs are counted, and the pool computes, and is judged, all the same."""
    short = [{"name": f"short-{number}", "url": url} for number, url in enumerate(urls[:2], 1)]
    return {
        "models": [
            {
                "name": MODEL,
                "pools": [
                    {"name": "short", "max_total_tokens": 4096, "gpu": "h100-sxm", "workers": short},
                    {"name": "long", "gpu": "h100-sxm", "workers": {"file": str(listed)}, "prefill": {"workers": [stage]}},
                ],
            }
        ],
        "hedging": {"after_seconds": 1},
        "keys": [{"name": "app", "sha256": hashlib.sha256(KEY.encode()).hexdigest(), "quota": QUOTA}],
        "quotas": {"store": "redis://127.0.0.1:9", "on_store_failure": "open"},
    }


def an_alert() -> dict[str, Any]:
    labels = {"severity": "info", "model": MODEL, "pool": "short", "worker": "short-1"}
    return {"groups": [{"name": "test", "rules": [{"alert": "RidgelineTest", "expr": "vector(1)", "labels": labels}]}]}


async def disturb(load: Load, gateway: Gateway, workers: list[RunningWorker]) -> None:
    """Rounds of load, each with another fault."""
    first, second, *_ = workers
    await load.round()
    await asyncio.sleep(6)  # the gateway reads workers' pages every five seconds
    await load.round()
    await first.apply(Faults(slow_factor=20.0))
    await load.round()
    await first.apply(Faults(tokens_per_event=3))
    await load.round()
    await first.apply(Faults(end=End.RESET, end_at_token=3))
    await load.round()
    await first.apply(Faults())
    port = second.listener.port
    await second.cleanup()
    workers[1], _ = await start_worker(settings(port))
    gateway.supervisor.send_signal(signal.SIGHUP)
    for _ in range(ROUNDS):
        await load.round()
        await asyncio.sleep(1)
    await load.one_after_the_other(60)
    await asyncio.sleep(4)
    await load.round()
    await asyncio.sleep(2)


async def test_every_query_has_an_answer(prometheus: Prometheus) -> None:
    """Each returns data, and not only "not a number"."""
    silent = {}
    for where, expr in queries().items():
        series = await prometheus.query_range(expr, SHOWN_SECONDS)
        if not any(not math.isnan(float(value)) for one in series for _, value in one["values"]):
            silent[where] = expr

    assert not silent, "\n".join(f"{where}: {expr}" for where, expr in silent.items())
