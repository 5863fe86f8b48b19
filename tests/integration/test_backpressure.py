"""Slow readers and many streams at once: memory stays bounded, the worker is held up, and nobody else feels it."""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import overload

import pytest
import pytest_asyncio

from tests.http1 import chunk, last_chunk
from tests.integration.answers import DONE, chat_answer, chat_events, event, sse_head, stream_of, usage_of
from tests.integration.load import rss_bytes
from tests.integration.raw_client import End
from tests.integration.scene import Scene, chat_body, running_scene
from tests.integration.steps import Send, Step, Until

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

MIB = 1024 * 1024
EVENT_BYTES = 60_000
EVENTS = 1000  # 60 MB in all
HELD_BYTES = 48 * MIB  # the kernel may keep up to 33 MB for a socket that is not read


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway with a model of two workers, and one whose clients have a second to take their bytes."""
    pools = {"tiny": {}, "pair": {}, "gap": {"limits": {"token_gap_seconds": 1}}, "strict": {"limits": {"write_seconds": 1}}}
    async with running_scene(pools, workers={"pair": 2}) as one:
        yield one


class Counted(Sequence[Step]):
    """A script that knows how many of its steps have begun."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.begun = 0
        self._steps = steps

    def __iter__(self) -> Iterator[Step]:
        for step in self._steps:
            self.begun += 1
            yield step

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        return self._steps[index]


def flood() -> Counted:
    """A stream of large events, all different, as fast as they are taken."""
    events = chat_events([f"{number:06}" + "x" * EVENT_BYTES for number in range(EVENTS)], usage=usage_of(5, EVENTS))
    return Counted(stream_of(events))


def body_of(script: Counted) -> bytes:
    """What a client gets of it: every event, without the chunks."""
    found = []
    for step in list(script._steps)[1:-1]:
        assert isinstance(step, Send)
        found.append(step.data.partition(b"\r\n")[2][:-2])
    return b"".join(found)


async def until_still(script: Counted, seconds: float = 0.5) -> int:
    """Wait until a script makes no more headway; the step it is at."""
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < seconds:
        if script.begun != seen:
            seen, since = script.begun, time.monotonic()
        await asyncio.sleep(0.02)
    return seen


@pytest.mark.parametrize("asks", [True, False])
async def test_a_client_that_does_not_read_holds_its_worker_up(scene: Scene, asks: bool) -> None:
    """The worker's writes stop, the serving process holds little, and when the client reads at last it gets every byte."""
    script = flood()
    request_id = scene.plays(script)
    await scene.ask(stream_of(chat_events(["warm"])))
    before = rss_bytes(scene.gateway)

    async with await scene.connect(receive_buffer_bytes=65536) as client:
        body = chat_body() if asks else {**chat_body(stream=False), "stream": True}
        await client.send(scene.request(request_id, body))
        await scene.arrival(request_id)
        held_at = await until_still(script)
        held = rss_bytes(scene.gateway)
        assert held_at * EVENT_BYTES < HELD_BYTES
        assert held - before < 8 * MIB
        await asyncio.sleep(0.5)
        assert script.begun == held_at
        answer = await client.read_answer(timeout_seconds=60)
    record = await scene.record(request_id)
    expected = body_of(script)
    if not asks:  # the usage event was the gateway's own question
        start = expected.rindex(b"data: {")
        expected = expected[:start] + expected[expected.rindex(DONE) :]

    assert answer.end is End.COMPLETE
    assert len(answer.body) == len(expected)
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(expected).digest()
    assert (record["outcome"], record["completion_tokens"]) == ("ok", EVENTS)
    assert record["client_wait_seconds"] > 0.8
    assert record["tpot_seconds"] is None  # it would be the client's pace
    assert rss_bytes(scene.gateway) - before < 16 * MIB


async def test_other_streams_keep_their_pace(scene: Scene) -> None:
    """While one client does not read, and while it reads all at once, another stream's tokens come when they are written."""
    script = flood()
    slow_id = scene.plays(script)
    gates = [asyncio.Event() for _ in range(60)]
    token = chunk(event(chat_events(["t"])[1]))
    other_id = scene.plays(
        [Send(sse_head()), *[step for gate in gates for step in (Until(gate), Send(token))], Send(last_chunk())]
    )
    delays = []

    async with await scene.connect(receive_buffer_bytes=65536) as slow, await scene.connect() as other:
        await slow.send(scene.request(slow_id, chat_body()))
        await until_still(script, 0.3)
        await other.send(scene.request(other_id, chat_body()))
        await scene.arrival(other_id)
        for gate in gates:
            began = time.monotonic()
            gate.set()
            await other.read_until(b"\n\n")
            delays.append(time.monotonic() - began)
            await asyncio.sleep(0.01)

    assert statistics.median(delays) < 0.01, delays
    assert max(delays) < 0.05, delays
    assert (await scene.record(slow_id))["outcome"] == "client_gone"


