"""The live page's calls: who may read, what comes, and what happens to viewers that are many, slow or gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import msgspec
import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from proxy.admin.access import COOKIE, SESSION_SECONDS, AdminAccess
from proxy.admin.routes import admin_app
from proxy.admin.token import AdminRules, digest_of
from proxy.control.drifting import DriftWatch
from proxy.control.fleet import open_control_cells
from proxy.control.judging import Judge
from proxy.control.live import UNSEEN_SECONDS, LiveFeed
from proxy.control.view import GatewayView
from proxy.rundir import STOPPING_MARK, serving_cells
from telemetry.catalog import Writer
from telemetry.cells import create_cells
from telemetry.layout import Layout
from telemetry.record import Cause, Outcome
from tests.dashboards.live.requests_made import a_record
from tests.proxy.control.clocks import Clock
from tests.proxy.fleets import a_topology, eventually, running_fleet

TWO = a_topology({"default": ["w-0", "w-1"]})


class Page:
    """The admin routes with a feed that is looked after by hand."""

    def __init__(self, client: TestClient, feed: LiveFeed) -> None:
        self.client = client
        self.feed = feed


async def a_page(
    stack: AsyncExitStack, folder: Path, address: str = "127.0.0.1:8081", access: AdminAccess | None = None, **settings: Any
) -> Page:
    fleet = await stack.enter_async_context(running_fleet(folder, TWO))
    feed = LiveFeed(fleet._view, Judge(), DriftWatch(), **settings)
    app = admin_app(fleet._view, fleet, address, feed=feed, access=access)
    return Page(await stack.enter_async_context(TestClient(TestServer(app))), feed)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Page]]]:
    async with AsyncExitStack() as stack:
        yield partial(a_page, stack, tmp_path)


@pytest.fixture
async def page(start: Callable[..., Awaitable[Page]]) -> Page:
    return await start()


async def next_event(answer: ClientResponse) -> tuple[str, object]:
    """The next event of a stream, and its data."""
    name = ""
    while True:
        line = (await answer.content.readline()).decode().rstrip("\n")
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            return name, json.loads(line[6:])


async def test_the_fleet_is_told(page):
    """Pools with their workers, as JSON that nobody keeps."""
    answer = await page.client.get("/api/fleet")

    fleet = await answer.json()
    assert [worker["worker"] for worker in fleet["pools"][0]["workers"]] == ["w-0", "w-1"]
    assert answer.headers["Cache-Control"] == "no-store"


async def test_a_gateway_that_is_being_stopped_says_so(page, tmp_path):
    """From the supervisor's mark on: what still runs looks well, and is about to end."""
    (tmp_path / STOPPING_MARK).touch()

    fleet = await (await page.client.get("/api/fleet")).json()

    assert fleet["gateway"]["is_stopping"]
    assert "stopping" in {finding["kind"] for finding in fleet["findings"]}


async def test_the_api_has_an_index(page):
    """Whoever guesses the beginning finds the rest, and all of it is there."""
    page.feed.take([a_record("r-1")])
    for path in ("/api", "/api/"):
        index = await (await page.client.get(path)).json()
        assert "/api/fleet" in index

    for path in index:
        if path not in ("/", "/api/stream"):
            assert (await page.client.get(path.replace("{id}", "r-1"))).status == 200, path


async def test_a_viewer_gets_the_fleet_and_what_ends(page):
    """First everything there is, then what is new, each record once."""
    page.feed.take([a_record("r-1"), a_record("r-2")])
    async with page.client.get("/api/stream") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert (answer.headers["Cache-Control"], answer.headers["X-Accel-Buffering"]) == ("no-store", "no")
        first = [await next_event(answer) for _ in range(3)]
        page.feed.take([a_record("r-3")])
        async with page.feed._looking:
            await page.feed._look()
        then = [await next_event(answer) for _ in range(2)]
        page.feed.take([a_record("r-4")])
        async with page.feed._looking:
            await page.feed._look()
        last = [await next_event(answer) for _ in range(2)]

    assert [name for name, _ in first + then] == ["fleet", "hour", "records", "fleet", "records"]
    assert [row["id"] for row in first[2][1]] == ["r-2", "r-1"]
    assert [row["id"] for row in then[1][1]] == ["r-3"]
    assert [row["id"] for row in last[1][1]] == ["r-4"]


