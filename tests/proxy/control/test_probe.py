"""Probes and scrapes of workers that are well, unwell, or send anything but a metrics page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import isnan

import pytest
from aiohttp import web

from proxy.control.probe import (
    HealthState,
    Timing,
    WorkerCells,
    WorkerProbe,
    open_session,
)
from proxy.control.worker_page import WorkerFigures
from routing.topology import Model, Pool, Topology, Worker
from telemetry.catalog import Writer
from telemetry.layout import Layout, gauge_starts, slot
from tests.proxy.control.test_worker_page import PAGE

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.mark.parametrize(
    ("results", "verdicts"),
    [
        ("", []),
        ("+", [True]),
        ("-", [False]),  # the first result decides at once
        ("+-", [True, True]),
        ("+--", [True, True, False]),
        ("+-+-", [True, True, True, True]),  # only failures in a row count
        ("+--+", [True, True, False, True]),
        ("-+-", [False, True, True]),
        ("--+--", [False, False, True, True, False]),
    ],
)
def test_health_verdicts(results: str, verdicts: list[bool]) -> None:
    """Down after two failures in a row, up after one success; each change is told when it happens, and only then."""
    assert HealthState().is_up is None
    state = HealthState()
    before: bool | None = None
    for result, verdict in zip(results, verdicts, strict=True):
        assert state.take(succeeded=result == "+") == (verdict is not before)
        assert state.is_up is verdict
        before = verdict


def a_topology(url: str) -> Topology:
    worker = Worker(index=0, name="w-0", url=url, host="127.0.0.1", port=1, base_path="", authority="127.0.0.1")
    pool = Pool(index=0, model="tiny", name="default", workers=(worker,))
    model = Model(index=0, name="tiny", aliases=(), pools=(pool,))
    return Topology(models=(model,), pools=(pool,), workers=(worker,))


class Probed:
    """A probe and the cells it writes."""

    def __init__(self, probe: WorkerProbe, values: memoryview[float], layout: Layout) -> None:
        self.probe = probe
        self._values = values
        self._base = layout.worker_base(0)

    def __getitem__(self, name: str) -> float:
        return self._values[self._base + slot(f"ridgeline_{name}")]

    @property
    def load(self) -> tuple[float, float, float]:
        return self["worker_running_requests"], self["worker_waiting_requests"], self["worker_kv_usage_ratio"]


@asynccontextmanager
async def probing(
    url: str,
    worker_key: str | None = None,
    make_cells: type[WorkerCells] = WorkerCells,
    read_own: Callable[[], float] = lambda: 0.0,
) -> AsyncIterator[Probed]:
    topology = a_topology(url)
    layout = Layout.of(topology)
    values: memoryview[float] = memoryview(bytearray(8 * layout.size)).cast("d")
    for cell, start in gauge_starts(layout, Writer.CONTROL):
        values[cell] = start
    async with open_session() as session:
        probe = WorkerProbe(
            topology.workers[0],
            session=session,
            cells=make_cells(values, layout, topology.workers[0]),
            worker_key=worker_key,
            timing=Timing(period_seconds=0.02, health_seconds=0.2, scrape_seconds=0.3),
            read_own=read_own,
        )
        yield Probed(probe, values, layout)


@asynccontextmanager
async def a_worker(health: Handler, metrics: Handler, version: Handler | None = None) -> AsyncIterator[str]:
    app = web.Application()
    if version is not None:
        app.router.add_get("/sub/version", version)
    app.router.add_get("/sub/health", health)
    app.router.add_get("/sub/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/sub"
    finally:
        await runner.cleanup()


def answers(status: int = 200, body: bytes = b"", **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={name.replace("_", "-"): text for name, text in headers.items()})

    return answer


async def hangs(_: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


async def sends_half(request: web.Request) -> web.StreamResponse:
    """End the connection within the body that was announced."""
    response = web.StreamResponse()
    response.content_length = len(PAGE)
    await response.prepare(request)
    await response.write(PAGE[: len(PAGE) // 2])
    assert request.transport is not None
    request.transport.close()
    return response


async def trickles(request: web.Request) -> web.StreamResponse:
    """Send a page that never ends, slowly."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(PAGE)
        await asyncio.sleep(0.01)


def is_unknown(load: tuple[float, float, float]) -> bool:
    return all(map(isnan, load))


