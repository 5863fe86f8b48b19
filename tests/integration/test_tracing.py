"""Spans as a receiver gets them: the tree from the client's context to the worker's, and nobody held up by the receiver."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.answers import chat_answer, chat_events, plain, stream_of, usage_of
from tests.integration.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.integration.scene import Scene, chat_body, running_scene
from tests.integration.steps import Close, Hang, Reset, Send, Wait

# They hold real processes against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = ("traceparent", f"00-{TRACE}-{PARENT}-01")
UNSAMPLED = ("traceparent", f"00-{TRACE}-{PARENT}-00")
STREAM = stream_of(chat_events(["a", "b", "c"], usage=usage_of(9, 3, 4)), gap_seconds=0.01)
ANSWER = [Send(chat_answer("x", usage=usage_of(5, 3)))]


@asynccontextmanager
async def tracing_scene(receiver: OtlpReceiver, **settings: Any) -> AsyncIterator[Scene]:
    tracing = {"otlp_endpoint": receiver.url, "sample_ratio": 1, **settings}
    pools: dict[str, dict[str, Any]] = {"tiny": {}, "pair": {"policy": "round-robin"}}
    async with running_scene(pools, config={"tracing": tracing}, workers={"pair": 2}) as scene:
        yield scene


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def receiver() -> AsyncIterator[OtlpReceiver]:
    async with OtlpReceiver() as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(receiver: OtlpReceiver) -> AsyncIterator[Scene]:
    """A gateway that samples everything."""
    async with tracing_scene(receiver, headers={"x-scope": "team a"}) as one:
        yield one


async def tree_of(receiver: OtlpReceiver, record: dict[str, Any], count: int = 2) -> tuple[ReceivedSpan, list[ReceivedSpan]]:
    """The request's span and those of its attempts, oldest first, once so many have arrived."""

    def mine(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
        request_id = record["request_id"]
        roots = [span for span in spans if span.attributes.get("ridgeline.request_id") == request_id]
        return roots + [span for span in spans if roots and span.parent_id == roots[0].span_id]

    spans = mine(await receiver.spans_when(lambda spans: len(mine(spans)) >= count))
    assert len(spans) == count
    return spans[0], sorted(spans[1:], key=lambda span: span.started_unix_ns)


async def test_the_tree_of_a_stream(scene: Scene, receiver: OtlpReceiver) -> None:
    """The request continues the client's trace, the attempt is below it, and the worker was given the attempt as its parent."""
    seen = await scene.ask(STREAM, headers=[SAMPLED, ("tracestate", "vendor=1")])
    root, (attempt,) = await tree_of(receiver, seen.record)
    sent = scene.arrivals(seen.record["request_id"])[0].headers

    assert (root.trace_id, root.parent_id, root.parent_is_remote, root.kind) == (TRACE, PARENT, True, 2)
    assert (attempt.trace_id, attempt.parent_id, attempt.parent_is_remote, attempt.kind) == (TRACE, root.span_id, False, 3)
    assert sent["traceparent"] == f"00-{TRACE}-{attempt.span_id}-01"
    assert sent["tracestate"] == "vendor=1"
    assert seen.record["trace_id"] == TRACE
    assert len({root.span_id, attempt.span_id, PARENT}) == 3

    assert (root.name, attempt.name) == ("POST /v1/chat/completions", "chat tiny")
    assert root.attributes["http.response.status_code"] == 200
    assert attempt.attributes["gen_ai.usage.input_tokens"] == 9
    assert attempt.attributes["gen_ai.usage.output_tokens"] == 3
    assert attempt.attributes["gen_ai.usage.cache_read.input_tokens"] == 4
    assert attempt.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert (attempt.attributes["server.address"], attempt.attributes["server.port"]) == ("127.0.0.1", scene.worker.port)
    assert (root.status, attempt.status) == (0, 0)

    assert root.resource["service.name"] == "ridgeline"
    assert receiver.paths[-1] == "/v1/traces"
    assert receiver.headers[-1]["x-scope"] == "team a"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_attempt_tells_what_was_asked_and_how_the_answer_calls_itself(
    scene: Scene, receiver: OtlpReceiver, *, stream: bool
) -> None:
    """Sampling is on the attempt's span, beside the id and the model that the worker's answer names; no text is."""
    body = chat_body(stream=stream, temperature=0.25, top_p=0.5, max_tokens=7, seed=3, stop=["the end"])
    seen = await scene.ask(STREAM if stream else ANSWER, body=body)
    _, (attempt,) = await tree_of(receiver, seen.record)
    first = seen.answer.body.partition(b"data: ")[2].partition(b"\n")[0] if stream else seen.answer.body
    said = json.loads(first)

    asked = {"temperature": 0.25, "top_p": 0.5, "max_tokens": 7, "seed": 3}
    assert {name: attempt.attributes[f"gen_ai.request.{name}"] for name in asked} == asked
    assert attempt.attributes["gen_ai.response.id"] == said["id"]
    assert attempt.attributes["gen_ai.response.model"] == said["model"]
    assert "the end" not in repr(attempt.attributes)


async def test_the_instants_of_a_stream(scene: Scene, receiver: OtlpReceiver) -> None:
    """Spans lie within each other on the wall clock, and the first token stands where TTFT says."""
    before = time.time_ns()
    seen = await scene.ask([Wait(0.2), *STREAM])
    after = time.time_ns()
    root, (attempt,) = await tree_of(receiver, seen.record)

    slack = 20_000_000  # clocks of two kinds, read one after the other
    assert before - slack <= root.started_unix_ns <= attempt.started_unix_ns
    assert attempt.ended_unix_ns <= root.ended_unix_ns <= after + slack
    assert root.ended_unix_ns - root.started_unix_ns >= 200_000_000
    token_seconds = (attempt.events["ridgeline.first_token"] - root.started_unix_ns) / 1e9
    assert token_seconds == pytest.approx(seen.record["ttft_seconds"] + seen.record["upload_seconds"], abs=1e-3)


async def test_a_trace_begins_here_without_a_context(scene: Scene, receiver: OtlpReceiver) -> None:
    """Without a context the request is the root of a new trace, whose id is in the log."""
    first, second = await scene.ask(ANSWER, body=chat_body(stream=False)), await scene.ask(STREAM)
    root, (attempt,) = await tree_of(receiver, first.record)

    assert (root.parent_id, root.trace_id) == ("", first.record["trace_id"])
    assert scene.arrivals(first.record["request_id"])[0].headers["traceparent"] == f"00-{root.trace_id}-{attempt.span_id}-01"
    assert first.record["trace_id"] != second.record["trace_id"]
    assert first.record["chain_id"] is None


@pytest.mark.parametrize(
    "value",
    [
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-x",
        f"00-{TRACE}-{PARENT}",
        "nonsense",
        "",
    ],
)
async def test_a_bad_context_is_ignored(scene: Scene, receiver: OtlpReceiver, value: str) -> None:
    """A context that the standard does not allow is not passed on, nor its state; a new trace begins."""
    seen = await scene.ask(STREAM, headers=[("traceparent", value), ("tracestate", "vendor=1")])
    arrivals = [header for header in scene.arrivals(seen.record["request_id"])[0].head.headers if "trace" in header[0]]

    assert [name for name, _ in arrivals] == ["traceparent"]
    assert arrivals[0][1].startswith(f"00-{seen.record['trace_id']}-")
    assert seen.record["trace_id"] not in (TRACE, TRACE.upper())


async def test_two_contexts_are_none(scene: Scene) -> None:
    """With two contexts there is no telling which is meant."""
    seen = await scene.ask(STREAM, headers=[SAMPLED, SAMPLED])

    assert seen.record["trace_id"] != TRACE
    names = [name for name, _ in scene.arrivals(seen.record["request_id"])[0].head.headers]
    assert names.count("traceparent") == 1


async def test_a_client_that_does_not_sample_is_obeyed(scene: Scene, receiver: OtlpReceiver) -> None:
    """Flag 00 of a client's context goes on to the worker as it came, and nothing is recorded."""
    seen = await scene.ask(STREAM, headers=[UNSAMPLED])
    later = await scene.ask(STREAM)
    await tree_of(receiver, later.record)

    assert scene.arrivals(seen.record["request_id"])[0].headers["traceparent"] == UNSAMPLED[1]
    assert seen.record["trace_id"] == TRACE
    assert all(span.attributes.get("ridgeline.request_id") != seen.record["request_id"] for span in receiver.spans)


async def test_a_retry_is_an_attempt_of_its_own(scene: Scene, receiver: OtlpReceiver) -> None:
    """A worker that cannot be reached and the one that answered are two spans below the request, each with its own parent."""
    gone, other = scene.workers["pair"]
    await gone.stop_listening()
    try:
        for _ in range(2):  # one of the two is asked first in turn
            seen = await scene.ask(STREAM, body=chat_body("pair"), headers=[SAMPLED])
            if seen.record["attempts"] == 2:
                break
    finally:
        await gone.start()
    root, (failed, answered) = await tree_of(receiver, seen.record, 3)

    assert (failed.status, failed.attributes["error.type"], failed.attributes["server.port"]) == (
        2,
        "connect_failed",
        gone.port,
    )
    assert (answered.status, answered.attributes["server.port"]) == (0, other.port)
    assert root.status == 0
    assert failed.span_id != answered.span_id
    assert "gen_ai.usage.output_tokens" not in failed.attributes
    assert scene.arrivals(seen.record["request_id"])[0].headers["traceparent"].split("-")[2] == answered.span_id


async def test_a_stale_connection_is_an_attempt_too(scene: Scene, receiver: OtlpReceiver) -> None:
    """A kept connection that was already closing is told apart from the fresh one that the same worker then answered on."""
    await scene.ask(ANSWER, body=chat_body(stream=False))
    seen = await scene.ask([Close()], STREAM)
    root, (stale, answered) = await tree_of(receiver, seen.record, 3)

    assert (stale.attributes["error.type"], stale.attributes["ridgeline.worker"]) == ("stale", seen.record["worker"])
    assert (root.status, answered.status, answered.attributes["ridgeline.worker"]) == (0, 0, seen.record["worker"])
    told = [arrival.headers["traceparent"].split("-")[2] for arrival in scene.arrivals(seen.record["request_id"])]
    assert told == [stale.span_id, answered.span_id]


@pytest.mark.parametrize(
    ("script", "request_error", "attempt_error"),
    [
        ([Send(plain(400, {"error": {}}))], None, "400"),
        ([Send(plain(500, {"error": {}}))], "worker_error", "500"),
        ([Send(plain(429, {"error": {}}))], "worker_busy", "429"),
        ([Wait(0.4), Close()], "worker_error", "broken"),
        ([*STREAM[:3], Reset()], "truncated", "broken"),
    ],
)
async def test_how_errors_show(
    scene: Scene, receiver: OtlpReceiver, script: list[Any], request_error: str | None, attempt_error: str
) -> None:
    """An attempt has the worker's error; the request's span is an error only where the client was not at fault."""
    seen = await scene.ask(script)
    root, attempts = await tree_of(receiver, seen.record)

    assert (attempts[-1].status, attempts[-1].attributes["error.type"]) == (2, attempt_error)
    assert (root.status, root.attributes.get("error.type")) == ((0, None) if request_error is None else (2, request_error))
    assert root.attributes["ridgeline.outcome"] == seen.record["outcome"]


async def test_a_client_that_leaves(scene: Scene, receiver: OtlpReceiver) -> None:
    """A client that leaves is an error of nobody, and says where it left."""
    request_id = scene.plays([Hang()])
    client = await scene.connect()
    await client.send(scene.request(request_id, chat_body()))
    await scene.arrival(request_id)
    client.close()
    root, (attempt,) = await tree_of(receiver, await scene.record(request_id))

    assert (root.status, attempt.status) == (0, 0)
    assert root.attributes["ridgeline.outcome"] == "client_gone"
    assert attempt.attributes["ridgeline.attempt_result"] == "abandoned"


async def test_refused_requests_have_one_span(scene: Scene, receiver: OtlpReceiver) -> None:
    """What no worker was asked for has no attempt; a path that does not exist is not in the name."""
    seen = await scene.ask([], path="/secret/path")
    root, attempts = await tree_of(receiver, seen.record, 1)

    assert (root.name, attempts) == ("HTTP", [])
    assert "secret" not in repr(root)


async def test_no_secrets_and_no_text(scene: Scene, receiver: OtlpReceiver) -> None:
    """Keys, header values, prompts and answers are in no span."""
    body = chat_body(stream=False, messages=[{"role": "user", "content": "PROMPT-TEXT"}])
    answer = [Send(chat_answer("ANSWER-TEXT", usage=usage_of(5, 3)))]
    seen = await scene.ask(answer, body=body, headers=[("Authorization", "Bearer sk-secret"), ("x-own", "HEADER-VALUE")])
    await tree_of(receiver, seen.record)

    text = repr(receiver.spans)
    assert not [secret for secret in ("PROMPT-TEXT", "ANSWER-TEXT", "sk-secret", "HEADER-VALUE") if secret in text]


async def test_unsampled_requests_carry_a_context_too() -> None:
    """With a ratio of 0 a worker still gets a valid context, flagged as not sampled, and no span is made."""
    async with OtlpReceiver() as receiver, tracing_scene(receiver, sample_ratio=0) as scene:
        seen = await scene.ask(STREAM)
        forced = await scene.ask(STREAM, headers=[SAMPLED])
        await tree_of(receiver, forced.record)

        version, trace_id, span_id, flags = scene.arrivals(seen.record["request_id"])[0].headers["traceparent"].split("-")
        assert (version, flags) == ("00", "00")
        assert (trace_id, len(span_id)) == (seen.record["trace_id"], 16)
        assert len(receiver.spans) == 2


async def test_without_tracing_contexts_pass_as_they_are() -> None:
    """A gateway without a receiver adds no context and changes none; the client's trace id is in the log."""
    async with running_scene() as scene:
        seen, without = await scene.ask(STREAM, headers=[SAMPLED, ("tracestate", "a=b")]), await scene.ask(STREAM)

        headers = scene.arrivals(seen.record["request_id"])[0].headers
        assert (headers["traceparent"], headers["tracestate"]) == (SAMPLED[1], "a=b")
        assert seen.record["trace_id"] == TRACE
        assert "traceparent" not in scene.arrivals(without.record["request_id"])[0].headers
        assert without.record["trace_id"] is None


async def slowest_of(scene: Scene, count: int = 40) -> float:
    """The longest of so many requests, one after another."""
    slowest = 0.0
    async with await scene.connect() as client:
        for _ in range(count):
            began_at = time.monotonic()
            await scene.ask(ANSWER, body=chat_body(stream=False), client=client)
            slowest = max(slowest, time.monotonic() - began_at)
    return slowest


@pytest.fixture(params=["refused", "silent", "slow", "error"])
def away(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def receiver_that_is(away: str) -> AsyncIterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    if away == "refused":
        receiver.reserve()
        yield receiver
    elif away == "silent":
        with closing(silent_listener()) as listener:
            receiver.port = listener.getsockname()[1]
            yield receiver
    else:
        receiver.delay_seconds = 30.0 if away == "slow" else 0.0
        receiver.status = 503 if away == "error" else 200
        async with receiver:
            yield receiver


def silent_listener() -> socket.socket:
    """Takes connections and never says a word."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    return listener


async def test_a_receiver_that_is_away_holds_up_nobody(away: str) -> None:
    """Requests, the log and scrapes go on as ever, and the gateway ends in time, its spans counted as lost."""
    async with receiver_that_is(away) as receiver, tracing_scene(receiver) as scene:
        assert await slowest_of(scene) < 1.0
        began_at = time.monotonic()
        metrics = await scene.gateway.metrics()
        assert time.monotonic() - began_at < 1.0
        assert metrics.value("ridgeline_records_dropped_total") == 0
        assert metrics.value("ridgeline_spans_sent_total") == 0
        assert metrics.value("ridgeline_control_lag_seconds") < 1.0
        ending_at = time.monotonic()
        await scene.gateway.stop()
        assert time.monotonic() - ending_at < 5.0


async def test_lost_spans_are_counted_and_told_once() -> None:
    """A receiver that refuses costs its spans, which are counted; one line says so, and when it is back spans arrive again."""
    receiver = OtlpReceiver(status=400)
    async with receiver, tracing_scene(receiver) as scene:
        for _ in range(3):
            await scene.ask(ANSWER, body=chat_body(stream=False))
            await asyncio.sleep(1.2)  # a batch of its own
        await scene.gateway.metrics_when(lambda page: page.value("ridgeline_spans_dropped_total") == 6)
        told = [line for line in scene.gateway.stderr.splitlines() if "traces to" in line]
        assert len(told) == 1
        assert "400" in told[0]

        receiver.status = 200
        seen = await scene.ask(STREAM)
        await tree_of(receiver, seen.record)
        metrics = await scene.gateway.metrics_when(lambda page: page.value("ridgeline_spans_sent_total") == 2)
        assert metrics.value("ridgeline_spans_dropped_total") == 6


async def test_spans_are_sent_before_the_end() -> None:
    """What waits when the gateway is stopped is sent first."""
    async with OtlpReceiver() as receiver:
        async with tracing_scene(receiver) as scene:
            seen = await scene.ask(STREAM)
        assert {span.trace_id for span in receiver.spans} == {seen.record["trace_id"]}
