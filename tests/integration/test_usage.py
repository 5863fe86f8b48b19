"""Tokens in every shape that workers and clients give them: exact where they can be, marked where they cannot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.http1 import chunk, last_chunk
from tests.integration.answers import DONE, chat_answer, chat_events, event, plain, sse_head, stream_of, usage_of
from tests.integration.gateway import running_gateway
from tests.integration.raw_client import RawClient
from tests.integration.scene import CHAT, COMPLETIONS, Scene, chat_body, events_of, running_scene
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Close, Hang, Script, Send, Step, Wait

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNASKED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway with one worker, and a model whose pool has two."""
    async with running_scene({"tiny": {}, "pair": {}, "quiet": {"ask_usage": False}}, workers={"pair": 2}) as one:
        yield one


def asked(request: Received) -> bool:
    """Whether the worker was asked for usage."""
    return (json.loads(request.body).get("stream_options") or {}).get("include_usage") is True


REFUSAL = {"error": {"message": "Extra inputs are not permitted: stream_options", "type": "Bad Request", "code": 400}}


@pytest.mark.parametrize("way", ["one read", "head apart", "in pieces", "chunked", "until close"])
@pytest.mark.parametrize("status", [400, 422])
async def test_a_worker_that_refuses_the_question(way: str, status: int) -> None:
    """Each request succeeds, by one more to the same worker without the question; after three the worker is not asked."""
    whole = plain(status, REFUSAL)
    head, _, body = whole.partition(b"\r\n\r\n")
    chunked = head.replace(b"content-length: %d" % len(body), b"transfer-encoding: chunked") + b"\r\n\r\n"
    until_close = head.replace(b"content-length: %d" % len(body), b"connection: close") + b"\r\n\r\n"
    refusals: dict[str, list[Step]] = {
        "one read": [Send(whole)],
        "head apart": [Send(head + b"\r\n\r\n"), Wait(0.02), Send(body)],
        "in pieces": [step for at in range(0, len(whole), 50) for step in (Send(whole[at : at + 50]), Wait(0.003))],
        "chunked": [Send(chunked), Wait(0.02), Send(chunk(body)), Wait(0.02), Send(last_chunk())],
        "until close": [Send(until_close + body), Close()],
    }
    answer = stream_of(chat_events(["a", "b"]))

    def script(request: Received) -> Script:
        return refusals[way] if asked(request) else answer

    async with running_scene() as scene:
        scene.worker.script = script
        seen = [await scene.ask(body=UNASKED) for _ in range(4)]
        arrivals = [scene.arrivals(one.record["request_id"]) for one in seen]

        assert [[asked(request) for request in each] for each in arrivals] == [*[[True, False]] * 3, [False]]
        assert [one.answer.status for one in seen] == [200] * 4
        assert [one.record["attempts"] for one in seen] == [2, 2, 2, 1]
        for one in seen:
            assert one.answer.body.endswith(DONE)
            assert (one.record["outcome"], one.record["completion_tokens"], one.record["completion_is_estimate"]) == (
                "ok",
                2,
                True,
            )
        metrics = await scene.quiet()
        assert metrics.total("ridgeline_attempts_total", result="answered") == 7


@pytest.mark.parametrize(
    ("body", "refusal", "asks"),
    [
        (UNASKED, plain(400, {"error": {"message": "temperature must be positive"}}), [True]),
        (UNASKED, plain(404, {"error": {"message": "no stream_options here"}}), [True]),
        (UNASKED, plain(400, {"error": {"message": "input: {'stream_options': 1, 'temperature': 'x'}"}}), [True, False]),
        (chat_body(), plain(400, REFUSAL), [True]),
        (chat_body(stream=False), plain(400, REFUSAL), [False]),
    ],
)
async def test_a_refusal_that_is_the_clients(scene: Scene, body: dict[str, Any], refusal: bytes, asks: list[bool]) -> None:
    """Any other refusal is passed on as it is, and the worker goes on being asked."""
    seen = await scene.ask([Send(refusal)], body=body)
    later = await scene.ask(stream_of(chat_events(["a"], usage=usage_of(5, 1))), body=UNASKED)

    assert seen.answer.body == refusal.partition(b"\r\n\r\n")[2]
    assert (seen.record["outcome"], seen.record["attempts"]) == ("client_error", len(asks))
    assert [asked(request) for request in scene.arrivals(seen.record["request_id"])] == asks
    assert later.record["prompt_tokens"] == 5


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        ("http://e.org/stream_options.png", "404, message=Not Found, url=http://e.org/stream_options.png"),
        ("unknown field stream_options", "cannot read: unknown field stream_options"),
        ("http://e.org/moved", "404, message=Not Found, url=http://e.org/stream_options.png"),
    ],
)
async def test_what_a_client_writes_does_not_end_the_question(content: str, quoted: str) -> None:
    """A worker that quotes a request in its refusals goes on being asked by the requests of others."""
    async with running_scene() as scene:
        body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": content}]}
        answer = [Send(plain(400, {"error": {"message": quoted}}))], stream_of(chat_events(["a"]))
        for _ in range(5):
            await scene.ask(*answer, body=body)
        later = await scene.ask(stream_of(chat_events(["a"], usage=usage_of(5, 1))), body=UNASKED)

    assert (later.record["prompt_tokens"], later.record["prompt_is_estimate"]) == (5, False)


