"""Watching a worker's metrics page while it is probed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.probing import running
from proxy.probing.running import Watch

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
