"""Abuse by size, by number and by what a body says: memory stays bounded, others are served, nobody else is asked."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.http1 import chunk, last_chunk
from tests.integration.answers import chat_answer, plain, sse_head, usage_of
from tests.integration.gateway import Gateway
from tests.integration.load import rss_bytes, volume
from tests.integration.raw_client import RawClient
from tests.integration.scene import Scene, chat_body, running_scene
from tests.integration.steps import Send, Step, Wait

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

MIB = 1024 * 1024
PIECE = b"x" * MIB
KEY = "sk-" + "k" * 9000
LINE_MIB = volume(100, 500)
BODIES, BODY_MIB = volume(10, 40), volume(8, 20)
ANSWER = [Send(chat_answer("x", usage=usage_of(5, 3)))]
BODY = chat_body(stream=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway whose clients have a second for a head or a body, and whose only key is 9 kB long."""
    config = {
        "limits": {"request_head_seconds": 1, "request_body_seconds": 1},
        "keys": [{"name": "app", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
    }
    async with running_scene(config=config, headers=[("Authorization", f"Bearer {KEY}")]) as one:
        await one.ask(ANSWER, body=BODY)
        yield one


async def drained(client: RawClient, most_seconds: float = 30) -> int:
    """Read until the other side closes, keeping nothing; how many bytes there were."""
    count = 0
    async with asyncio.timeout(most_seconds):
        while data := await client.read_some(most_seconds):
            count += len(data)
    return count


async def highest_rss_bytes(gateway: Gateway, until: asyncio.Task[int]) -> int:
    """The most that the serving process held while the task ran, seen every 20 ms."""
    most = rss_bytes(gateway)
    while not until.done():
        await asyncio.sleep(0.02)
        most = max(most, rss_bytes(gateway))
    return most


def line_without_end(mib: int) -> list[Step]:
    return [Send(sse_head()), Send(chunk(b"data: ")), *[Send(chunk(PIECE))] * mib, Send(last_chunk())]


def huge_error(mib: int) -> list[Step]:
    body = b'{"error": {"message": "'
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (
        len(body) + mib * MIB + 3
    )
    return [Send(head + body), *[Send(PIECE)] * mib, Send(b'"}}')]


@pytest.mark.parametrize("asks_for_usage", [True, False])
@pytest.mark.parametrize("kind", ["a line without end", "an error of 120 MB"])
async def test_memory_stays_flat_whatever_a_worker_sends(scene: Scene, kind: str, asks_for_usage: bool) -> None:
    """A hundred megabytes on one line or as an error's text pass through whole, and hardly any of it is held at a time."""
    script = line_without_end(LINE_MIB) if kind == "a line without end" else huge_error(120)
    body = chat_body() if asks_for_usage else {**BODY, "stream": True}
    request_id = scene.plays(script)
    before = rss_bytes(scene.gateway)

    async with await scene.connect() as client:
        await client.send(scene.request(request_id, body, headers=[("Connection", "close")]))
        reading = asyncio.create_task(drained(client))
        held = await highest_rss_bytes(scene.gateway, reading) - before
        read = await reading
    record = await scene.record(request_id)

    assert read > sum(len(step.data) for step in script if isinstance(step, Send)) - 20_000
    assert held < 24 * MIB
    assert record["outcome"] == ("truncated" if kind == "a line without end" else "client_error")
    assert record["ttft_seconds"] is None


async def test_large_bodies_are_held_little_more_than_once() -> None:
    """While large bodies arrive and wait for their worker, the process grows by at most twice their size."""
    body = {**BODY, "messages": [{"role": "user", "content": "x" * (BODY_MIB * MIB)}]}
    async with running_scene() as scene:
        await scene.ask(ANSWER, body=BODY)
        before = rss_bytes(scene.gateway)

        async def ask() -> bool:
            seen = await scene.ask([Wait(1.0), *ANSWER], body=body)
            return seen.answer.head is not None and seen.answer.head.status == 200

        async def ask_all() -> int:
            return sum(await asyncio.gather(*(ask() for _ in range(BODIES))))

        asking = asyncio.create_task(ask_all())
        held = await highest_rss_bytes(scene.gateway, asking) - before

        assert await asking == BODIES
        assert 0.75 < held / (BODIES * BODY_MIB * MIB) < 2


async def test_fifty_clients_that_read_nothing_are_held_at_fifty_bounded_amounts(scene: Scene) -> None:
    """Of 50 answers of 20 MB that nobody reads, the serving process holds less than a megabyte each; others are served."""
    script = [Send(sse_head()), *[Send(chunk(b"data: {}\n\n" + PIECE))] * 20]
    before = rss_bytes(scene.gateway)

    async with AsyncExitStack() as stack:
        for _ in range(50):
            client = await stack.enter_async_context(await scene.connect(receive_buffer_bytes=65536))
            request_id = scene.plays(script)
            await client.send(scene.request(request_id, chat_body()))
            await scene.arrival(request_id)
        await asyncio.sleep(1)
        held = rss_bytes(scene.gateway) - before
        started_at = time.monotonic()
        seen = await scene.ask(ANSWER, body=BODY)
        took_seconds = time.monotonic() - started_at
    await scene.quiet()

    assert held < 50 * MIB
    assert (seen.record["outcome"], took_seconds < 1) == ("ok", True)


@pytest.mark.parametrize("part", ["head", "body"])
async def test_five_hundred_trickling_clients_keep_nobody_out(scene: Scene, part: str) -> None:
    """While they send a byte now and then others are served, and at the limit all of them get 408 and are closed."""
    whole = scene.request("trickle", BODY)
    start = whole[:40] if part == "head" else whole[: whole.index(b"\r\n\r\n") + 8]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await scene.connect()) for _ in range(500)]
        began_at = time.monotonic()
        for client in clients:
            await client.send(start)
        for client in clients:
            await client.send(whole[len(start) : len(start) + 1])
        seen = await scene.ask(ANSWER, body=BODY)
        statuses = [(await client.read_answer()).status for client in clients]
        took_seconds = time.monotonic() - began_at

    assert seen.record["outcome"] == "ok"
    assert seen.record["e2e_seconds"] < 0.9
    assert set(statuses) == {408}
    assert took_seconds < 6