@pytest.mark.parametrize("way", ["length", "chunked", "until close"])
async def test_a_large_refusal_in_several_reads(scene: Scene, way: str) -> None:
    """One that is too long to be held goes to the client once and whole, and nothing comes behind it."""
    whole = plain(400, {"error": {"message": "temperature " + "x" * 200_000 + " end"}})
    head, _, body = whole.partition(b"\r\n\r\n")
    length = b"content-length: %d" % len(body)
    first, second = body[:100_000], body[100_000:]
    scripts: dict[str, list[Step]] = {
        "length": [Send(head + b"\r\n\r\n" + first), Wait(0.1), Send(second)],
        "chunked": [
            Send(head.replace(length, b"transfer-encoding: chunked") + b"\r\n\r\n" + chunk(first)),
            Wait(0.1),
            Send(chunk(second) + last_chunk()),
        ],
        "until close": [
            Send(head.replace(length, b"connection: close") + b"\r\n\r\n" + first),
            Wait(0.1),
            Send(second),
            Close(),
        ],
    }
    async with await scene.connect() as client:
        seen = await scene.ask(scripts[way], body=UNASKED, client=client)
        later = await scene.ask(stream_of(chat_events(["a"], usage=usage_of(5, 1))), body=UNASKED, client=client)

    assert (seen.answer.status, seen.answer.body) == (400, body)
    assert (seen.record["outcome"], seen.record["attempts"]) == ("client_error", 1)
    assert (later.answer.status, later.record["prompt_tokens"]) == (200, 5)


async def test_a_refusal_that_trickles() -> None:
    """Its head goes out while it comes, and what has begun is not late however long it takes."""
    whole = plain(400, {"error": {"message": "temperature " + "x" * 300}})
    cut = len(whole) - 300
    steps = [step for at in range(cut, len(whole), 50) for step in (Wait(0.4), Send(whole[at : at + 50]))]
    slow = {"limits": {"head_hold_seconds": 0.3, "first_byte_seconds": 1}}
    async with running_scene(config=slow) as scene:
        seen = await scene.ask([Send(whole[:cut]), *steps], body=UNASKED)
        late = [Send(sse_head()), Wait(0.8), *[step for piece in TOKENS for step in (Send(piece), Wait(0.4))]]
        stream = await scene.ask([*late, Send(chunk(DONE) + last_chunk())], body=UNASKED)

    assert seen.answer.body == whole.partition(b"\r\n\r\n")[2]
    assert seen.record["outcome"] == "client_error"
    assert (stream.record["outcome"], stream.record["token_events"]) == ("ok", 3)


async def test_a_refusal_is_remembered_of_one_worker() -> None:
    """Of two workers the other goes on being asked, and its counts are exact."""
    async with running_scene(workers=2) as scene:
        first, second = scene.workers["tiny"]
        first.script = lambda request: [Send(plain(400, REFUSAL))] if asked(request) else stream_of(chat_events(["a"]))
        second.script = lambda request: stream_of(chat_events(["a"], usage=usage_of(5, 1) if asked(request) else None))
        for _ in range(16):
            await scene.ask(body=UNASKED)

        assert [asked(request) for request in first.requests] == [True, False] * 3 + [False] * (len(first.requests) - 6)
        assert len(first.requests) > 7
        assert second.requests
        assert all(asked(request) for request in second.requests)


