"""A worker fails before the client has had anything of an answer: another one is asked, or its word passed on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.http1 import chunk, last_chunk
from tests.integration.answers import DONE, chat_answer, chat_events, event, plain, sse_head, stream_of, usage_of
from tests.integration.gateway import running_gateway
from tests.integration.raw_client import End, RawClient
from tests.integration.scene import CHAT, Scene, Seen, chat_body, events_of, running_scene
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.steps import Close, Hang, Reset, Script, Send, Step, Wait

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

GOOD = stream_of(chat_events(["a", "b", "c"], usage=usage_of(5, 3, 0)))
GOOD_PLAIN: list[Step] = [Send(chat_answer("abc", usage=usage_of(5, 3, 0)))]
ROLE, FIRST = (chunk(event(item)) for item in chat_events(["a"])[:2])


def an_error(code: int) -> dict[str, Any]:
    return {"error": {"message": f"no, {code}", "type": "x", "param": None, "code": code}}


def in_pieces(status: int, body: bytes) -> list[Step]:
    """An answer without a length whose body comes in two reads."""
    head = sse_head(status=status).replace(b"text/event-stream; charset=utf-8", b"application/json")
    return [Send(head), Wait(0.03), Send(chunk(body[:10])), Wait(0.03), Send(chunk(body[10:])), Send(last_chunk())]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """Pools of two and of four workers, and hasty ones; retries cost nothing, and nobody is left out for long."""
    pools: dict[str, dict[str, Any]] = {
        "pair": {"policy": "round-robin"},
        "four": {"policy": "round-robin"},
        "hasty": {"policy": "round-robin", "limits": {"first_byte_seconds": 1}},
        "gap": {"limits": {"token_gap_seconds": 1}},
        "early": {"policy": "round-robin", "limits": {"head_hold_seconds": 0.2, "first_byte_seconds": 2}},
    }
    config = {
        "retries": {"budget_per_second": 1000, "backoff_seconds": 0.5},
        "health": {"max_ejected_ratio": 0},
        "admission": {"queue_seconds": 3},
    }
    async with running_scene(pools, config=config, workers={"pair": 2, "four": 4, "hasty": 2, "early": 2}) as one:
        yield one


async def ask(scene: Scene, *scripts: Script, model: str = "pair", stream: bool = True) -> Seen:
    return await scene.ask(*scripts, body=chat_body(model, stream=stream))


async def second_arrival(scene: Scene, request_id: str) -> None:
    """Wait until a second worker has the request. TimeoutError when none gets it."""
    ends_at = time.monotonic() + 5
    while len(scene.arrivals(request_id)) < 2:
        if time.monotonic() > ends_at:
            raise TimeoutError(f"{request_id} reached one worker only")
        await asyncio.sleep(0.002)


def text_of(seen: Seen, *, stream: bool) -> str:
    """What the model said."""
    if not stream:
        return str(seen.answer.json()["choices"][0]["message"]["content"])
    chunks = [item for item in events_of(seen.answer.body) if isinstance(item, dict) and item.get("choices")]
    return "".join(item["choices"][0]["delta"].get("content") or "" for item in chunks)


FAILURES: dict[str, tuple[list[Step], str]] = {
    "closed": ([Wait(0.3), Close()], "broken"),
    "reset": ([Wait(0.3), Reset()], "broken"),
    "closed in the head": ([Send(b"HTTP/1.1 200 OK\r\ncontent-"), Wait(0.03), Close()], "broken"),
    "closed behind the head": ([Send(sse_head()), Wait(0.03), Close()], "broken"),
    "closed behind a comment": ([Send(sse_head()), Send(chunk(b": wait\n\n")), Wait(0.03), Close()], "broken"),
    "garbage": ([Send(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"), Hang()], "broken"),
    "a bad chunk": ([Send(sse_head()), Send(b"zz\r\nnope\r\n"), Hang()], "broken"),
    "500": ([Send(plain(500, an_error(500)))], "failed"),
    "500 without a length": (in_pieces(500, b'{"error": {"message": "no"}}'), "failed"),
    "500 that stops": ([*in_pieces(500, b'{"error": {"message": "no"}}')[:3], Hang()], "failed"),
    "500 that breaks": ([*in_pieces(500, b'{"error": {"message": "no"}}')[:3], Wait(0.02), Close()], "broken"),
    "401": ([Send(plain(401, an_error(401)))], "broken"),
    "403": ([Send(plain(403, an_error(403)))], "broken"),
    "502": ([Send(plain(502))], "failed"),
    "504": ([Send(plain(504, b"<html>", content_type="text/html"))], "failed"),
    "503": ([Send(plain(503, an_error(503), [("retry-after", "0")]))], "busy"),
    "429": ([Send(plain(429, an_error(429), [("retry-after", "0")]))], "busy"),
    "an error event": (stream_of([an_error(500)]), "failed"),
    "an error event, and no end": ([Send(sse_head()), Send(chunk(event(an_error(500)))), Hang()], "failed"),
    "an error event of an older version": (stream_of([{"object": "error", "message": "no", "code": 500}]), "failed"),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", FAILURES)
async def test_another_worker_answers(scene: Scene, name: str, stream: bool) -> None:
    """Whatever a worker does instead of an answer, the client gets a whole one from another, once."""
    script, result = FAILURES[name]
    before = await scene.quiet()
    seen = await ask(scene, script, GOOD if stream else GOOD_PLAIN, stream=stream)
    after = await scene.quiet()
    arrivals = scene.arrivals(seen.record["request_id"])

    assert (seen.answer.status, seen.answer.end, text_of(seen, stream=stream)) == (200, End.COMPLETE, "abc")
    assert seen.answer.body.count(b"[DONE]") == (1 if stream else 0)
    assert (seen.record["outcome"], seen.record["attempts"], seen.record["route_reason"]) == ("ok", 2, "retry")
    assert arrivals[0].body == arrivals[1].body
    assert arrivals[0].headers["host"] != arrivals[1].headers["host"]
    assert seen.answer.head is not None
    assert seen.answer.head.get("x-ridgeline-worker") == seen.record["worker"] == arrivals[1].headers["host"]
    for label, count in ((result, 1), ("answered", 1)):
        name = "ridgeline_attempts_total"
        assert after.total(name, result=label) - before.total(name, result=label) == count, label


@pytest.mark.parametrize("stream", [True, False])
async def test_a_worker_that_accepts_and_says_nothing_is_left(scene: Scene, stream: bool) -> None:
    """When the limit on the first byte is over, another worker is asked; the time to first token goes on from the request."""
    before = await scene.quiet()
    seen = await ask(scene, [Hang()], GOOD if stream else GOOD_PLAIN, model="hasty", stream=stream)
    after = await scene.quiet()
    silent, _ = scene.arrivals(seen.record["request_id"])

    assert (seen.record["outcome"], seen.record["attempts"]) == ("ok", 2)
    assert silent.closed_at is not None
    if stream:
        assert seen.record["ttft_seconds"] > 1 > seen.record["upstream_ttft_seconds"]
    assert (
        after.total("ridgeline_attempts_total", result="silent") - before.total("ridgeline_attempts_total", result="silent")
        == 1
    )


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_the_record_says_when_the_answering_worker_was_asked(scene: Scene, stream: bool) -> None:
    """What a worker that failed took lies before, and what the one that answered took behind it."""
    slow = [Wait(0.3), *(GOOD if stream else GOOD_PLAIN)]
    seen = await ask(scene, [Wait(0.4), Send(plain(500, an_error(500)))], slow, stream=stream)

    assert (seen.record["outcome"], seen.record["attempts"]) == ("ok", 2)
    assert 0.4 <= seen.record["sent_seconds"] < 0.6
    assert 0.7 <= seen.record["e2e_seconds"] < 1.1


async def test_nobody_is_asked_after_the_first_token(scene: Scene) -> None:
    """A stream that breaks after output began is cut and said to be; the other worker is not asked."""
    for last in (Close(), Reset()):
        seen = await ask(scene, [Send(sse_head()), Send(ROLE), Send(FIRST), Wait(0.05), last], GOOD)

        assert (seen.answer.end, seen.record["outcome"], seen.record["attempts"]) == (End.CUT, "truncated", 1)
        assert b"[DONE]" not in seen.answer.body
        assert events_of(seen.answer.body)[-1]["error"]["code"] == "worker_disconnected"
        assert len(scene.arrivals(seen.record["request_id"])) == 1


async def test_an_error_event_after_tokens_is_passed_on(scene: Scene) -> None:
    """Later error events go to the client, end a failed request, and nobody else is asked."""
    seen = await ask(scene, stream_of([*chat_events(["a"])[:2], an_error(500)]), GOOD)

    assert (seen.record["outcome"], seen.record["attempts"]) == ("worker_error", 1)
    assert an_error(500) in events_of(seen.answer.body)


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 501])
async def test_what_is_the_clients_is_asked_once(scene: Scene, status: int) -> None:
    """A worker's 4xx, and what it does not have, would be the same anywhere: one attempt, passed on as it is."""
    for stream in (True, False):
        seen = await ask(scene, [Send(plain(status, an_error(status)))], GOOD, stream=stream)

        assert (seen.answer.status, seen.answer.json(), seen.record["attempts"]) == (status, an_error(status), 1)


