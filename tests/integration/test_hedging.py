"""A worker is late with a stream: a second one is asked as well, who begins first answers, and the other stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.http1 import chunk, last_chunk
from tests.integration.answers import chat_answer, chat_events, event, plain, sse_head, stream_of, usage_of
from tests.integration.raw_client import End
from tests.integration.scene import Scene, Seen, chat_body, events_of, running_scene
from tests.integration.steps import Close, Hang, Script, Send, Wait

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

DELAY_SECONDS = 0.2
GOOD = stream_of(chat_events(["a", "b", "c"], usage=usage_of(5, 3, 0)))
ROLE = chunk(event(chat_events(["a"])[0]))


def late(seconds: float) -> Script:
    return [Wait(seconds), *GOOD]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A pool that hedges, with a share that allows it for every request, and others that may not."""
    pools: dict[str, dict[str, Any]] = {
        "pair": {"policy": "round-robin"},
        "alone": {},
        "capped": {"policy": "round-robin", "admission": {"max_requests_per_worker": 2}},
        "hasty": {"policy": "round-robin", "limits": {"first_byte_seconds": 1}},
    }
    config = {
        "hedging": {"after_seconds": DELAY_SECONDS, "budget_ratio": 1.0},
        "retries": {"budget_per_second": 1000},
        "health": {"max_ejected_ratio": 0},
    }
    async with running_scene(pools, config=config, workers={"pair": 3, "capped": 2, "hasty": 2}, metrics_page=None) as one:
        yield one


async def ask(scene: Scene, *scripts: Script, model: str = "pair", **fields: Any) -> Seen:
    return await scene.ask(*scripts, body=chat_body(model, **fields))


def text_of(seen: Seen) -> str:
    chunks = [item for item in events_of(seen.answer.body) if isinstance(item, dict) and item.get("choices")]
    return "".join(item["choices"][0]["delta"].get("content") or "" for item in chunks)


async def test_the_second_worker_answers_when_it_begins_first(scene: Scene) -> None:
    """The client gets one whole answer of the second worker, soon; the first is closed before it has said anything."""
    before = await scene.quiet()
    seen = await ask(scene, late(2.0), GOOD)
    after = await scene.quiet()
    first, second = scene.arrivals(seen.record["request_id"])
    record = seen.record

    assert (text_of(seen), seen.answer.end, seen.answer.body.count(b"[DONE]")) == ("abc", End.COMPLETE, 1)
    assert first.body == second.body
    assert (record["hedge"], record["attempts"], record["route_reason"], record["outcome"]) == ("won", 2, "hedge", "ok")
    assert (record["worker"], record["outrun_worker"]) == (second.headers["host"], first.headers["host"])
    assert seen.answer.head is not None
    assert seen.answer.head.get("x-ridgeline-worker") == record["worker"]
    assert await first.closed(1.0) - second.arrived_at < 0.5
    # From the request's arrival for the client, from its own for the worker.
    assert DELAY_SECONDS <= record["ttft_seconds"] < 1.0
    assert record["upstream_ttft_seconds"] < record["ttft_seconds"] - 0.9 * DELAY_SECONDS
    assert record["outrun_seconds"] == pytest.approx(record["ttft_seconds"], abs=0.05)
    assert record["outrun_prompt_tokens"] == record["estimated_prompt_tokens"] > 0
    for name, labels, count in (
        ("ridgeline_hedges_total", {"result": "won"}, 1),
        ("ridgeline_attempts_total", {"result": "outrun"}, 1),
        ("ridgeline_attempts_total", {"result": "answered"}, 1),
        ("ridgeline_routes_total", {"reason": "hedge"}, 1),
        ("ridgeline_prompt_tokens_total", {}, 5),
        ("ridgeline_hedge_wasted_prompt_tokens_total", {}, record["outrun_prompt_tokens"]),
        ("ridgeline_hedge_wasted_seconds_total", {}, pytest.approx(record["outrun_seconds"])),
    ):
        assert after.total(name, **labels) - before.total(name, **labels) == count, name


async def test_the_first_worker_answers_when_it_begins_first_after_all(scene: Scene) -> None:
    """Then the second is closed and has cost only its own time."""
    seen = await ask(scene, late(DELAY_SECONDS + 0.3), late(3.0))
    first, second = scene.arrivals(seen.record["request_id"])
    record = seen.record

    assert (text_of(seen), seen.answer.end) == ("abc", End.COMPLETE)
    assert (record["hedge"], record["attempts"], record["route_reason"]) == ("lost", 2, "turn")
    assert (record["worker"], record["outrun_worker"]) == (first.headers["host"], second.headers["host"])
    assert record["outrun_seconds"] == pytest.approx(0.3, abs=0.15)
    assert await second.closed(1.0) - second.arrived_at < 1.0
    await scene.quiet()


async def test_one_that_begins_in_time_is_sent_once(scene: Scene) -> None:
    """However long its answer goes on."""
    seen = await ask(scene, [Send(sse_head()), Send(ROLE), Wait(DELAY_SECONDS + 0.2), *GOOD[2:]])

    assert (text_of(seen), seen.record["attempts"], seen.record["hedge"]) == ("abc", 1, None)


async def test_a_head_alone_is_no_beginning(scene: Scene) -> None:
    """An API server sends it at once, whatever its engine does."""
    seen = await ask(scene, [Send(sse_head()), Hang()], GOOD)

    assert (text_of(seen), seen.record["hedge"]) == ("abc", "won")