async def test_a_viewer_gets_a_row_again_whose_cause_is_known_better(page):
    """With the next that ends; what is asked for later says the same."""
    riddle = a_record("r-1", deviations=("ttft",), causes=(Cause("unexplained", 2.0),))
    page.feed.take([riddle])
    async with page.client.get("/api/stream") as answer:
        for _ in range(3):
            await next_event(answer)
        solved = msgspec.structs.replace(riddle, causes=(Cause("slower_than_peers", 2.0),))
        page.feed.take([a_record("r-2")])
        page.feed.revise([solved])
        await page.feed._look()
        found = dict([await next_event(answer) for _ in range(2)])
    why = await (await page.client.get("/api/records/r-1/why")).json()

    assert [(row["id"], [name for name, _ in row["causes"]]) for row in found["records"]] == [
        ("r-2", []),
        ("r-1", ["slower_than_peers"]),
    ]
    assert [cause["cause"] for cause in why["causes"]] == ["slower_than_peers"]


async def test_a_viewer_gets_what_went_wrong_before_the_newest(page):
    """Behind the newest requests come older ones that failed or deviated, and none twice."""
    page.feed.take([a_record("old"), a_record("cut", outcome=Outcome.TRUNCATED)])
    page.feed.take([a_record(f"r-{number}", deviations=("ttft",) if number == 149 else ()) for number in range(150)])

    async with page.client.get("/api/stream") as answer:
        await next_event(answer)
        await next_event(answer)
        _, rows = await next_event(answer)

    assert [row["id"] for row in rows] == [*(f"r-{number}" for number in range(149, 49, -1)), "cut"]


async def test_text_that_is_no_text_costs_no_other_record(page):
    """A lone surrogate out of some worker's answer appears as its escape."""
    page.feed.take([a_record("r-1"), a_record("r-2", fault="\ud800")])

    async with page.client.get("/api/stream") as answer:
        await next_event(answer)
        await next_event(answer)
        _, rows = await next_event(answer)

    assert [(row["id"], row["fault"]) for row in rows] == [("r-2", "\\ud800"), ("r-1", None)]


async def test_viewers_are_bounded(start):
    """One too many is told to come again; a place is free as soon as someone leaves."""
    page = await start(most_viewers=1)
    async with page.client.get("/api/stream"):
        refused = await page.client.get("/api/stream")
        assert (refused.status, "Retry-After" in refused.headers) == (503, True)
    page.feed._tell()
    await eventually(lambda: page.feed.viewers == 0)

    async with page.client.get("/api/stream") as answer:
        assert answer.status == 200