async def test_an_error_event_can_say_that_a_worker_is_busy(scene: Scene) -> None:
    """An error as the first event with the code of being busy is back-pressure: another worker is asked."""
    before = await scene.quiet()
    seen = await ask(scene, stream_of([an_error(503)]), GOOD, model="hasty")
    after = await scene.quiet()

    assert (text_of(seen, stream=True), seen.record["attempts"]) == ("abc", 2)
    assert after.total("ridgeline_attempts_total", result="busy") - before.total("ridgeline_attempts_total", result="busy") == 1


async def test_an_error_event_about_the_request_is_asked_once(scene: Scene) -> None:
    """An error event with a client's code is passed on."""
    seen = await ask(scene, stream_of([an_error(400)]), GOOD)

    assert (seen.record["outcome"], seen.record["attempts"]) == ("worker_error", 1)
    assert events_of(seen.answer.body)[0] == an_error(400)


async def test_a_worker_is_not_tried_twice_and_three_at_most(scene: Scene) -> None:
    """Of four workers that all fail, three are asked, each once; the client gets what the last one said."""
    seen = await ask(scene, *[[Send(plain(500, an_error(number)))] for number in (501, 502, 503, 504)], model="four")
    hosts = [each.headers["host"] for each in scene.arrivals(seen.record["request_id"])]

    assert (seen.answer.status, seen.answer.json(), seen.record["attempts"]) == (500, an_error(503), 3)
    assert len(hosts) == len(set(hosts)) == 3
    assert (seen.record["outcome"], seen.record["worker"]) == ("worker_error", hosts[-1])