FAILURES: dict[str, tuple[Script, str]] = {
    "500": ([Send(plain(500, {"error": {"message": "no"}}))], "failed"),
    "429": ([Send(plain(429, {"error": {"message": "no"}}, [("retry-after", "0")]))], "busy"),
    "400": ([Send(plain(400, {"error": {"message": "no"}}))], "answered"),
    "an error event": (stream_of([{"error": {"message": "no", "code": 500}}]), "failed"),
    "nothing under 200": ([Send(sse_head()), Send(last_chunk())], "failed"),
    "closed": ([Wait(0.3), Close()], "broken"),
    "garbage": ([Send(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"), Hang()], "broken"),
    "a bad chunk": ([Send(sse_head()), Send(b"zz\r\nnope\r\n"), Hang()], "broken"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_second_worker_that_fails_changes_nothing(scene: Scene, name: str) -> None:
    """The first goes on, and answers when it does."""
    script, result = FAILURES[name]
    before = await scene.quiet()
    seen = await ask(scene, late(0.9), script)
    after = await scene.quiet()

    assert (text_of(seen), seen.answer.end) == ("abc", End.COMPLETE)
    assert (seen.record["hedge"], seen.record["attempts"], seen.record["outrun_worker"]) == ("failed", 2, None)
    count = after.total("ridgeline_attempts_total", result=result) - before.total("ridgeline_attempts_total", result=result)
    assert count == (2 if result == "answered" else 1)


@pytest.mark.parametrize("script", [[Wait(0.5), Close()], [Wait(0.5), Send(plain(500, {}))]], ids=["closed", "500"])
async def test_when_the_first_worker_fails_the_second_goes_on_alone(scene: Scene, script: Script) -> None:
    """It has the request already: no third one is asked."""
    seen = await ask(scene, script, late(0.7))

    assert (text_of(seen), seen.record["hedge"], seen.record["attempts"]) == ("abc", "took_over", 2)
    assert len(scene.arrivals(seen.record["request_id"])) == 2


async def test_when_both_fail_a_third_worker_is_asked(scene: Scene) -> None:
    """As after any failure."""
    seen = await ask(scene, [Wait(0.5), Close()], [Send(plain(500, {}))], GOOD)

    assert (text_of(seen), seen.record["hedge"], seen.record["attempts"]) == ("abc", "failed", 3)
    assert seen.record["route_reason"] == "retry"


async def test_a_limit_on_the_first_byte_is_no_end_while_the_second_is_in_time(scene: Scene) -> None:
    """The first is given up, and the second has its own time."""
    seen = await ask(scene, [Hang()], late(1.5 - DELAY_SECONDS), model="hasty")

    assert (text_of(seen), seen.record["outcome"], seen.record["hedge"]) == ("abc", "ok", "took_over")


@pytest.mark.parametrize("way", ["close", "reset", "half_close"])
async def test_a_client_that_leaves_ends_both(scene: Scene, way: str) -> None:
    """Both workers are closed at once, and nothing stays in flight."""
    request_id = scene.plays([Hang()], [Hang()])
    async with await scene.connect() as client:
        await client.send(scene.request(request_id, chat_body("pair")))
        await scene.arrival(request_id, count=2)
        getattr(client, way)()
        for arrival in scene.arrivals(request_id):
            await arrival.closed(1.0)
    record = await scene.record(request_id)
    await scene.quiet()

    assert (record["outcome"], record["phase"], record["hedge"], record["attempts"]) == ("client_gone", "wait", "abandoned", 2)


UNFIT: dict[str, tuple[str, dict[str, Any]]] = {
    "of one worker": ("alone", {}),
    "that does not stream": ("pair", {"stream": False}),
    "of several answers": ("pair", {"n": 2}),
    "whose reasoning is hidden": ("pair", {"include_reasoning": False}),
}


@pytest.mark.parametrize("name", UNFIT)
async def test_a_request_is_sent_once(scene: Scene, name: str) -> None:
    """Where a second one could not help, or a first byte would tell nothing."""
    model, fields = UNFIT[name]
    plain_answer: Script = [Wait(DELAY_SECONDS + 0.2), Send(chat_answer("abc", usage=usage_of(5, 3, 0)))]
    seen = await ask(scene, late(DELAY_SECONDS + 0.2) if fields.get("stream", True) else plain_answer, model=model, **fields)

    assert (seen.record["attempts"], seen.record["hedge"]) == (1, None)


async def test_a_response_that_may_be_kept_is_sent_once(scene: Scene) -> None:
    """What changes something at a worker is never sent to two."""
    body = {"model": "pair", "input": "Hi", "stream": True}
    seen = await scene.ask(late(DELAY_SECONDS + 0.2), body=body, path="/v1/responses")

    assert (seen.record["attempts"], seen.record["hedge"]) == (1, None)


async def test_a_pool_near_its_caps_sends_nothing_twice(scene: Scene) -> None:
    """Two requests in a pool that has room for four: a third would leave others too little."""
    before = await scene.quiet()
    first, second = await asyncio.gather(*(ask(scene, late(0.6), model="capped") for _ in range(2)))
    after = await scene.quiet()

    # The first one that is late may: two in flight, and this one, are under four fifths of four.
    assert sorted(one.record["attempts"] for one in (first, second)) == [1, 2]
    name = "ridgeline_hedges_withheld_total"
    assert after.total(name, reason="load") - before.total(name, reason="load") == 1