@pytest.mark.parametrize("is_forced", [True, False])
async def test_a_worker_that_may_send_usage_to_everybody_is_tried(is_forced: bool) -> None:
    """One stream goes without the question. Where usage comes all the same it is the client's, in every stream; else it is
    asked for and taken out as ever, and that one stream was counted by its events."""
    usage = usage_of(9, 2)
    with_usage = stream_of(chat_events(["a", "b"], usage=usage))
    without = stream_of(chat_events(["a", "b"]))

    def script(request: Received) -> Script:
        return with_usage if is_forced or asked(request) else without

    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(ScriptedWorker(script))
        worker.version = "0.17.1"
        gateway = await stack.enter_async_context(running_gateway(workers=[worker.url]))
        seen: list[tuple[bool, bool, int, bool]] = []
        for _ in range(40):  # until control has read the version and told it
            async with await RawClient.connect(gateway.base_url) as client:
                answer = await client.request("POST", CHAT, UNASKED)
            record = (await gateway.records(len(seen) + 1))[-1]
            seen.append(
                (
                    asked(worker.requests[-1]),
                    b'"usage"' in answer.body,
                    record["completion_tokens"],
                    record["completion_is_estimate"],
                )
            )
            if sum(not was_asked for was_asked, *_ in seen) >= 1 and len(seen) > 3 and seen[-1] == seen[-2]:
                break
            await asyncio.sleep(0.1)

    tried = [one for one in seen if not one[0]]
    asked_for = (True, False, 2, False)
    if is_forced:
        assert seen[-1] == (False, True, 2, False)
        assert set(tried) == {(False, True, 2, False)}
    else:
        assert seen[-1] == asked_for
        assert tried == [(False, False, 2, True)]
    assert {one for one in seen if one[0]} <= {asked_for}


async def test_where_asking_is_switched_off_nothing_is_added(scene: Scene) -> None:
    """A pool that is not to be asked gets the client's bytes, and what its workers force into the stream reaches the client."""
    events = chat_events(["a", "b"], usage=usage_of(7, 3))
    seen = await scene.ask(stream_of(events), body=UNASKED | {"model": "quiet"})

    assert json.loads(scene.arrivals(seen.record["request_id"])[0].body) == UNASKED | {"model": "quiet"}
    assert events_of(seen.answer.body) == [*events, "[DONE]"]
    assert (seen.record["prompt_tokens"], seen.record["completion_tokens"]) == (7, 3)


# What ended before its usage came

TOKENS = [chunk(event(each)) for each in chat_events(["a", "b", "c"])[:-1]]


async def test_a_client_that_leaves_is_accounted_for(scene: Scene) -> None:
    """After six events and no usage the record has what was seen, marked: tokens counted by events, the prompt estimated."""
    request_id = scene.plays([Send(sse_head()), *map(Send, TOKENS), Hang()])
    before = await scene.gateway.metrics()
    client = await scene.connect()
    await client.send(scene.request(request_id, chat_body()))
    await client.read_until(b'"c"')
    client.close()
    record = await scene.record(request_id)

    assert (record["outcome"], record["completion_tokens"], record["completion_is_estimate"]) == ("client_gone", 3, True)
    assert (record["prompt_tokens"], record["prompt_is_estimate"]) == (record["estimated_prompt_tokens"], True)
    assert record["cached_tokens"] is None
    after = await scene.gateway.metrics()
    grown = {
        name: after.total(f"ridgeline_{name}") - before.total(f"ridgeline_{name}")
        for name in (
            "prompt_tokens_total",
            "completion_tokens_total",
            "cache_known_prompt_tokens_total",
            "prompt_length_tokens_count",
        )
    }
    assert list(grown.values()) == [record["prompt_tokens"], 3, 0, 0]


async def test_a_client_that_leaves_before_the_first_token(scene: Scene) -> None:
    """Nothing shows that the prompt was computed: its tokens are unknown, not guessed and not 0."""
    request_id = scene.plays([Send(sse_head() + TOKENS[0]), Hang()])
    client = await scene.connect()
    await client.send(scene.request(request_id, chat_body()))
    await client.read_until(b"assistant")
    client.close()
    record = await scene.record(request_id)

    assert (record["prompt_tokens"], record["completion_tokens"], record["prompt_is_estimate"]) == (None, None, False)
    assert record["no_token"] == "cut"


