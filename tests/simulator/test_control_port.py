"""The control port over HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from simulator.faults import Faults
from simulator.server import RunningWorker, WorkerSettings, start_worker

pytestmark = pytest.mark.integration


@asynccontextmanager
async def a_worker(**settings: Any) -> AsyncIterator[tuple[RunningWorker, aiohttp.ClientSession]]:
    given = {"model": "m", "shape": "llama-3.1-8b", "gpu": "h100-sxm", "port": 0, "control_port": 0, "speed": 20.0, **settings}
    running, _ = await start_worker(WorkerSettings(**given))
    try:
        async with aiohttp.ClientSession(trust_env=False, base_url=f"{running.control_url}/") as http:
            yield running, http
    finally:
        await running.cleanup()


async def asked(http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with http.request(method, path, data=body) as answer:
        return answer.status, await answer.json()


async def test_faults_are_told_changed_and_ended():
    """What is put in force replaces all before, and is told with how many requests it has hit."""
    async with a_worker(faults=Faults(crlf=True)) as (running, http):
        before = await asked(http, "GET", "faults")
        put = await asked(http, "PUT", "faults", json.dumps({"status": 429, "count": 1}))
        completions = f"{running.listener.url}/v1/completions"
        statuses = []
        for _ in range(2):
            async with aiohttp.request("POST", completions, json={"prompt": "x", "max_tokens": 1}) as answer:
                statuses.append(answer.status)
        after = await asked(http, "GET", "faults")
        ended = await asked(http, "DELETE", "faults")

    assert before == (200, {"faults": {"crlf": True}, "requests_seen": 0, "requests_hit": 0})
    assert put == (200, {"faults": {"status": 429, "count": 1}, "requests_seen": 0, "requests_hit": 0})
    assert statuses == [429, 200]
    assert after[1] == {"faults": {"status": 429, "count": 1}, "requests_seen": 2, "requests_hit": 1}
    assert ended[1]["faults"] == {}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("PUT", "faults", '{"slow": 2}', 400, "did you mean 'slow_factor'?"),
        ("PUT", "faults", "", 400, "faults are a JSON object"),
        ("POST", "faults", "{}", 405, "use DELETE, GET, PUT"),
        ("GET", "prefixes", None, 405, "use DELETE"),
        ("GET", "other", None, 404, "there are /faults and /prefixes here"),
    ],
)
async def test_what_cannot_be_is_refused(method, path, body, status, text):
    """The answer says what is wrong, and nothing has changed."""
    async with a_worker(faults=Faults(crlf=True)) as (running, http):
        answer = await asked(http, method, path, body)

        assert answer[0] == status
        assert text in answer[1]["error"]
        assert running.worker.switch.faults == Faults(crlf=True)


async def test_the_prefix_cache_can_be_emptied():
    """After that a prompt that was warm is cold."""
    async with a_worker(prompt_tokens_details=True) as (running, http):
        cached = []
        for empties in (False, False, True):
            if empties:
                assert (await asked(http, "DELETE", "prefixes"))[0] == 200
            body = {"prompt": "water " * 200, "max_tokens": 1}
            async with aiohttp.request("POST", f"{running.listener.url}/v1/completions", json=body) as answer:
                cached.append((await answer.json())["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached[0] == cached[2] == 0 < cached[1]


async def test_the_engine_takes_what_is_put_in_force():
    """A factor and a pause reach the engine, and end with the faults."""
    async with a_worker() as (running, http):
        engine = running.worker.driver.engine
        await asked(http, "PUT", "faults", '{"slow_factor": 3, "pause": true}')
        assert (engine.slow_factor, engine.is_paused) == (3, True)
        await asked(http, "DELETE", "faults")
        assert (engine.slow_factor, engine.is_paused) == (1, False)


async def test_a_port_that_cannot_be_had_again_is_told():
    """If something else listens there meanwhile, the faults cannot be ended as far as that goes, and the answer says so."""
    async with a_worker() as (running, http):
        await asked(http, "PUT", "faults", '{"refuse": true}')
        placeholder = running.listener._placeholder
        assert placeholder is not None
        placeholder.close()
        with socket.create_server(("127.0.0.1", running.listener.port)):
            answer = await asked(http, "DELETE", "faults")

    assert answer[0] == 409
    assert "the worker's port cannot be had again" in answer[1]["error"]


async def test_it_is_on_loopback_whatever_the_worker_listens_on():
    """Nobody else can make a worker ill."""
    async with a_worker(host="0.0.0.0") as (running, _):
        assert running.control_url is not None
        assert running.control_url.startswith("http://127.0.0.1:")


async def test_a_control_port_that_is_taken_is_an_error():
    """The worker does not start without the port it was asked for, and leaves nothing behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = WorkerSettings(model="m", shape="llama-3.1-8b", gpu="h100-sxm", port=0, control_port=taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            await start_worker(settings)
