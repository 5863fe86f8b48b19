"""From a fault to the notice: each fault raises its alert and no other, through a real Prometheus and Alertmanager.

The rules and the Alertmanager's configuration are the product's own, with all times divided by `FASTER`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from dashboards.rules.__main__ import main
from dashboards.rules.rule import Clock
from simulator.faults import Faults
from simulator.server import RunningWorker, WorkerSettings, start_worker
from tests.integration.alertmanager import Receiver, running_alertmanager
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.prometheus import Prometheus, running_prometheus
from tests.integration.scene import CHAT

# They hold the gateway against a clock: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio, pytest.mark.alone, pytest.mark.flaky(reruns=1)]

FASTER = 30.0
WARM_SECONDS = 16.0  # until it scrapes, and a window of five minutes, shortened
NOTICE_SECONDS = 40.0
QUIET_SECONDS = 8.0  # after the last notice, for one that should not come
EXPECTED = {
    "drift": "RidgelinePrefixDrift",
    "spike": "RidgelineTpotSpike",
    "hung": "RidgelineWorkerHung",
    "dead": "RidgelineWorkerDown",
}
STREAMS_PER_SECOND = {"drift": 4.0, "spike": 14.0, "hung": 4.0, "dead": 4.0, "well": 4.0}
SYSTEM = "You are a librarian of the old town and answer in whole sentences. " * 40


class Load:
    """Streams to one model at a steady rate; the text that stands before all prompts can be changed."""

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession, model: str) -> None:
        self.system = SYSTEM if model == "drift" else "You are a librarian."
        self._gateway = gateway
        self._session = session
        self._model = model
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled."""
        begins_at = time.monotonic()
        for number in itertools.count():
            await asyncio.sleep(max(0.0, begins_at + number / STREAMS_PER_SECOND[self._model] - time.monotonic()))
            task = asyncio.create_task(self._ask(number))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """End what is under way."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _ask(self, number: int) -> None:
        messages = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": f"{self._model} {number}: where is it?"},
        ]
        body = {"model": self._model, "stream": True, "max_tokens": 10, "ignore_eos": True, "messages": messages}
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.post(self._gateway.base_url + CHAT, json=body) as answer:
                await answer.read()


class Town:
    """Five models with two workers each, under load, watched."""

    def __init__(
        self, receiver: Receiver, prometheus: Prometheus, workers: dict[str, list[RunningWorker]], loads: dict[str, Load]
    ) -> None:
        self.receiver = receiver
        self.prometheus = prometheus
        self.workers = workers
        self.loads = loads
        self.tasks: set[asyncio.Task[None]] = set()

    def change_the_prompt(self) -> None:
        """A date gets in before what all requests share."""
        self.loads["drift"].system = "Today is Monday, 30 November. " + SYSTEM

    def stutter(self) -> None:
        """Both workers compute nearly half as fast for a moment, again and again."""

        async def again() -> None:
            while True:
                for seconds, factor in ((0.7, 1.9), (2.0, 1.0)):
                    for running in self.workers["spike"]:
                        await running.apply(Faults(slow_factor=factor))
                    await asyncio.sleep(seconds)

        self.tasks.add(asyncio.create_task(again()))

    async def hang(self) -> None:
        """The engine stands still, health checks go on."""
        await self.workers["hung"][0].apply(Faults(pause=True))

    async def kill(self) -> None:
        """The process is gone."""
        await self.workers["dead"].pop(0).cleanup()


@pytest_asyncio.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    folder = tmp_path
    main(["--faster", str(FASTER), "--into", str(folder / "rules")])
    rules = [folder / "rules" / name for name in ("recording.yaml", "alerts.yaml")]
    async with AsyncExitStack() as stack:
        workers: dict[str, list[RunningWorker]] = {}
        models = []
        for model in STREAMS_PER_SECOND:
            started = [await start_worker(settings(model)) for _ in range(2)]
            workers[model] = [running for running, _ in started]
            named = [{"name": f"{model}-{number}", "url": url} for number, (_, url) in enumerate(started)]
            models.append({"name": model, "pools": [{"name": "default", "policy": "round-robin", "workers": named}]})

        async def end() -> None:
            for running in itertools.chain(*workers.values()):
                await running.cleanup()

        stack.push_async_callback(end)
        config = {
            "models": models,
            "health": {"silence_seconds": 1, "slow_start_seconds": 0},
            "retries": {"budget_per_second": 1000},
        }
        gateway = await stack.enter_async_context(running_gateway(config))
        await gateway.ready(gateway.observe_url)
        receiver = await stack.enter_async_context(running_alertmanager(folder, Clock(FASTER)))
        targets = {"ridgeline": [gateway.observe_url.removeprefix("http://")]}
        prometheus = await stack.enter_async_context(
            running_prometheus(folder, targets, rules=rules, alertmanagers=[receiver.address])
        )
        session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        loads = {model: Load(gateway, session, model) for model in STREAMS_PER_SECOND}
        town = Town(receiver, prometheus, workers, loads)
        town.tasks |= {asyncio.create_task(load.run()) for load in loads.values()}

        async def cancel() -> None:
            for task in town.tasks:
                task.cancel()
            await asyncio.gather(*town.tasks, return_exceptions=True)
            await asyncio.gather(*(load.close() for load in loads.values()))

        stack.push_async_callback(cancel)
        await asyncio.sleep(WARM_SECONDS)
        yield town


def settings(model: str) -> WorkerSettings:
    """About 20 ms a token: a pause of a busy machine is no stall."""
    return WorkerSettings(model=model, shape="llama-3.1-8b", gpu="l40s", port=0, prompt_tokens_details=True)


async def test_each_fault_raises_its_alert_and_no_other(town: Town) -> None:
    """Four faults at once, each at a model of its own; a fifth model has none, and nothing is told of it."""
    # Prometheus begins to scrape five seconds after its start, which in this time are minutes without a gateway.
    assert set(town.receiver.fired()) <= {"RidgelineAbsent"}
    town.receiver.notices.clear()
    faults: dict[str, Callable[[], object]] = {
        "drift": town.change_the_prompt,
        "spike": town.stutter,
        "hung": town.hang,
        "dead": town.kill,
    }
    begun = {}
    for model, begin in faults.items():
        begun[model] = time.monotonic()
        done = begin()
        if asyncio.iscoroutine(done):
            await done
    try:
        told = {model: await town.receiver.until(name, NOTICE_SECONDS, model=model) for model, name in EXPECTED.items()}
    except TimeoutError as error:
        error.add_note(f"{await town.prometheus.query('ALERTS')}")
        raise
    await asyncio.sleep(QUIET_SECONDS)

    took = {model: told[model] - begun[model] for model in told}
    print("\nfrom the fault to the notice: " + ", ".join(f"{EXPECTED[model]} {took[model]:.1f} s" for model in took))
    # Those about the gateway itself have no model: in this time a hiccup of a busy machine is minutes.
    firing = {(notice.labels["model"], notice.name) for notice in town.receiver.notices if "model" in notice.labels}
    assert firing == set(EXPECTED.items())
    by_name = {notice.name: notice for notice in town.receiver.notices}
    assert by_name["RidgelineWorkerDown"].labels["worker"] == "dead-0"
    assert by_name["RidgelineWorkerHung"].labels["worker"] == "hung-0"
    assert by_name["RidgelinePrefixDrift"].labels["kind"] == "inserted"
    assert all("{{" not in text and text for notice in town.receiver.notices for text in notice.annotations.values())