@pytest.mark.parametrize(
    ("last", "outcome", "counts"),
    [
        ([Close()], "truncated", (3, True)),
        (
            [Send(chunk(event({"error": {"message": "some text", "code": 500}})) + chunk(DONE) + last_chunk())],
            "worker_error",
            (3, True),
        ),
        (
            [Send(chunk(event({"error": "m", "choices": [{"index": 0, "delta": {"content": "e"}}]})) + last_chunk())],
            "worker_error",
            (3, True),
        ),
        ([Send(chunk(event({"choices": [], "usage": usage_of(9, 5)}))), Close()], "truncated", (5, False)),
        (
            [Send(chunk(event({"choices": [], "usage": usage_of(9, 5)}))), Wait(0.2), Send(chunk(DONE) + last_chunk())],
            "ok",
            (5, False),
        ),
    ],
    ids=["cut", "error", "error with text", "cut behind usage", "usage apart from the end"],
)
async def test_a_stream_that_fails(scene: Scene, last: list[Step], outcome: str, counts: tuple[int, bool]) -> None:
    """Tokens that were seen are counted, usage counts as soon as it is there, and the text of an error never does."""
    seen = await scene.ask([Send(sse_head()), *map(Send, TOKENS), *last])

    assert seen.record["outcome"] == outcome
    assert (seen.record["completion_tokens"], seen.record["completion_is_estimate"]) == counts
    assert seen.record["prompt_is_estimate"] is counts[1]


async def test_a_refusal_has_no_tokens(scene: Scene) -> None:
    """An error with a body that looks like usage adds nothing, streamed for or not."""
    before = await scene.gateway.metrics()
    for status in (400, 429, 500):
        body = {"error": {"message": "many words that nobody generated"}, "usage": usage_of(100, 50)}
        seen = await scene.ask([Send(plain(status, body))])
        assert (seen.record["prompt_tokens"], seen.record["completion_tokens"], seen.record["token_events"]) == (None, None, 0)
    after = await scene.gateway.metrics()

    for name in ("ridgeline_prompt_tokens_total", "ridgeline_completion_tokens_total"):
        assert after.total(name) == before.total(name)


# Odd figures