@pytest.mark.parametrize("last", [Close(), Reset()])
@pytest.mark.parametrize(
    "first", [[Send(plain(500, an_error(500), [("x-of", "it")]))], in_pieces(500, b'{"error": {"message": "no"}}')]
)
async def test_a_workers_own_error_is_better_than_none(scene: Scene, first: list[Step], last: Step) -> None:
    """When the second worker says nothing at all, the client gets the error of the first, and the record is about that."""
    seen = await ask(scene, first, [last])
    hosts = list(dict.fromkeys(each.headers["host"] for each in scene.arrivals(seen.record["request_id"])))

    assert (seen.answer.status, seen.answer.end, len(hosts)) == (500, End.COMPLETE, 2)
    assert "error" in seen.answer.json()
    assert seen.answer.head is not None
    assert seen.answer.head.get("x-ridgeline-worker") == hosts[0]
    assert (seen.record["worker"], seen.record["worker_status"]) == (hosts[0], 500)
    assert seen.record["outcome"] == "worker_error"
    await scene.quiet()


@pytest.mark.parametrize("last", [Close(), Reset()])
@pytest.mark.parametrize("ends", [True, False], ids=["whole", "unfinished"])
async def test_an_error_event_is_better_than_none(scene: Scene, ends: bool, last: Step) -> None:
    """It is the worker's own word too, and the client gets it when the second worker dies; cut where it had no end."""
    events = stream_of([an_error(500)], head=sse_head(("x-of", "it")))
    whole = Send(b"".join(step.data for step in events if isinstance(step, Send)))  # in one write: its end is there in time
    seen = await ask(scene, [whole] if ends else [*events[:2], Hang()], [last])
    hosts = list(dict.fromkeys(each.headers["host"] for each in scene.arrivals(seen.record["request_id"])))

    assert (seen.answer.status, seen.answer.end, len(hosts)) == (200, End.COMPLETE if ends else End.CUT, 2)
    assert events_of(seen.answer.body)[0] == an_error(500)
    assert seen.answer.head is not None
    assert seen.answer.head.get("x-ridgeline-worker") == hosts[0]
    assert (seen.record["outcome"], seen.record["worker"]) == ("worker_error", hosts[0])
    await scene.quiet()


