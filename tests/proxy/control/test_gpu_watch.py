"""Exporters that are well, away, slow or of something else, and what is known of workers' GPUs then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from proxy.config.dcgm import DcgmSource
from proxy.config.settings import parse_config
from proxy.config.wiring import build_topology, gpu_sources
from proxy.control.gpu_watch import MOST_PAGE_BYTES, GpuWatch
from proxy.control.probe import open_session
from tests.proxy.control.clocks import Clock
from tests.telemetry.dcgm_pages import a_page

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def an_exporter(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def watching(ask_seconds: float = 2.0) -> AsyncIterator[GpuWatch]:
    async with open_session() as session:
        yield GpuWatch(session, Clock().steady, ask_seconds)


async def test_each_exporter_is_asked_once_for_all_its_workers(caplog: pytest.LogCaptureFixture) -> None:
    """Each gets its own GPUs; a worker that is gone is forgotten."""
    caplog.set_level(logging.INFO)
    asked: list[str | None] = []

    async def page(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Accept-Encoding"))
        return web.Response(body=a_page(2) + a_page(1, host="node-2", DCGM_FI_DEV_SM_CLOCK=1200))

    async with an_exporter(page) as url, watching() as watch:
        lately = watch.lately
        both = DcgmSource(url, (("Hostname", ("node-1",)),))
        slow = DcgmSource(url, (("Hostname", ("node-2",)), ("gpu", ("0",))))
        await watch.turn({"w-0": both, "w-1": slow})
        found = {name: each.newest for name, each in watch.lately.items()}
        await watch.turn({"w-1": slow})

    assert asked == ["identity"] * 2
    assert (found["w-0"].gpus, found["w-1"].sm_clock_hertz) == (2, 1.2e9)
    assert lately is watch.lately
    assert list(lately) == ["w-1"]
    assert caplog.messages == []


async def hangs(_: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


async def is_endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(2 * MOST_PAGE_BYTES // 65536):
        await response.write(b"x" * 65536)
    return response


def says(status: int = 200, body: bytes = b"", **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return answer


@pytest.mark.parametrize(
    ("handler", "wrong"),
    [
        (says(404), "it answered 404"),
        (says(302, Location="/metrics"), "it answered 302"),
        (says(body=b"vllm:num_requests_running 3\n"), "its page tells of no GPU"),
        (says(body=a_page(host="elsewhere")), "none of its GPUs has the labels of `dcgm`"),
        (hangs, "it did not answer within 0.3 s"),
        (is_endless, "its page is too long"),
    ],
)
async def test_what_cannot_be_seen_is_told_once(handler: Handler, wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    """With the exporter and what is wrong with it, and again when it is another thing; nothing is known meanwhile."""
    caplog.set_level(logging.INFO)
    async with an_exporter(handler) as url, watching(ask_seconds=0.3) as watch:
        source = DcgmSource(url, (("Hostname", ("node-1",)),))
        for _ in range(2):
            await watch.turn({"w-0": source})
        newest = watch.lately["w-0"].newest

    assert newest is None
    told = [record.getMessage() for record in caplog.records if record.name == "proxy.control.gpu_watch"]
    assert told == [f"the GPUs of worker w-0 are not seen: of {url}, {wrong}"]


async def test_an_exporter_that_comes_back_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """What it said before it went is not what the GPUs do now."""
    caplog.set_level(logging.INFO)
    bodies = [(200, a_page()), (500, b""), (200, a_page())]
    seen = []

    async def page(_: web.Request) -> web.Response:
        status, body = bodies.pop(0)
        return web.Response(status=status, body=body)

    async with an_exporter(page) as url, watching() as watch:
        for _ in range(3):
            await watch.turn({"w-0": DcgmSource(url)})
            seen.append(watch.lately["w-0"].newest is not None)

    assert seen == [True, False, True]
    assert [text.split(":")[0] for text in caplog.messages] == [
        "the GPUs of worker w-0 are not seen",
        "the GPUs of worker w-0 are seen again",
    ]


async def test_nobody_at_the_address() -> None:
    """Nothing is raised."""
    async with watching() as watch:
        await watch.turn({"w-0": DcgmSource("http://127.0.0.1:1/metrics")})

        assert watch.lately["w-0"].newest is None


def test_where_the_gpus_of_each_worker_are_told_of() -> None:
    """By its pool, with host and name filled in, or by itself; of others nothing is asked."""
    config = parse_config(
        """
models:
  - name: one
    pools:
      - name: short
        dcgm: {url: "http://{host}:9400/metrics", labels: {Hostname: "{host}", gpu: [0, 1], pod: "{worker}"}}
        workers:
          - {name: w-0, url: "http://node-1:8000"}
          - {name: w-1, url: "http://[fd00::2]:8000"}
          - {name: w-2, url: "http://node-1:8001", dcgm: {url: "http://other:9400/metrics", labels: {gpu: 7}}}
      - {name: long, max_total_tokens: null, workers: [{name: w-3, url: "http://node-3:8000"}]}
  - {name: two, workers: [{name: w-4, url: "http://node-4:8000", dcgm: {url: "http://node-4:9400/metrics"}}]}
""".replace("- name: short", "- name: short\n        max_total_tokens: 1000"),
        {},
        "test",
    )

    assert gpu_sources(config, build_topology(config)) == {
        "w-0": DcgmSource("http://node-1:9400/metrics", (("Hostname", ("node-1",)), ("gpu", ("0", "1")), ("pod", ("w-0",)))),
        "w-1": DcgmSource(
            "http://[fd00::2]:9400/metrics", (("Hostname", ("fd00::2",)), ("gpu", ("0", "1")), ("pod", ("w-1",)))
        ),
        "w-2": DcgmSource("http://other:9400/metrics", (("gpu", ("7",)),)),
        "w-4": DcgmSource("http://node-4:9400/metrics"),
    }