@pytest.mark.parametrize(
    "usage",
    [
        '"x"',
        "[1]",
        "7",
        '{"prompt_tokens":"3","completion_tokens":[]}',
        '{"prompt_tokens":-1,"completion_tokens":1e30}',
        '{"prompt_tokens":3.5,"completion_tokens":NaN}',
        '{"prompt_tokens":null,"completion_tokens":null}',
        "{}",
        "null",
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_usage_without_sense(scene: Scene, usage: str, stream: bool) -> None:
    """The answer is relayed and what cannot be is unknown: a stream is counted by its events, a plain answer not at all."""
    last = b'data: {"choices":[],"usage":' + usage.encode() + b"}\n\n"
    body = b'{"choices":[{"index":0,"message":{"content":"abc"},"finish_reason":"stop"}],"usage":' + usage.encode() + b"}"
    script = (
        [Send(sse_head()), *map(Send, TOKENS), Send(chunk(last) + chunk(DONE) + last_chunk())]
        if stream
        else [Send(plain(200, body))]
    )

    before = await scene.gateway.metrics()
    seen = await scene.ask(script, body=chat_body(stream=stream))
    after = await scene.gateway.metrics()

    assert (last if stream else body) in seen.answer.body
    assert seen.record["outcome"] == "ok"
    assert (seen.record["completion_tokens"], seen.record["completion_is_estimate"]) == ((3, True) if stream else (None, False))
    assert (seen.record["prompt_tokens"], seen.record["prompt_is_estimate"]) == (seen.record["estimated_prompt_tokens"], True)
    is_wrong = usage not in ("{}", "null") and "null" not in usage
    assert (after.value("ridgeline_parse_errors_total") > before.value("ridgeline_parse_errors_total")) == is_wrong


CACHED = [  # in this order: what is absent means 0 once a worker has sent details
    ({}, None, False, 0, 1),
    ({"prompt_tokens_details": None}, None, False, 0, 1),
    ({"prompt_tokens_details": {"cached_tokens": 0}}, 0, False, 10, 0),
    ({}, 0, True, 10, 0),
    ({"prompt_tokens_details": None}, 0, True, 10, 0),
    ({"prompt_tokens_details": {"cached_tokens": 4}}, 4, False, 10, 0),
    ({"prompt_tokens_details": {"cached_tokens": 11}}, None, False, 0, 1),
    ({"prompt_tokens_details": {}}, None, False, 0, 1),
]


async def test_cached_tokens() -> None:
    """Absent and null are unknown, 0 is 0, more than the prompt is wrong; the hit share has only known prompts below it."""
    names = ("ridgeline_cache_known_prompt_tokens_total", "ridgeline_cache_unknown_requests_total")
    async with running_scene() as scene:
        for details, *expected in CACHED:
            before = await scene.gateway.metrics()
            usage = usage_of(10, 2) | details
            seen = await scene.ask(stream_of(chat_events(["a", "b"], usage=usage)))
            after = await scene.gateway.metrics()

            grown = [after.total(name) - before.total(name) for name in names]
            assert [seen.record["cached_tokens"], seen.record["cached_inferred"], *grown] == expected, details


async def test_what_a_response_says_of_the_cache_proves_nothing_of_a_chat() -> None:
    """Responses always name cached tokens, so a chat of the same worker without details stays unknown."""
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
    response["usage"] = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2}
    async with running_scene() as scene:
        told = await scene.ask([Send(plain(200, response))], body={"model": "tiny", "input": "Hi"}, path="/v1/responses")
        seen = await scene.ask(stream_of(chat_events(["a"], usage=usage_of(10, 1))))

    assert (told.record["cached_tokens"], seen.record["cached_tokens"]) == (4, None)


# Large events


async def test_an_event_of_two_mebibytes(scene: Scene) -> None:
    """One line of that size passes whole, is counted as the token that it is, and the stream goes on."""
    large = {"tool_calls": [{"index": 0, "function": {"arguments": "x" * 2 * 1024 * 1024}}]}
    big = {"choices": [{"index": 0, "delta": large, "finish_reason": None}]}
    role, *rest = chat_events(["a", "b"], usage=usage_of(5, 9))
    for body in (UNASKED, chat_body()):
        seen = await scene.ask(stream_of([role, big, *rest]), body=body)

        assert events_of(seen.answer.body)[1] == big
        assert (seen.record["token_events"], seen.record["completion_tokens"], seen.record["outcome"]) == (3, 9, "ok")


# Several choices


async def test_each_choice_that_ends_keeps_its_fingerprint(scene: Scene) -> None:
    """A worker puts it on each finishing event if usage is not asked for: so does the gateway, once it knows it."""

    def part(index: int, finish: str | None = None, **more: Any) -> dict[str, Any]:
        delta = {} if finish else {"content": "a"}
        return {"id": "x", "choices": [{"index": index, "delta": delta, "finish_reason": finish}], **more}

    asked_for = [part(0), part(1), part(0, "stop"), part(1, "stop")]
    last = {"id": "x", "choices": [], "usage": usage_of(5, 4), "system_fingerprint": "vllm-1"}
    direct = [part(0), part(1), part(0, "stop", system_fingerprint="vllm-1"), part(1, "stop", system_fingerprint="vllm-1")]
    bodies = [(await scene.ask(stream_of([*asked_for, last]), body=UNASKED | {"n": 2})).answer.body for _ in range(2)]

    assert events_of(bodies[0]) == [part(0), part(1), part(0, "stop"), direct[3], "[DONE]"]
    assert events_of(bodies[1]) == [*direct, "[DONE]"]


# The worker's own clocks


async def test_the_workers_times_stand_beside_ours(scene: Scene) -> None:
    """They are in the record under names of their own, and change none of what the gateway measured."""
    times = {"time_to_first_token_ms": 7.5, "queue_time_ms": 2000, "generation_time_ms": 40, "mean_itl_ms": 20}
    last = {"choices": [], "usage": usage_of(9, 3), "metrics": times}
    seen = await scene.ask(stream_of([*chat_events(["a", "b", "c"]), last], gap_seconds=0.02), body=UNASKED)
    without = await scene.ask(stream_of(chat_events(["a"], usage=usage_of(9, 1))), body=UNASKED)
    body = json.loads(chat_answer("x", usage=usage_of(5, 3)).partition(b"\r\n\r\n")[2]) | {"metrics": times}
    whole = await scene.ask([Send(plain(200, body))], body=chat_body(stream=False))

    names = ("worker_ttft_seconds", "worker_queue_seconds", "worker_generation_seconds", "worker_itl_seconds")
    assert [seen.record[name] for name in names] == [0.0075, 2.0, 0.04, 0.02]
    assert [whole.record[name] for name in names] == [0.0075, 2.0, 0.04, 0.02]
    assert [without.record[name] for name in names] == [None] * 4
    assert 0.03 < seen.record["ttft_seconds"] < 1.0
    assert b"metrics" not in seen.answer.body


# First tokens


async def test_an_echo_is_not_the_first_token(scene: Scene) -> None:
    """A chat that echoes its last message has its first token behind it."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    body = chat_body(messages=messages, echo=True, add_generation_prompt=False, continue_final_message=True)
    role, echo, *rest = (chunk(event(each)) for each in chat_events(["Well", "a", "b"], usage=usage_of(5, 2)))
    seen = await scene.ask(
        [Send(sse_head() + role + echo), Wait(0.2), *map(Send, rest), Send(chunk(DONE) + last_chunk())], body=body
    )

    assert seen.record["token_events"] == 2
    assert seen.record["ttft_seconds"] > 0.19


async def test_a_completion_puts_its_first_token_behind_the_echo(scene: Scene) -> None:
    """The first event holds both, unless no token was asked for; then there is none, although the worker counts one."""
    pieces = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("Hello a", "b")]
    last = {"choices": [], "usage": usage_of(5, 1)}
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
    body = {"model": "tiny", "prompt": "Hello", "echo": True, "stream": True, "stream_options": {"include_usage": True}}
    seen = await scene.ask(stream_of([*pieces, end, last]), body=body, path=COMPLETIONS)
    none = await scene.ask(stream_of([pieces[0], end, last]), body=body | {"max_tokens": 0}, path=COMPLETIONS)

    assert (seen.record["token_events"], seen.record["no_token"]) == (2, None)
    assert (none.record["token_events"], none.record["no_token"], none.record["ttft_seconds"]) == (0, "hidden", None)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (stream_of(chat_events([], usage=usage_of(5, 0))), "empty"),
        (stream_of(chat_events([], usage=usage_of(5, 9))), "hidden"),
        ([Send(sse_head() + TOKENS[0]), Close()], "cut"),
        ([Send(plain(503, {"error": {}}))], "refused"),
        ([Send(sse_head() + chunk(event({"error": {"message": "m"}})) + last_chunk())], "refused"),
        ([Close()], "not_answered"),
        ([Send(sse_head(("content-encoding", "gzip")) + chunk(b"\x1f\x8b") + last_chunk())], "unmetered"),
    ],
)
async def test_why_there_is_no_first_token(scene: Scene, script: list[Step], reason: str) -> None:
    """Each stream without one says why, in the record and in a counter; none has a TTFT."""
    before = await scene.gateway.metrics()
    seen = await scene.ask(script)
    after = await scene.gateway.metrics()

    assert (seen.record["no_token"], seen.record["ttft_seconds"]) == (reason, None)
    grown = after.total("ridgeline_no_token_total", reason=reason) - before.total("ridgeline_no_token_total", reason=reason)
    assert grown == 1


async def test_requests_that_run_at_once_are_told_apart(scene: Scene) -> None:
    """Fifty streams and fifty plain answers: a TTFT each for the streams, none for the others, and every token counted."""
    await scene.quiet()
    before = await scene.gateway.metrics()
    stream = stream_of(chat_events(["a", "b"], usage=usage_of(5, 2)), gap_seconds=0.005)
    plains = [scene.ask([Send(chat_answer("x", usage=usage_of(5, 3)))], body=chat_body(stream=False)) for _ in range(50)]
    seen = await asyncio.gather(*plains, *(scene.ask(stream, path=CHAT) for _ in range(50)))
    after = await scene.gateway.metrics()

    assert sum(one.record["ttft_seconds"] is not None for one in seen) == 50
    grown = [
        after.total(name) - before.total(name)
        for name in ("ridgeline_ttft_seconds_count", "ridgeline_requests_total", "ridgeline_completion_tokens_total")
    ]
    assert grown == [50, 100, 250]
