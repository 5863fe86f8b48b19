"""More requests than workers may have at once wait, in a fair order, for as long as they may, and their wait is told apart."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from typing import Any

import pytest
import yaml

from tests.integration.answers import chat_answer, chat_events, plain, stream_of, usage_of
from tests.integration.gateway import Metrics, running_gateway
from tests.integration.load import all_up, clients_of_each, eventually, paced
from tests.integration.raw_client import Answer, RawClient
from tests.integration.scene import CHAT, Scene, chat_body, running_scene
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Hang, Script, Send, Until, Wait

ANSWER = chat_answer("x", usage=usage_of(5, 1))
SERVICE_SECONDS = 0.15
SLOWLY: Script = [Wait(SERVICE_SECONDS), Send(ANSWER)]
ONE_AT_A_TIME = {"max_requests_per_worker": 1}
KEYS = {"greedy": "sk-greedy", "small": "sk-small", "urgent": "sk-urgent"}


def admission(**settings: Any) -> dict[str, Any]:
    return {"admission": ONE_AT_A_TIME | settings}


def keys(**priorities: str) -> list[dict[str, str]]:
    return [
        {"name": name, "sha256": sha256(text.encode()).hexdigest(), "priority": priorities.get(name, "normal")}
        for name, text in KEYS.items()
    ]


def bearer(name: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {KEYS[name]}")]


@asynccontextmanager
async def sent(scene: Scene, scripts: Sequence[Script], **options: Any) -> AsyncIterator[list[tuple[str, RawClient]]]:
    """Requests with these scripts, one after another, each on a connection of its own; with their ids."""
    async with AsyncExitStack() as stack:
        found = []
        for script in scripts:
            found.append((scene.plays(script), await stack.enter_async_context(await scene.connect())))
            await send(scene, *found[-1], **options)
        yield found


async def send(scene: Scene, request_id: str, client: RawClient, *, key: str | None = None, **fields: Any) -> None:
    body = chat_body(**{"stream": False, **fields})
    await client.send(scene.request(request_id, body, headers=bearer(key) if key else ()))


async def queued(scene: Scene, count: int) -> Metrics:
    """Wait until so many requests wait."""
    return await scene.gateway.metrics_when(lambda metrics: metrics.total("ridgeline_queued_requests") == count)


async def quiet(scene: Scene) -> Metrics:
    """Nothing is in flight and nobody waits, exactly."""
    await scene.quiet()
    return await queued(scene, 0)


async def test_a_burst_over_capacity_waits_and_is_served_in_order() -> None:
    """Six requests to a worker that takes one at a time get their answers in order, and each wait is in its record alone."""
    stream = [Wait(SERVICE_SECONDS), *stream_of(chat_events(["a", "b"], usage=usage_of(5, 2)))]
    async with running_scene(config=admission()) as scene:
        async with sent(scene, [stream] * 6, stream=True) as requests:
            await queued(scene, 5)
            answers = await asyncio.gather(*(client.read_answer() for _, client in requests))
        records = [await scene.record(request_id) for request_id, _ in requests]
        metrics = await quiet(scene)

    assert [answer.head.status for answer in answers if answer.head] == [200] * 6
    timings = [answer.head.get("server-timing") or "" for answer in answers if answer.head]
    assert ["queue;dur=" in timing for timing in timings] == [False] + [True] * 5
    assert [each.headers["x-request-id"] for each in scene.worker.requests] == [request_id for request_id, _ in requests]
    for number, record in enumerate(records):
        assert record["queue_seconds"] == pytest.approx(number * SERVICE_SECONDS, abs=0.1)
        assert SERVICE_SECONDS <= record["upstream_ttft_seconds"] < SERVICE_SECONDS + 0.1
        assert record["ttft_seconds"] == pytest.approx(record["queue_seconds"] + record["upstream_ttft_seconds"], abs=0.05)
        assert record["overhead_seconds"] < 0.05
    assert metrics.value("ridgeline_queue_seconds_count", pool="default") == 6
    assert metrics.value("ridgeline_queue_seconds_sum", pool="default") == pytest.approx(
        sum(record["queue_seconds"] for record in records), abs=0.01
    )


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_again() -> None:
    """Beyond the bound 429 with Retry-After, counted under the pool; those that wait get their answers."""
    async with running_scene(config=admission(queue_requests=2)) as scene:
        async with sent(scene, [SLOWLY] * 3) as requests:
            await queued(scene, 2)
            refused = await scene.ask(SLOWLY, body=chat_body(stream=False))
            answers = [await client.read_answer() for _, client in requests]
        metrics = await quiet(scene)

    assert refused.answer.head is not None
    assert refused.answer.head.status == 429
    assert b'"code":"queue_full"' in refused.answer.body
    assert 1 <= int(refused.answer.head.get("retry-after") or "") <= 60
    assert (refused.record["outcome"], refused.record["reason"], refused.record["pool"]) == ("rejected", "queue", "default")
    assert refused.record["worker"] is None
    assert [answer.head.status for answer in answers if answer.head] == [200] * 3
    assert metrics.value("ridgeline_rejections_total", pool="default", reason="queue") == 1


async def test_who_waits_too_long_is_refused() -> None:
    """After queue_seconds 503 with Retry-After; its record has how long it waited."""
    async with running_scene(config=admission(queue_seconds=0.3)) as scene:
        free = asyncio.Event()
        async with sent(scene, [[Until(free), Send(ANSWER)]]) as ((_, client),):
            late = await scene.ask(SLOWLY, body=chat_body(stream=False))
            free.set()
            await client.read_answer()
        await quiet(scene)

    assert late.answer.head is not None
    assert late.answer.head.status == 503
    assert late.answer.head.get("retry-after") is not None
    assert b'"code":"queue_timeout"' in late.answer.body
    assert 0.3 <= late.record["queue_seconds"] < 0.45
    assert len(scene.worker.requests) == 1


async def test_a_greedy_key_does_not_delay_a_small_one() -> None:
    """With thirty requests of one key waiting, the single one of another is the next or the one after it."""
    config = admission() | {"keys": keys()}
    free = asyncio.Event()
    async with running_scene(config=config, headers=()) as scene:
        scripts = [[Until(free), Send(ANSWER)], *[[Wait(0.02), Send(ANSWER)]] * 29]
        async with sent(scene, scripts, key="greedy") as requests:
            await queued(scene, 29)
            async with sent(scene, [[Send(ANSWER)]], key="small") as ((small, client),):
                await queued(scene, 30)
                free.set()
                await client.read_answer()
            for _, each in requests:
                await each.read_answer()
        await quiet(scene)

    order = [each.headers["x-request-id"] for each in scene.worker.requests]
    assert order.index(small) <= 1 + 2


async def test_high_priority_goes_first_and_takes_a_place_in_a_full_queue() -> None:
    """A request of high priority pushes one of low priority out of a full queue, and is served before the others."""
    config = admission(queue_requests=3) | {"keys": keys(greedy="low", urgent="high")}
    async with running_scene(config=config) as scene:
        async with sent(scene, [SLOWLY] * 4, key="greedy") as requests:
            await queued(scene, 3)
            async with sent(scene, [[Send(ANSWER)]], key="urgent") as ((urgent, client),):
                pushed = await requests[-1][1].read_answer()
                answer = await client.read_answer()
            for _, each in requests[:-1]:
                await each.read_answer()
        await quiet(scene)

    assert pushed.head is not None
    assert pushed.head.status == 429
    assert answer.head is not None
    assert answer.head.status == 200
    assert [each.headers["x-request-id"] for each in scene.worker.requests][1] == urgent


@pytest.mark.parametrize("way", ["close", "reset"])
async def test_a_client_leaves_while_it_waits(way: str) -> None:
    """Its place is free for others, its request reaches no worker, and its record says where it was."""
    free = asyncio.Event()
    async with running_scene(config=admission()) as scene:
        async with sent(scene, [[Until(free), Send(ANSWER)], SLOWLY, SLOWLY]) as requests:
            await queued(scene, 2)
            gone, client = requests[1]
            client.reset() if way == "reset" else client.close()
            await queued(scene, 1)
            record = await scene.record(gone)
            free.set()
            last = await requests[2][1].read_answer()
        metrics = await quiet(scene)

    assert (record["outcome"], record["phase"], record["attempts"]) == ("client_gone", "queue", 0)
    assert record["queue_seconds"] > 0
    assert last.head is not None
    assert last.head.status == 200
    assert scene.arrivals(gone) == []
    assert metrics.value("ridgeline_client_gone_total", pool="default", phase="queue") == 1


async def test_all_of_150_streams_with_room_start_at_once() -> None:
    """Without caps that bind, nothing in the gateway makes a stream wait for another."""
    async with running_scene(workers=2, config={"admission": {"max_requests_per_worker": 80}}) as scene:
        begun = time.monotonic()
        async with sent(scene, [paced(3, 0.5)] * 150, stream=True) as requests:
            for worker in scene.workers["tiny"]:
                await worker.received(75, timeout_seconds=2)
            assert time.monotonic() - begun < 1.4  # before the first one can have ended
            await asyncio.gather(*(client.read_answer() for _, client in requests))
        records = [await scene.record(request_id) for request_id, _ in requests]

    assert max(record["queue_seconds"] for record in records) < 0.05


async def test_a_worker_that_dies_leaves_those_that_wait_to_the_other() -> None:
    """What waits goes to the worker that is left, each once, and nothing stays behind."""
    free = asyncio.Event()
    async with running_scene(workers=2, config=admission()) as scene:
        dying, other = scene.workers["tiny"]
        async with sent(scene, [[Until(free), Send(ANSWER)], [Until(free), Send(ANSWER)], *[SLOWLY] * 4]) as requests:
            await queued(scene, 4)
            await dying.stop()
            free.set()
            answers = [await client.read_answer() for _, client in requests]
        await quiet(scene)
        await dying.start()

    statuses = sorted(answer.head.status for answer in answers if answer.head)
    assert statuses == [200] * 6  # that of the dead worker had not begun
    assert len(other.requests) == 6


async def test_a_retry_goes_to_a_worker_with_room_and_over_a_cap_only_if_there_is_none() -> None:
    """One of three workers is full. What fails at the second goes to the third, and while both are full to one of them."""
    config = admission() | {"retries": {"budget_per_second": 1000}, "health": {"max_ejected_ratio": 0}}
    fails: Script = [Send(plain(500, {"error": {"message": "no"}}))]
    held = asyncio.Event()
    async with running_scene({"tiny": {"policy": "round-robin"}}, config=config, workers=3) as scene:
        async with sent(scene, [[Until(held), Send(ANSWER)]]) as first:
            full = (await scene.arrival(first[0][0])).headers["host"]
            seen = [await scene.ask(fails, [Send(ANSWER)], body=chat_body(stream=False)) for _ in range(6)]
            async with sent(scene, [[Until(held), Send(ANSWER)]]) as second:
                await scene.arrival(second[0][0])
                last = await scene.ask(fails, [Send(ANSWER)], body=chat_body(stream=False))
                held.set()
                for _, client in (*first, *second):
                    await client.read_answer()
        await quiet(scene)

    assert {(one.answer.status, one.record["attempts"]) for one in (*seen, last)} == {(200, 2)}
    assert full not in {one.record["worker"] for one in seen}


async def test_a_reload_that_changes_the_cap_starts_those_that_wait() -> None:
    """With a larger cap in the file, what waits goes on within the second; waits go on counting from where they began."""
    free = asyncio.Event()
    async with running_scene(config=admission()) as scene:
        async with sent(scene, [[Until(free), Send(ANSWER)]] * 4) as requests:
            await queued(scene, 3)
            await reload(scene, {"admission": {"max_requests_per_worker": 3}})
            await scene.worker.received(3)
            await queued(scene, 1)
            free.set()
            answers = [await client.read_answer() for _, client in requests]
        await quiet(scene)

    assert [answer.head.status for answer in answers if answer.head] == [200] * 4


async def test_a_reload_without_the_model_refuses_those_that_wait() -> None:
    """Who waits for a model that is gone is told so, and the request that is under way ends well."""
    free = asyncio.Event()
    async with running_scene({"tiny": {}, "other": {}}, config=admission()) as scene:
        async with sent(scene, [[Until(free), Send(ANSWER)]] * 2) as requests:
            await queued(scene, 1)
            await reload(scene, {"models": [model for model in scene.gateway.config["models"] if model["name"] == "other"]})
            refused = await requests[1][1].read_answer()
            free.set()
            served = await requests[0][1].read_answer()
        record = await scene.record(requests[1][0])
        await quiet(scene)

    assert refused.head is not None
    assert refused.head.status == 404
    assert record["queue_seconds"] > 0
    assert served.head is not None
    assert served.head.status == 200


async def reload(scene: Scene, changes: Mapping[str, Any]) -> None:
    gateway = scene.gateway
    gateway.config_path.write_text(yaml.safe_dump({**gateway.config, **changes}))
    control = gateway.processes.control
    assert control is not None
    os.kill(control, signal.SIGHUP)


async def test_those_that_wait_at_shutdown_are_served_while_there_is_time() -> None:
    """In the time for draining the queue goes on; who still waits at its end gets 503 and has its record."""
    config = admission() | {"limits": {"drain_seconds": 1.0}}
    async with running_scene(config=config) as scene:
        async with sent(scene, [[Wait(0.4), Send(ANSWER)]] * 6) as requests:
            await queued(scene, 5)
            scene.gateway.supervisor.send_signal(signal.SIGTERM)
            answers = [await client.read_answer() for _, client in requests]
        await scene.gateway.supervisor.wait()
        records = {record["request_id"]: record for record in scene.gateway.log_lines() if "outcome" in record}

    statuses = [answer.head.status for answer in answers if answer.head]
    assert statuses == sorted(statuses)
    assert statuses.count(200) >= 2
    assert statuses.count(503) >= 2
    assert len(records) == 6
    waited = records[requests[-1][0]]
    assert (waited["outcome"], waited["attempts"]) == ("shutdown", 0)
    assert waited["queue_seconds"] > 0.5


async def test_a_request_larger_than_the_cap_is_served_alone() -> None:
    """It waits until the worker has nothing else, and is not overtaken by small ones for ever."""
    config = {"admission": {"max_tokens_per_worker": 500}}
    async with running_scene(config=config) as scene:
        async with (
            sent(scene, [SLOWLY] * 3, max_tokens=100) as small,
            sent(scene, [SLOWLY], max_tokens=5000) as ((large, client),),
            sent(scene, [SLOWLY] * 3, max_tokens=100) as more,
        ):
            for _, each in (*small, *more):
                await each.read_answer()
            answer = await client.read_answer()
        await quiet(scene)
        record = await scene.record(large)

    assert answer.head is not None
    assert answer.head.status == 200
    order = [each.headers["x-request-id"] for each in scene.worker.requests]
    assert order.index(large) == 3
    alone = next(each for each in scene.worker.requests if each.headers["x-request-id"] == large)
    assert all(each.answered_at is not None and each.answered_at <= alone.arrived_at for each in scene.worker.requests[:3])
    assert all(alone.answered_at is not None and alone.answered_at <= each.arrived_at for each in scene.worker.requests[4:])
    assert record["queue_seconds"] > 0.05


async def test_a_large_request_keeps_one_worker_free_and_not_the_pool() -> None:
    """While one waits for an empty worker, smaller ones go on at the other."""
    free, also_free = asyncio.Event(), asyncio.Event()
    async with running_scene(workers=2, config={"admission": {"max_tokens_per_worker": 500}}) as scene:
        scripts = [[Until(free), Send(ANSWER)], [Until(also_free), Send(ANSWER)]]
        async with sent(scene, scripts, max_tokens=100) as small:
            await eventually(lambda: sum(len(worker.requests) for worker in scene.workers["tiny"]) == 2)
            async with (
                sent(scene, [SLOWLY], max_tokens=5000) as ((_, client),),
                sent(scene, [SLOWLY] * 6, max_tokens=100) as more,
            ):
                for _, each in more:
                    answer = await each.read_answer(timeout_seconds=3)
                    assert answer.head is not None
                    assert answer.head.status == 200
                assert (await queued(scene, 1)) is not None
                free.set()
                also_free.set()
                await client.read_answer()
            for _, each in small:
                await each.read_answer()
        await quiet(scene)


async def test_two_processes_share_the_cap_and_both_get_their_turns() -> None:
    """With requests waiting in both, the worker never has more than its cap and one, and both processes are served."""
    running = most = 0

    async with ScriptedWorker() as worker, AsyncExitStack() as stack:

        def script(request: Received) -> Script:
            return SLOWLY

        worker.script = script
        config = {"admission": {"max_requests_per_worker": 2, "queue_seconds": 20}}
        gateway = await stack.enter_async_context(running_gateway(config, workers=[worker.url], processes=2))
        await all_up(gateway, 2)
        await asyncio.sleep(0.6)  # until each has found the figures of the other
        first, second = await clients_of_each(gateway, stack, 12)
        ended: dict[int, list[float]] = {0: [], 1: []}

        async def ask(process: int, client: RawClient) -> Answer:
            answer = await client.request("POST", CHAT, chat_body(stream=False), timeout_seconds=20)
            ended[process].append(time.monotonic())
            return answer

        begun = len(worker.requests)
        ahead = [asyncio.create_task(ask(0, client)) for client in first]
        await gateway.metrics_when(lambda metrics: metrics.total("ridgeline_queued_requests") == 10)
        behind = [asyncio.create_task(ask(1, client)) for client in second]
        answers = await asyncio.gather(*ahead, *behind)
        spans = sorted(
            (instant, change)
            for each in worker.requests[begun:]
            for instant, change in ((each.arrived_at, 1), (each.answered_at or 0.0, -1))
        )
        for _, change in spans:
            running += change
            most = max(most, running)
        metrics = await gateway.metrics_when(
            lambda metrics: not metrics.total("ridgeline_in_flight_requests") + metrics.total("ridgeline_queued_requests")
        )

    assert [answer.head.status for answer in answers if answer.head] == [200] * 24
    assert most <= 3
    both = "".join(
        "ab"[process] for _, process in sorted((instant, process) for process in ended for instant in ended[process])
    )
    assert both[:12].count("b") >= 3, both  # the second does not have to wait until the first has nothing more
    assert metrics.total("ridgeline_queued_requests") == 0


async def test_an_upload_that_never_ends_gives_its_room_back() -> None:
    """Each of three clients leaves with most of the room for bodies taken; a whole file still gets in afterwards."""
    config = {"limits": {"held_body_bytes": 4_000_000, "body_bytes": 3_000_000}}
    start = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    end = b'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n--b--\r\n'
    form = start + b"\0" * 2_500_000 + end
    as_form = [("Content-Type", "multipart/form-data; boundary=b")]
    path = "/v1/audio/transcriptions"
    async with running_scene(config=config) as scene:
        for _ in range(3):
            request_id = scene.plays([Hang()])
            async with await scene.connect() as client:
                await client.send(scene.request(request_id, form, path=path, headers=as_form)[: -len(end)])
                await asyncio.sleep(0.05)
                client.reset()
                gone = await scene.record(request_id)
            assert (gone["outcome"], gone["phase"], scene.arrivals(request_id)) == ("client_gone", "upload", [])
        whole = await scene.ask([Send(plain(200, {"text": "Hello"}))], body=form, path=path, headers=as_form)

    assert whole.answer.status == 200
    assert scene.arrivals(whole.record["request_id"])[0].body == form


async def test_bodies_of_all_requests_together_are_bounded() -> None:
    """Of twelve bodies of 2 MB with room for ten, two are refused; a small one goes on, and everything is given back."""
    config = {"limits": {"held_body_bytes": 21_000_000, "body_bytes": 20_000_000}}
    text = "x" * 2_000_000
    async with running_scene(config=config) as scene:
        free = asyncio.Event()
        async with sent(scene, [[Until(free), Send(ANSWER)]] * 12, messages=[{"role": "user", "content": text}]) as requests:
            small = await scene.ask([Send(ANSWER)], body=chat_body(stream=False))
            free.set()
            answers = [await client.read_answer() for _, client in requests]
        records = [await scene.record(request_id) for request_id, _ in requests]
        again = await scene.ask([Send(ANSWER)], body=chat_body(stream=False, messages=[{"role": "user", "content": text * 9}]))
        await quiet(scene)

    assert small.answer.head is not None
    assert small.answer.head.status == 200
    assert sorted(answer.head.status for answer in answers if answer.head) == [200] * 10 + [503] * 2
    refused = [record for record in records if record["status"] == 503]
    assert {(record["outcome"], record["reason"]) for record in refused} == {("rejected", "memory")}
    assert again.answer.head is not None
    assert again.answer.head.status == 200