async def test_a_viewer_that_does_not_read_is_dropped(start):
    """Its place is free soon, and it holds up nobody."""
    page = await start(write_seconds=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", page.client.port, limit=1024)
    writer.write(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await eventually(lambda: page.feed.viewers == 1)
    await page.feed.fleet()
    page.feed._fleet = b"x" * 20_000_000
    page.feed._tell()

    await eventually(lambda: page.feed.viewers == 0)

    reader.feed_eof()
    writer.close()


async def test_streams_end_with_the_listener(page):
    """A browser that looks does not hold up the end of the gateway."""
    async with page.client.get("/api/stream") as answer:
        page.feed.close()
        async with asyncio.timeout(5):
            assert (await answer.content.read()).startswith(b"retry: ")


@pytest.mark.parametrize("way", ["the session has ended", "the token has been replaced", "the session is over"])
async def test_a_stream_ends_with_the_right_to_see_it(start, way):
    """Who has signed out, or whose token is valid no more, sees nothing that happens from then on."""
    now = 0.0
    access = AdminAccess("0.0.0.0:8081", AdminRules(digests=(digest_of("a" * 16),)), clock=lambda: now)
    page = await start(access=access)
    cookie = access.begin_session("a" * 16)
    async with page.client.get("/api/stream", headers={"Cookie": f"{COOKIE}={cookie}"}) as answer:
        for _ in range(3):
            await next_event(answer)
        page.feed.take([a_record("r-1")])
        if way == "the session has ended":
            access.end_session(cookie)
        elif way == "the token has been replaced":
            access.follow(AdminRules(digests=(digest_of("b" * 16),)))
        else:
            now = SESSION_SECONDS + 1.0
        async with page.feed._looking:
            await page.feed._look()
        async with asyncio.timeout(5):
            assert (await answer.content.read()).strip() == b""


@pytest.mark.parametrize("path", ["/api/fleet", "/api/stream", "/api/records", "/api/state", "/metrics", "/api/"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8081", "localhost.evil.example", "127.0.0.1.evil.example", ""])
async def test_a_foreign_name_reads_nothing(page, path, host):
    """A site that makes its own name point here (DNS rebinding) learns nothing of the fleet."""
    answer = await page.client.get(path, headers={"Host": host})

    assert answer.status == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8081", "[::1]:8081", "10.1.2.3:8081"])
async def test_own_names_and_addresses_read(page, host):
    """Through tunnels and forwarded ports, too."""
    assert (await page.client.get("/api/fleet", headers={"Host": host})).status == 200


async def test_a_request_is_explained(page):
    """As long as it is among the last ones; its whole record, too."""
    page.feed.take([a_record("r-1")])

    why = await (await page.client.get("/api/records/r-1/why")).json()
    record = await (await page.client.get("/api/records/r-1")).json()

    assert why["summary"].startswith("It ended well.")
    assert record["request_id"] == "r-1"
    for path in ("/api/records/r-2", "/api/records/r-2/why"):
        assert (await page.client.get(path)).status == 404


async def test_an_explanation_survives_text_that_is_no_text(page):
    """A lone surrogate out of a worker's answer does not hide why the request failed."""
    page.feed.take([a_record("r-1", fault="\ud800", outcome=Outcome.TRUNCATED)])

    answer = await page.client.get("/api/records/r-1/why")

    assert answer.status == 200
    assert "stopped before it was complete" in (await answer.json())["summary"]


async def test_a_wall_clock_that_is_set_makes_nothing_last_for_an_hour(start: Callable[..., Awaitable[Page]]) -> None:
    """How long something has been so is told as before; minutes are shown by the wall clock as it goes now."""
    clock = Clock()
    clock.now = 600.0
    page = await start(clock=clock.steady)
    await page.feed._look()

    clock.now, clock.set_by_seconds = 630.0, -3600.0
    await page.feed._look()

    fleet, hour = (json.loads(text) for text in (await page.feed.fleet(), page.feed.hour()))
    assert fleet["now_unix_seconds"] == 630.0
    assert [minute["begins_unix_seconds"] for minute in hour[0]["minutes"]] == [600.0 - 3600.0]


async def test_looks_that_nobody_sees_are_fewer(start: Callable[..., Awaitable[Page]]) -> None:
    """One in five seconds remembers since when things are so, and one at the end of each minute keeps the hour."""
    clock = Clock()
    page = await start(clock=clock.steady)
    await page.feed.fleet()
    looked_at = page.feed._looked_at

    assert page.feed.can_wait(looked_at + UNSEEN_SECONDS - 0.1)
    assert not page.feed.can_wait(looked_at + UNSEEN_SECONDS)
    page.feed.viewers = 1
    assert not page.feed.can_wait(looked_at + 1.0)
    page.feed.viewers = 0
    clock.now = 60.0
    assert not page.feed.can_wait(looked_at + 1.0)


async def test_a_large_fleet_holds_nobody_up(tmp_path):
    """With 600 workers that all had requests, no turn of the loop computes for longer than 5 ms."""
    large = a_topology({"default": [f"w-{number}" for number in range(600)]})
    cells = open_control_cells(tmp_path, large)
    create_cells(serving_cells(tmp_path, 0), Layout.of(large), Writer.SERVING)
    view = GatewayView(version="1", run_dir=tmp_path, processes=1, topology=large, control=cells.values, log_dropped=lambda: 0)
    feed = LiveFeed(view, Judge(), DriftWatch())
    slow = {"ttft_expected_seconds": 0.05, "ttft_floor_seconds": 0.01, "deviations": ("ttft",)}
    feed.take([a_record(f"r-{number}", worker=f"w-{number % 600}", **slow) for number in range(6000)])
    turns: list[float] = []

    async def watch() -> None:
        while True:
            began_at = process_time()
            await asyncio.sleep(0)
            turns.append(process_time() - began_at)

    async def longest() -> float:
        turns.clear()
        await feed._look()
        return max(turns)

    watching = asyncio.create_task(watch())
    try:
        assert min([await longest() for _ in range(3)]) < 0.005
    finally:
        watching.cancel()
    assert len(turns) > 60
