"""Workers come, drain and go while requests run, however they are found: no request is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.answers import DONE, chat_answer, usage_of
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.load import client_of, eventually, paced, requests_in_turn, stream, worker_of
from tests.integration.raw_client import End
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Script, Send

PLAIN = [Send(chat_answer("x", usage=usage_of(5, 1)))]
FOUND_SECONDS = 6.0  # from a change to its effect in all processes


def some_streams(request: Received) -> Script:
    return paced(20, 0.05) if b'"stream": true' in request.body else PLAIN


class Load:
    """Requests and streams without a pause; every one must go well."""

    def __init__(self) -> None:
        self.done = 0
        self.by_worker: dict[str, int] = {}

    def count(self, worker: str) -> None:
        self.done += 1
        self.by_worker[worker] = self.by_worker.get(worker, 0) + 1


@asynccontextmanager
async def under_load(gateway: Gateway, clients: int = 4) -> AsyncIterator[Load]:
    """Load while the block runs. AssertionError for a request that did not go well."""
    load, is_over = Load(), asyncio.Event()

    async def ask() -> None:
        client, _ = await client_of(gateway)
        async with client:
            while not is_over.is_set():
                (plain,) = await requests_in_turn(client, 1)
                assert plain.status == 200, plain
                load.count(worker_of(plain))
                await asyncio.sleep(0.002)

    async def follow() -> None:
        while not is_over.is_set():
            streamed = await stream(gateway)
            assert (streamed.status, streamed.end) == (200, End.COMPLETE), streamed
            assert streamed.body.endswith(DONE)
            load.count(worker_of(streamed))

    tasks = [asyncio.create_task(one()) for _ in range(clients) for one in (ask, follow)]
    try:
        yield load
    finally:
        is_over.set()
        await asyncio.gather(*tasks)


async def asked(load: Load, *workers: str) -> None:
    """Wait until these workers get requests and no others do."""

    async def seen() -> set[str]:
        before = dict(load.by_worker)
        await asyncio.sleep(0.3)
        return {name for name, count in load.by_worker.items() if count > before.get(name, 0)}

    async with asyncio.timeout(FOUND_SECONDS):
        while await seen() != set(workers):
            pass


async def state(gateway: Gateway) -> dict[str, dict[str, Any]]:
    """The workers by name, as the admin listener shows them."""
    status, text = await gateway.get(gateway.admin_url + "/api/workers")
    assert status == 200
    return {worker["worker"]: worker for worker in json.loads(text)}


async def nothing_is_in_flight(gateway: Gateway, load: Load) -> None:
    """All requests have ended well and are counted; nothing is left."""
    metrics = await gateway.metrics_when(lambda metrics: metrics.total("ridgeline_in_flight_requests") == 0)
    assert metrics.total("ridgeline_in_flight_tokens") == 0
    assert metrics.total("ridgeline_requests_total", endpoint="chat", outcome="ok") == load.done
    assert metrics.total("ridgeline_requests_total", endpoint="chat") == load.done


def name_of(worker: ScriptedWorker) -> str:
    return worker.url.removeprefix("http://")


@pytest.fixture
async def workers() -> AsyncIterator[list[ScriptedWorker]]:
    """Three workers that answer and stream."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedWorker(some_streams)) for _ in range(3)]


def put(path: Path, workers: Sequence[ScriptedWorker]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump([worker.url for worker in workers]))
    fresh.replace(path)


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_file_changes_under_load(workers: list[ScriptedWorker], tmp_path: Path, processes: int) -> None:
    """Workers are added and taken out by the file that lists them: streams at those that go run to their end."""
    path = tmp_path / "workers.yaml"
    first, second, third = workers
    put(path, [first])
    config = {"models": [{"name": "tiny", "workers": {"file": str(path)}}]}
    async with running_gateway(config, processes=processes) as gateway:
        async with under_load(gateway) as load:
            await asked(load, name_of(first))
            put(path, [first, second])
            await asked(load, name_of(first), name_of(second))
            put(path, [third])
            await asked(load, name_of(third))
            shown = await state(gateway)
            assert {name: worker["is_draining"] for name, worker in shown.items()} == {
                name_of(first): True,
                name_of(second): True,
                name_of(third): False,
            }
            assert {worker["source"] for worker in shown.values()} == {"file"}
            path.write_text("- [")
            await eventually(lambda: "no YAML" in gateway.stderr)
            await asked(load, name_of(third))
        await nothing_is_in_flight(gateway, load)
        metrics = await gateway.metrics()
        assert metrics.value("ridgeline_discovered_workers") == 1
        assert metrics.value("ridgeline_discovery_changes_total", source="file") == 2
        assert metrics.value("ridgeline_discovery_failures_total", source="file") == 1
        assert gateway.stderr.count("no YAML") == 1