async def test_all_are_busy() -> None:
    """When all are busy for longer than a request may wait, the client gets the last refusal, with its Retry-After."""
    busy = [[Send(plain(429, an_error(429), [("retry-after", str(number))]))] for number in (5, 6)]
    async with running_scene({"pair": {"admission": {"queue_seconds": 3}}}, workers={"pair": 2}) as scene:
        seen = await ask(scene, *busy)

    assert (seen.answer.status, seen.record["outcome"], seen.record["attempts"]) == (429, "worker_busy", 2)
    assert seen.answer.head is not None
    assert seen.answer.head.get("retry-after") == "6"


async def test_a_client_that_keeps_its_connection_is_served_on(scene: Scene) -> None:
    """After a request that was tried again, and after one that got a kept error, the connection carries the next one."""
    error = [Send(plain(500, an_error(500)))]
    async with await scene.connect() as client:
        for scripts, status in (([error, GOOD_PLAIN], 200), ([error, [Close()]], 500), ([GOOD_PLAIN], 200)):
            seen = await scene.ask(*scripts, body=chat_body("pair", stream=False), client=client)
            assert seen.answer.status == status


async def test_a_model_that_thinks_in_silence_has_the_time_of_a_first_byte(scene: Scene) -> None:
    """Where the client does not want to see the reasoning, nothing comes after the role for as long as the model thinks."""
    parts = [chunk(event(item)) for item in chat_events(["a"])]
    script: list[Step] = [
        Send(sse_head()),
        Send(parts[0]),
        Wait(2.2),
        *map(Send, parts[1:]),
        Send(chunk(DONE)),
        Send(last_chunk()),
    ]
    hidden = await scene.ask(script, body=chat_body("gap", include_reasoning=False))
    shown = await scene.ask(script, body=chat_body("gap", include_reasoning=True))

    assert (hidden.record["outcome"], text_of(hidden, stream=True)) == ("ok", "a")
    assert shown.record["outcome"] == "stalled"


async def test_a_model_that_has_thought_may_not_stall(scene: Scene) -> None:
    """After the first token the usual limit holds again."""
    script = [Send(sse_head()), Send(ROLE), Send(FIRST), Hang()]
    seen = await scene.ask(script, body=chat_body("gap", include_reasoning=False))

    assert seen.record["outcome"] == "stalled"


# A head that had to go before its first event


async def test_a_head_that_went_alone_is_followed_by_another_worker(scene: Scene) -> None:
    """When the worker dies after its head had to go, the events of another one follow it, under the same head."""
    seen = await ask(scene, [Send(sse_head()), Wait(1.2), Close()], GOOD, model="early")

    assert (seen.answer.status, seen.answer.end, text_of(seen, stream=True)) == (200, End.COMPLETE, "abc")
    assert seen.answer.body.count(b"HTTP/1.1") == 0
    assert (seen.record["outcome"], seen.record["attempts"]) == ("ok", 2)


@pytest.mark.parametrize(
    "second",
    [
        [Send(plain(500, an_error(500)))],
        [Send(plain(400, an_error(400)))],
        [Send(chat_answer("abc", usage=usage_of(5, 3)))],
        [Close()],
    ],
    ids=["500", "400", "another type", "nothing"],
)
async def test_a_head_that_went_alone_is_followed_by_the_same_kind_only(scene: Scene, second: list[Step]) -> None:
    """What cannot follow that head ends the stream: the client is told, and gets nothing of the other answer."""
    seen = await ask(scene, [Send(sse_head()), Wait(1.2), Close()], second, model="early")

    assert (seen.answer.status, seen.answer.end, seen.record["outcome"]) == (200, End.CUT, "truncated")
    (told,) = events_of(seen.answer.body)
    assert told["error"]["code"] == "worker_disconnected"
    assert seen.record["attempts"] == 2
    await scene.quiet()


async def test_nobody_is_asked_after_a_comment_went_out(scene: Scene) -> None:
    """A comment that went out with the head is a part of the body."""
    seen = await ask(scene, [Send(sse_head()), Send(chunk(b": wait\n\n")), Wait(1.2), Close()], GOOD, model="early")

    assert (seen.answer.end, seen.record["attempts"]) == (End.CUT, 1)