async def test_heads_of_nine_kilobytes_pass_in_both_directions(scene: Scene) -> None:
    """A long key and sixty cookies from a client, a long header from a worker: below the limit they are ordinary."""
    cookies = "; ".join(f"name{number}=" + "v" * 120 for number in range(60))
    script = [Send(plain(200, {"choices": []}, [("x-long", "y" * 9000)]))]

    seen = await scene.ask(script, body=BODY, headers=[("Cookie", cookies)])

    assert seen.answer.status == 200
    assert seen.answer.head is not None
    assert seen.answer.head.get("x-long") == "y" * 9000


async def test_a_body_cannot_say_where_a_request_goes(scene: Scene) -> None:
    """Addresses and keys in a body or in headers are passed as they are, or not at all, and nobody connects to them."""
    connections = 0

    def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    async with await asyncio.start_server(count, "127.0.0.1", 0) as elsewhere:
        url = f"http://127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}"
        fields = {"api_base": url, "base_url": url, "url": url, "extra_body": {"api_base": url, "api_key": "sk-x"}}
        headers = [(name, url) for name in ("X-Target-Host", "X-Forwarded-Host", "X-Original-URL", "Forwarded", "X-Base-Url")]
        seen = await scene.ask(ANSWER, body=chat_body(stream=False, **fields), headers=headers)
        [request] = scene.arrivals(seen.record["request_id"])

    assert seen.answer.status == 200
    assert url.encode() in request.body
    assert request.headers["host"] == scene.worker.url[7:]
    assert connections == 0