@pytest.mark.parametrize("way", ["close", "reset", "half_close"])
async def test_a_client_that_does_not_read_and_leaves(scene: Scene, way: str) -> None:
    """A client that leaves while its worker is held up is noticed within a second."""
    script = flood()
    request_id = scene.plays(script)
    async with await scene.connect(receive_buffer_bytes=65536) as client:
        await client.send(scene.request(request_id, chat_body()))
        request = await scene.arrival(request_id)
        await until_still(script, 0.2)
        left_at = time.monotonic()
        getattr(client, way)()
        closed_at = await request.closed(timeout_seconds=2)

    record = await scene.record(request_id)
    assert closed_at - left_at < 1
    assert (record["outcome"], record["phase"]) == ("client_gone", "answer")
    await scene.quiet()


async def test_a_worker_that_is_held_up_is_not_silent(scene: Scene) -> None:
    """While a client does not read, the limit on token gaps does not run: the silence is not the worker's."""
    script = flood()
    request_id = scene.plays(script)
    async with await scene.connect(receive_buffer_bytes=65536) as client:
        await client.send(scene.request(request_id, chat_body("gap")))
        await asyncio.sleep(2.2)
        answer = await client.read_answer(timeout_seconds=60)

    assert (answer.end, (await scene.record(request_id))["outcome"]) == (End.COMPLETE, "ok")


async def test_a_client_that_takes_nothing_for_too_long_is_given_up(scene: Scene) -> None:
    """After the write limit both ends are closed: the worker stops, and the record says whose silence it was."""
    script = flood()
    request_id = scene.plays(script)
    async with await scene.connect(receive_buffer_bytes=65536) as client:
        await client.send(scene.request(request_id, chat_body("strict")))
        request = await scene.arrival(request_id)
        began = time.monotonic()
        closed_at = await request.closed(timeout_seconds=5)
        record = await scene.record(request_id)
        answer = await client.read_answer(timeout_seconds=20)

    assert 0.9 < closed_at - began < 3
    assert answer.end in (End.CUT, End.RESET)
    assert (record["outcome"], record["reason"]) == ("timeout", "write_timeout")
    await scene.quiet()


async def test_a_slow_client_of_a_plain_answer(scene: Scene) -> None:
    """A large plain answer is held up in the same way and arrives whole."""
    text = "y" * (30 * MIB)
    request_id = scene.plays([Send(chat_answer(text, usage=usage_of(5, 3)))])
    before = rss_bytes(scene.gateway)
    async with await scene.connect(receive_buffer_bytes=65536) as client:
        await client.send(scene.request(request_id, chat_body(stream=False)))
        await scene.arrival(request_id)
        await asyncio.sleep(0.7)
        held = rss_bytes(scene.gateway)
        answer = await client.read_answer(timeout_seconds=30)

    assert held - before < 12 * MIB  # the meter keeps a plain answer of up to 8 MiB
    assert answer.json()["choices"][0]["message"]["content"] == text
    assert (await scene.record(request_id))["outcome"] == "ok"


async def test_many_streams_run_at_once(scene: Scene) -> None:
    """Of 150 streams none waits for another: all have their first token before any has its last, spread over both workers."""
    everybody = asyncio.Event()
    waiting = 0
    first, second = (chunk(event(item)) for item in chat_events(["first", "second"])[1:3])
    script: list[Step] = [Send(sse_head()), Send(first), Until(everybody), Send(second), Send(chunk(DONE)), Send(last_chunk())]
    ids = [scene.plays(script) for _ in range(150)]

    async def stream(request_id: str) -> tuple[End, bytes]:
        nonlocal waiting
        async with await scene.connect() as client:
            await client.send(scene.request(request_id, chat_body("pair")))
            start = await client.read_until(b'"first"')
            waiting += 1
            if waiting == len(ids):
                everybody.set()
            answer = await client.read_answer(start=start)
            return answer.end, answer.body

    async with asyncio.timeout(20):
        ends = await asyncio.gather(*(stream(request_id) for request_id in ids))
    counts = [len([one for one in worker.requests if one.headers["x-request-id"] in ids]) for worker in scene.workers["pair"]]
    await scene.gateway.records(150)
    records = [await scene.record(request_id) for request_id in ids]

    assert {end for end, _ in ends} == {End.COMPLETE}
    assert len({body for _, body in ends}) == 1
    assert sorted(counts) == [75, 75]
    assert {record["outcome"] for record in records} == {"ok"}
    await scene.quiet()