async def test_an_error_event_after_the_head_had_to_go(scene: Scene) -> None:
    """An error as the first event fails over also when the head has gone out before it."""
    failing = [Send(sse_head()), Wait(1.2), Send(chunk(event(an_error(500)))), Send(chunk(DONE)), Send(last_chunk())]
    seen = await ask(scene, failing, GOOD, model="early")

    assert (text_of(seen, stream=True), seen.answer.end, seen.record["outcome"]) == ("abc", End.COMPLETE, "ok")
    assert b"no, 500" not in seen.answer.body


# Clients that leave, and the end


@pytest.mark.parametrize("way", ["close", "reset", "half_close"])
async def test_a_client_leaves_while_the_second_worker_is_asked(scene: Scene, way: str) -> None:
    """The second worker is left at once, as the first would be; one record, nothing in flight."""
    request_id = scene.plays([Send(plain(500, an_error(500)))], [Hang()])
    async with await scene.connect() as client:
        await client.send(scene.request(request_id, chat_body("pair")))
        await second_arrival(scene, request_id)
        getattr(client, way)()
        left_at = time.monotonic()
        closed_at = await scene.arrivals(request_id)[1].closed(timeout_seconds=1.5)

    record = await scene.record(request_id)
    assert closed_at - left_at < 1
    assert (record["outcome"], record["phase"], record["attempts"]) == ("client_gone", "wait", 2)
    await scene.quiet()


@pytest.mark.parametrize("way", ["close", "reset", "half_close"])
async def test_a_client_leaves_between_two_attempts(scene: Scene, way: str) -> None:
    """While the gateway waits because two workers were busy, a client that leaves ends the request: no third one is asked."""
    for _ in range(20):  # the wait is drawn by chance and may be short
        refusal = [Send(plain(429, an_error(429), [("retry-after", "0")]))]
        request_id = scene.plays(refusal, refusal, [Hang()])
        async with await scene.connect() as client:
            await client.send(scene.request(request_id, chat_body("four")))
            await second_arrival(scene, request_id)
            getattr(client, way)()
        record = await scene.record(request_id)
        await scene.quiet()
        if record["phase"] == "queue":
            break
    assert (record["outcome"], record["phase"], record["attempts"]) == ("client_gone", "queue", 2)
    await asyncio.sleep(0.6)
    assert len(scene.arrivals(request_id)) == 2


# The budget, over all requests


async def test_when_all_refuse_the_answer_is_quick_and_attempts_are_few() -> None:
    """With every worker gone, requests get 503 and Retry-After at once, and hardly more attempts are made."""
    config = {"retries": {"budget_per_second": 0.5, "budget_ratio": 0.2}}
    async with running_scene({"pair": {}}, config=config, workers={"pair": 3}) as scene:
        await scene.gateway.metrics_when(lambda metrics: metrics.total("ridgeline_worker_up") == 3)
        for worker in scene.workers["pair"]:
            await worker.stop_listening()
        began = time.monotonic()
        seen = await asyncio.gather(*(ask(scene, GOOD) for _ in range(200)))
        seconds = time.monotonic() - began
        metrics = await scene.quiet()
        attempts = sum(one.record["attempts"] for one in seen)

        assert {one.answer.status for one in seen} == {503}
        assert all(one.answer.head is not None and one.answer.head.get("retry-after") == "2" for one in seen)
        assert attempts <= 200 * 1.2 + 5 + 1
        assert metrics.total("ridgeline_retries_refused_total") > 0
        assert metrics.total("ridgeline_attempts_total", result="connect_failed") == attempts
        assert seconds < 5


async def test_when_all_accept_and_say_nothing_attempts_are_few() -> None:
    """With every worker hung, each request ends with its limits, and together they make hardly more attempts than there are."""
    config = {"retries": {"budget_per_second": 0.5, "budget_ratio": 0.2}}
    async with running_scene({"pair": {"limits": {"first_byte_seconds": 1}}}, config=config, workers={"pair": 3}) as scene:
        seen = await asyncio.gather(*(ask(scene, [Hang()]) for _ in range(100)))
        metrics = await scene.quiet()
        attempts = sum(one.record["attempts"] for one in seen)

        assert {(one.answer.status, one.record["outcome"]) for one in seen} == {(504, "timeout")}
        assert 100 < attempts <= 100 * 1.2 + 5 + 1
        assert metrics.total("ridgeline_attempts_total", result="silent") == attempts