async def test_well_worker(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that answers is up, its figures are published, and one line says so."""
    caplog.set_level(logging.INFO)
    async with a_worker(answers(), answers(body=PAGE)) as url, probing(url) as probed:
        assert isnan(probed["worker_up"])
        await probed.probe.turn()
        await probed.probe.turn()

        assert probed["worker_up"] == 1.0
        assert probed.load == (3.0, 2.0, 0.25)
        assert probed["scrape_failures_total"] == 0.0
    assert [record.getMessage() for record in caplog.records] == ["worker w-0 is up"]


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (answers(503), "its health check answered 503"),
        (answers(302, Location="http://127.0.0.1:1/"), "its health check answered 302"),
        (hangs, "its health check did not answer within 0.2 s"),
    ],
)
async def test_unwell_worker(health: Handler, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker whose health check fails is down, with one line that says why; its figures are still read."""
    async with a_worker(health, answers(body=PAGE)) as url, probing(url) as probed:
        await probed.probe.turn()

        assert probed["worker_up"] == 0.0
        assert probed.load == (3.0, 2.0, 0.25)
    assert [record.getMessage() for record in caplog.records] == [f"worker w-0 is down: {reason}"]


async def test_worker_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    """A refused connection is a failure of both, told in plain words."""
    async with a_worker(answers(), answers()) as url:
        pass
    async with probing(url) as probed:
        await probed.probe.turn()

        assert probed["worker_up"] == 0.0
        assert is_unknown(probed.load)
        assert probed["scrape_failures_total"] == 1.0
    assert "is down: its health check failed: connection refused" in caplog.text


@pytest.mark.parametrize(
    "metrics",
    [
        answers(500, PAGE),
        answers(404),
        answers(302, PAGE, Location="/sub/health"),
        answers(body=b"<html>vllm:num_requests_running 1</html>\n"),
        answers(body=b"x" * 10_000_000 + b"\n" + PAGE),
        answers(body=PAGE, Content_Encoding="gzip"),
        answers(body=PAGE[:-3]),
        answers(body=PAGE.replace(b"3.0", b"NaN").replace(b"2.0", b"NaN").replace(b"0.25", b"NaN")),
        sends_half,
        hangs,
        trickles,
    ],
)
async def test_failed_scrape_leaves_no_figures(metrics: Handler) -> None:
    """After a scrape that failed in any way the figures are unknown, never old and never 0; the worker stays up."""
    pages = [answers(body=PAGE), metrics]

    async def next_page(request: web.Request) -> web.StreamResponse:
        return await pages.pop(0)(request)

    async with a_worker(answers(), next_page) as url, probing(url) as probed:
        await probed.probe.turn()
        assert probed.load == (3.0, 2.0, 0.25)
        await probed.probe.turn()

        assert is_unknown(probed.load)
        assert probed["scrape_failures_total"] == 1.0
        assert probed["worker_up"] == 1.0


async def test_requests_carry_the_workers_key_and_no_cookie(caplog: pytest.LogCaptureFixture) -> None:
    """The key goes along as Bearer and into no line; a cookie that was set does not come back."""
    caplog.set_level(logging.DEBUG)
    seen: list[tuple[str | None, str | None]] = []

    async def health(request: web.Request) -> web.Response:
        seen.append((request.headers.get("Authorization"), request.headers.get("Cookie")))
        return web.Response(headers={"Set-Cookie": "a=b"})

    async with a_worker(health, answers(500)) as url, probing(url, worker_key="s3cret") as probed:
        await probed.probe.turn()
        await probed.probe.turn()

    assert seen == [("Bearer s3cret", None)] * 2
    assert "s3cret" not in caplog.text


class FaultyCells(WorkerCells):
    """Fails the first time."""

    has_failed = False

    def set_figures(self, figures: WorkerFigures | None) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("a mistake")
        super().set_figures(figures)


async def test_probe_goes_on_after_a_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """A turn that raises is logged, and the next one is made all the same."""
    async with a_worker(answers(), answers(body=PAGE)) as url, probing(url, make_cells=FaultyCells) as probed:
        task = asyncio.create_task(probed.probe.run(0.0))
        async with asyncio.timeout(5):
            while True:
                if probed.load == (3.0, 2.0, 0.25):
                    break
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert "a mistake" in caplog.text


def test_unknown_is_not_zero() -> None:
    """A figure that a page does not have is published as NaN and counts no failure."""
    topology = a_topology("http://127.0.0.1:1")
    layout = Layout.of(topology)
    values: memoryview[float] = memoryview(bytearray(8 * layout.size)).cast("d")
    cells = WorkerCells(values, layout, topology.workers[0])

    cells.set_figures(WorkerFigures(running=1.0, waiting=None, kv_usage_ratio=None))

    base = layout.worker_base(0)
    assert values[base + slot("ridgeline_worker_running_requests")] == 1.0
    assert isnan(values[base + slot("ridgeline_worker_waiting_requests")])
    assert isnan(values[base + slot("ridgeline_worker_kv_usage_ratio")])
    assert values[base + slot("ridgeline_scrape_failures_total")] == 0.0


async def test_a_worker_that_is_another_process_than_before_has_been_restarted(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted and told once for each new process; a page that does not say when it began tells nothing."""
    caplog.set_level(logging.WARNING)
    started = [b"1.79597302361e+09", b"1.79597302361e+09", None, b"1.795973099e+09", b"1.795973099e+09"]

    async def page(_: web.Request) -> web.Response:
        moment = started.pop(0)
        return web.Response(body=PAGE + (b"" if moment is None else b"process_start_time_seconds %b\n" % moment))

    async with a_worker(answers(), page) as url, probing(url) as probed:
        for restarts in (0.0, 0.0, 0.0, 1.0, 1.0):
            await probed.probe.turn()
            assert probed["worker_restarts_total"] == restarts
    assert [record.getMessage() for record in caplog.records] == ["worker w-0 has been restarted"]


async def test_a_worker_is_asked_for_its_version_once_for_each_process(caplog: pytest.LogCaptureFixture) -> None:
    """And once more after a restart, which may have brought another one; that is told."""
    caplog.set_level(logging.WARNING)
    started, versions, asked = [1.0, 1.0, 2.0, 2.0], ["0.11.0", "0.12.0"], []

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=PAGE + b"process_start_time_seconds %f\n" % started.pop(0))

    async def version(_: web.Request) -> web.Response:
        asked.append(len(started))
        return web.json_response({"version": versions.pop(0)})

    async with a_worker(answers(), page, version) as url, probing(url) as probed:
        found = []
        for _ in range(4):
            await probed.probe.turn()
            found.append(probed.probe.engine_version)

    assert found == ["0.11.0", "0.11.0", "0.12.0", "0.12.0"]
    assert len(asked) == 2
    assert "worker w-0 runs vLLM 0.12.0 now, before it was 0.11.0" in caplog.text


@pytest.mark.parametrize(
    ("pages", "turns_asked", "version"),
    [
        ([(404, b"no"), (200, b'{"version":"1"}')], 1, None),  # something else than vLLM is not asked again and again
        ([(200, b"<html>"), (200, b'{"version":"1"}')], 1, None),
        ([(200, b"9" * 5000), (200, b'{"version":"1"}')], 1, None),
        ([(503, b"not yet"), (200, b'{"version":"1"}')], 2, "1"),
    ],
)
async def test_what_names_no_version(pages: list[tuple[int, bytes]], turns_asked: int, version: str | None) -> None:
    """Who is not there yet is asked at the next turn."""
    asked = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal asked
        status, body = pages[asked]
        asked += 1
        return web.Response(status=status, body=body)

    async with a_worker(answers(), answers(body=PAGE), answer) as url, probing(url) as probed:
        for _ in range(3):
            await probed.probe.turn()

    assert (asked, probed.probe.engine_version) == (turns_asked, version)


PAGE_OF_LOAD = b'vllm:num_requests_running{engine="0"} 7.0\nvllm:num_requests_waiting{engine="0"} 2.0\n'


async def test_what_a_worker_has_beyond_our_own_requests_is_others() -> None:
    """Own ones are those before or after the page, whichever are more; a page that does not come makes it unknown again."""
    own = iter([3.0, 1.0, 1.0, 4.0, 0.0, 0.0])
    pages = iter([PAGE_OF_LOAD, PAGE_OF_LOAD])

    async def page(_: web.Request) -> web.Response:
        body = next(pages, None)
        return web.Response(status=500) if body is None else web.Response(body=body)

    async with a_worker(answers(), page) as url, probing(url, read_own=lambda: next(own)) as probed:
        assert probed.probe.others is None
        found = []
        for _ in range(3):
            await probed.probe.turn()
            found.append(probed.probe.others)

    assert found == [6.0, 5.0, None]
