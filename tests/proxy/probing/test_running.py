"""Sending bursts, and watching a worker's metrics page meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.probing import running
from proxy.probing.design import Burst, Experiment
from proxy.probing.endpoint import Endpoint, Target, session_of
from proxy.probing.prompts import PromptMaker
from proxy.probing.running import Bounds, Log, Watch, run_bursts

PAGE = 'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'


async def looks(statuses: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> tuple[int, Watch]:
    """How often a page was asked for that answers so, the last status again and again; five times are enough to know."""
    asked = 0
    seen = asyncio.Event()

    async def page(_: web.Request) -> web.Response:
        nonlocal asked
        status = statuses[min(asked, len(statuses) - 1)]
        asked += 1
        if asked >= 5:
            seen.set()
        return web.Response(status=status, text=PAGE if status == 200 else "")

    app = web.Application()
    app.router.add_get("/metrics", page)
    monkeypatch.setattr(running, "_WATCH_SECONDS", 0.0)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        watch = Watch(session, str(server.make_url("/metrics")))
        await watch.look()
        looking, enough = asyncio.create_task(watch.run()), asyncio.create_task(seen.wait())
        async with asyncio.timeout(5):
            await asyncio.wait({looking, enough}, return_when=asyncio.FIRST_COMPLETED)
        for task in (looking, enough):
            task.cancel()
        await asyncio.gather(looking, enough, return_exceptions=True)
    return asked, watch


@pytest.mark.parametrize("status", [401, 403, 404, 405])
async def test_where_there_is_no_page_it_is_asked_for_once(status, monkeypatch):
    """A gateway without one would count each question as a wrong request."""
    asked, watch = await looks([status], monkeypatch)

    assert asked == 1
    assert not watch.is_told


async def test_a_page_is_looked_at_again_and_again(monkeypatch):
    """Also after a moment in which there was none, once it was seen or when the worker had no time for it."""
    asked, watch = await looks([503, 200, 404, 200], monkeypatch)

    assert asked >= 5
    assert watch.is_told
    assert watch.take().running == 3.0


async def test_no_look_is_taken_together_with_the_first_tokens(monkeypatch):
    """The page costs the worker time: it is read once before the bursts, and then while tokens come, a while after sending."""
    seen: list[str] = []

    async def page(_: web.Request) -> web.Response:
        seen.append("look")
        return web.Response(text=PAGE)

    async def complete(request: web.Request) -> web.StreamResponse:
        seen.append("request")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(0.02)
        await response.write(b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n')
        seen.append("token")
        await asyncio.sleep(0.08)
        await response.write(b'data: {"choices":[{"index":0,"text":"a","finish_reason":"length"}]}\n\ndata: [DONE]\n\n')
        return response

    app = web.Application()
    app.router.add_get("/metrics", page)
    app.router.add_post("/v1/completions", complete)
    monkeypatch.setattr(running, "_WATCH_SECONDS", 0.06)
    log = Log()
    async with TestServer(app) as server, session_of() as session:
        url = str(server.make_url("")).rstrip("/")
        await run_bursts(
            Endpoint(Target(url=url, model="m"), session, time.monotonic),
            [Burst(experiment=Experiment.OUTPUT, prompt_tokens=8, output_tokens=2)] * 2,
            PromptMaker(),
            Bounds(requests=10, seconds=5.0),
            log,
            is_warm_too=False,
            watch=Watch(session, f"{url}/metrics"),
            clock=time.monotonic,
            tell=lambda *_: None,
        )

    assert seen == ["look", *["request", "token", "look"] * 2]
    assert [one.errors for one in log.measured] == [[], []]


async def test_streams_of_a_steady_load_start_one_after_the_other():
    """The first request comes alone and tells how long one takes; the other streams' starts are spread over that time."""
    seen: list[tuple[float, str]] = []

    async def complete(request: web.Request) -> web.StreamResponse:
        seen.append((time.monotonic(), (await request.json())["prompt"]))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(0.2)
        await response.write(b'data: {"choices":[{"index":0,"text":"a","finish_reason":"length"}]}\n\ndata: [DONE]\n\n')
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    log = Log()
    async with TestServer(app) as server, session_of() as session:
        url = str(server.make_url("")).rstrip("/")
        await run_bursts(
            Endpoint(Target(url=url, model="m"), session, time.monotonic),
            [Burst(experiment=Experiment.STEADY, prompt_tokens=8, output_tokens=1, requests=4, in_turn=2)],
            PromptMaker(),
            Bounds(requests=8, seconds=5.0),
            log,
            is_warm_too=True,
            watch=Watch(session, f"{url}/metrics"),
            clock=time.monotonic,
            tell=lambda *_: None,
        )

    assert (log.ended, log.requests, len(log.measured), len(log.measured[0].answers)) == ("complete", 8, 1, 8)
    assert len({prompt for _, prompt in seen}) == 8
    after = [at - seen[0][0] for at, _ in seen[1:5]]
    assert all(found > least for found, least in zip(after, (0.19, 0.24, 0.29, 0.34), strict=True)), after