async def test_a_busy_worker_is_not_followed_by_another_that_is_busy() -> None:
    """While neither worker takes more within the time that a request may wait, a refusal is passed on as it is."""
    async with running_scene({"pair": {"admission": {"queue_seconds": 2}}}, workers={"pair": 2}) as scene:
        first = await ask(scene, [Send(plain(503, an_error(503), [("retry-after", "30")]))], GOOD)
        second = await ask(scene, [Send(plain(429, an_error(429), [("retry-after", "3")]))], GOOD)

    assert (first.record["outcome"], first.record["attempts"]) == ("ok", 2)
    assert (second.answer.status, second.record["outcome"], second.record["attempts"]) == (429, "worker_busy", 1)
    assert second.answer.head is not None
    assert second.answer.head.get("retry-after") == "3"


async def test_one_that_is_left_out_serves_what_the_only_other_one_refuses() -> None:
    """Its errors may be over; a refusal that nobody had to make would reach the client. One that said nothing is not asked:
    the request waits until the other takes it."""
    health = {"ejection_seconds": 60, "failures_in_row": 1, "max_ejected_ratio": 0.5}
    pools: dict[str, dict[str, Any]] = {"errs": {}, "hangs": {"limits": {"first_byte_seconds": 1}}}
    refusal: list[Step] = [Send(plain(429, an_error(429), [("retry-after", "0")]))]
    async with running_scene(pools, config={"health": health}, workers=2) as scene:
        first = await ask(scene, [Send(plain(500, an_error(500)))], GOOD, model="errs")
        served = await ask(scene, refusal, GOOD, model="errs")
        silent = await ask(scene, [Hang()], GOOD, model="hangs")
        waited = await ask(scene, refusal, GOOD, model="hangs")

    assert [one.record["outcome"] for one in (first, served, silent, waited)] == ["ok"] * 4
    assert served.record["worker"] == scene.arrivals(first.record["request_id"])[0].headers["host"]
    hosts = [each.headers["host"] for each in scene.arrivals(waited.record["request_id"])]
    assert hosts == [silent.record["worker"]] * 2
    assert 0.9 < waited.record["queue_seconds"] < 2


async def test_a_refusal_waits_while_nobody_else_takes_more() -> None:
    """With both workers busy for a second or two, a request waits for the one that said to be free first, and is served."""
    refusals = [[Send(plain(429, an_error(429), [("retry-after", str(seconds))]))] for seconds in (2, 1)]
    async with running_scene({"pair": {}}, workers={"pair": 2}) as scene:
        began = time.monotonic()
        seen = await ask(scene, *refusals, GOOD)
        seconds = time.monotonic() - began
        await scene.quiet()
    hosts = [each.headers["host"] for each in scene.arrivals(seen.record["request_id"])]

    assert (text_of(seen, stream=True), seen.record["attempts"], seen.record["outcome"]) == ("abc", 3, "ok")
    assert (hosts[0] != hosts[1], hosts[2]) == (True, hosts[1])
    assert 0.9 < seen.record["queue_seconds"] <= seconds < 1.9


async def test_a_refusal_waits_no_longer_than_a_request_may() -> None:
    """Then it is told when to come again: no sooner than the worker said. Meanwhile the worker was not asked without end."""
    refusal: list[Step] = [Send(plain(429, an_error(429), [("retry-after", "1")]))]
    settings = {"pair": {"admission": {"queue_seconds": 2.5}}}
    async with running_scene(settings, workers={"pair": 2}) as scene:
        late = await asyncio.gather(*(ask(scene, refusal) for _ in range(4)))
        await scene.quiet()
    asked = [len(scene.arrivals(one.record["request_id"])) for one in late]

    assert {one.answer.status for one in late} <= {503, 429}
    timed_out = [one for one in late if one.answer.status == 503]
    assert timed_out
    for one in timed_out:
        assert one.answer.head is not None
        assert 1 <= int(one.answer.head.get("retry-after") or "") <= 60
        assert b"queue_timeout" in one.answer.body
        assert 2.4 < one.record["queue_seconds"] < 3.1
        assert one.record["outcome"] == "rejected"
    assert sum(asked) <= 4 * 2 + 2 * 2  # each was refused by both, and each worker was tried once a second


async def test_what_a_dead_worker_leaves_waits_for_the_one_that_refuses() -> None:
    """One worker is gone, the other refuses what it has no room for: the request waits for that one."""
    refusal: list[Step] = [Send(plain(503, an_error(503), [("retry-after", "1")]))]
    async with running_scene({"pair": {}}, workers={"pair": 2}) as scene:
        await scene.workers["pair"][0].stop_listening()
        seen = [await ask(scene, refusal, GOOD) for _ in range(2)]

    assert [(one.record["outcome"], text_of(one, stream=True)) for one in seen] == [("ok", "abc")] * 2


async def test_without_a_budget_failures_are_passed_on() -> None:
    """Where nothing may be tried again, the client gets the worker's own word, and it is counted why."""
    config = {"retries": {"budget_per_second": 0, "budget_ratio": 0}}
    async with running_scene({"pair": {}}, config=config, workers={"pair": 2}) as scene:
        for script in ([Send(plain(500, an_error(500)))], in_pieces(500, b'{"error": {"message": "no"}}')):
            seen = await ask(scene, script, GOOD)
            assert (seen.answer.status, seen.answer.end, seen.record["attempts"]) == (500, End.COMPLETE, 1)
            assert "error" in seen.answer.json()
        broken = await ask(scene, [Wait(0.4), Close()], GOOD)  # too late to be a stale connection
        event_first = await ask(scene, stream_of([an_error(500)]), GOOD)
        metrics = await scene.quiet()

    assert (broken.answer.status, broken.record["attempts"]) == (502, 1)
    assert (event_first.answer.status, event_first.record["outcome"]) == (200, "worker_error")
    assert metrics.total("ridgeline_retries_refused_total") == 4
    assert metrics.total("ridgeline_attempts_total", result="failed") == 3


async def test_with_one_attempt_nothing_is_tried_again() -> None:
    """``max_attempts: 1`` turns it off, and then nothing is refused by the budget."""
    async with running_scene({"pair": {}}, config={"retries": {"max_attempts": 1}}, workers={"pair": 2}) as scene:
        seen = await ask(scene, [Send(plain(500, an_error(500)))], GOOD)
        metrics = await scene.quiet()

    assert (seen.answer.status, seen.record["attempts"]) == (500, 1)
    assert metrics.total("ridgeline_retries_refused_total") == 0


@pytest.mark.parametrize("second", [[Hang()], [Send(sse_head()), Send(ROLE), Hang()]], ids=["asked", "answering"])
async def test_the_gateway_ends_while_a_request_is_tried_again(second: list[Step]) -> None:
    """The drain time holds for retries as for all: the second worker is left, the client told, the exit clean."""
    config = {"limits": {"drain_seconds": 0.5}}
    async with running_scene({"pair": {}}, config=config, workers={"pair": 2}) as scene:
        request_id = scene.plays([Send(plain(500, an_error(500)))], second)
        async with await scene.connect() as client:
            await client.send(scene.request(request_id, chat_body("pair")))
            await second_arrival(scene, request_id)
            stopping = asyncio.create_task(scene.gateway.stop())
            answer = await client.read_answer()
            await stopping
        record = await scene.record(request_id)

    assert answer.status == (503 if second == [Hang()] else 200)
    assert b"shutting_down" in answer.body
    assert (record["outcome"], record["attempts"]) == ("shutdown", 2)


async def test_a_pool_whose_workers_die_overflows_at_once() -> None:
    """Both are gone, and their health checks have not noticed yet: what comes is served by the other pool, all of it."""
    async with ScriptedWorker() as one, ScriptedWorker() as two, ScriptedWorker() as other:
        for worker in (one, two, other):
            worker.script = lambda _request: [Send(chat_answer("ok", usage=usage_of(5, 1)))]
        pools = [
            {"name": "short", "max_total_tokens": 4000, "overflow_to": "long", "workers": [one.url, two.url]},
            {"name": "long", "max_total_tokens": 100_000, "workers": [other.url]},
        ]
        async with running_gateway({"models": [{"name": "tiny", "pools": pools}]}) as gateway:
            await one.stop()
            await two.stop()
            statuses = []
            for number in range(60):
                async with await RawClient.connect(gateway.base_url) as client:
                    body = chat_body(stream=False) | {"messages": [{"role": "user", "content": f"number {number}"}]}
                    answer = await client.request("POST", CHAT, body)
                statuses.append(answer.status)
                await asyncio.sleep(0.02)
            records = await gateway.records(60)

    assert set(statuses) == {200}
    assert {record["pool"] for record in records} == {"long"}
