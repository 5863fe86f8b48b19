"""The figures of the record against clocks of our own, on answers whose delays are known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.http1 import chunk, last_chunk
from tests.integration.answers import DONE, chat_answer, event, sse_head, usage_of
from tests.integration.gateway import running_gateway
from tests.integration.raw_client import End, RawClient, request_bytes
from tests.integration.scene import CHAT, COMPLETIONS, Scene, chat_body, running_scene
from tests.integration.steps import Hang, Send, Step, Until, Wait

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.alone, pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

FRAME: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway whose second model has a short hold of answer heads."""
    async with running_scene({"tiny": {}, "held": {"limits": {"head_hold_seconds": 0.5}}}) as one:
        yield one


def part(delta: dict[str, Any], reason: str | None = None) -> bytes:
    return chunk(event({**FRAME, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}))


def ending(tokens: int) -> list[Step]:
    usage = event({**FRAME, "choices": [], "usage": usage_of(5, tokens, 0)})
    return [Send(part({}, "stop")), Send(chunk(usage)), Send(chunk(DONE)), Send(last_chunk())]


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=max(0.005, 0.05 * seconds))


ROLE = Send(part({"role": "assistant", "content": ""}))
TOOL = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "MARK", "arguments": ""}}]}
COMMENT = Send(chunk(b": keep-alive\n\n"))
FIRST_TOKENS: dict[str, tuple[list[Step], list[Step]]] = {
    # what comes before the first token, and that token, which holds MARK
    "text": ([Wait(0.2)], [Send(part({"content": "MARK"}))]),
    "role first": ([ROLE, Wait(0.2)], [Send(part({"content": "MARK"}))]),
    "role late": ([Wait(0.1), ROLE, Wait(0.2)], [Send(part({"content": "MARK"}))]),
    "reasoning first": ([ROLE, Wait(0.2)], [Send(part({"reasoning": "MARK"})), Wait(0.1), Send(part({"content": "b"}))]),
    "older reasoning": (
        [ROLE, Wait(0.2)],
        [Send(part({"reasoning_content": "MARK"})), Wait(0.1), Send(part({"content": "b"}))],
    ),
    "tool call": ([ROLE, Wait(0.2)], [Send(part(TOOL))]),
    "comments before": ([COMMENT, Wait(0.1), COMMENT, Wait(0.1), ROLE, COMMENT, Wait(0.1)], [Send(part({"content": "MARK"}))]),
    "empty deltas": ([ROLE, Wait(0.1), Send(part({"content": ""})), Wait(0.1)], [Send(part({"content": "MARK"}))]),
    "at once": ([], [ROLE, Send(part({"content": "MARK"}))]),
    "role and token in one write": ([Wait(0.2)], [Send(ROLE.data + part({"content": "MARK"}) + part({"content": "x"}))]),
    "no extra event": ([ROLE, Wait(1.0)], [Send(part({"content": "MARK"}))]),
}


@pytest.mark.parametrize("name", FIRST_TOKENS)
@pytest.mark.parametrize("asks", [True, False])
async def test_ttft_is_what_the_client_saw(scene: Scene, name: str, asks: bool) -> None:
    """TTFT is the first generated token of any kind as the client's own clock has it, whether the client asks for usage."""
    before, token = FIRST_TOKENS[name]
    body = chat_body() if asks else {**chat_body(stream=False), "stream": True}
    await scene.ask([Send(chat_answer("warm", usage=usage_of(1, 1)))], body=chat_body(stream=False))

    seen = await scene.ask([Send(sse_head()), *before, *token, Wait(0.05), Send(part({"content": "z"})), *ending(2)], body=body)
    measured = seen.answer.at(b"MARK") - seen.sent_at
    record = seen.record

    assert record["ttft_seconds"] == near(measured)
    assert record["upstream_ttft_seconds"] == near(measured)
    assert record["ttft_delivered_seconds"] == near(measured)
    assert record["upstream_ttft_seconds"] <= record["ttft_seconds"] <= record["ttft_delivered_seconds"]
    if "reasoning" in name:
        assert record["ttft_visible_seconds"] == near(seen.answer.at(b'"b"') - seen.sent_at)
    elif name == "tool call":
        assert record["ttft_visible_seconds"] == near(seen.answer.at(b'"z"') - seen.sent_at)
    else:
        assert record["ttft_visible_seconds"] == record["ttft_seconds"]
    assert record["e2e_seconds"] == near(seen.answer.reads[-1][0] - seen.sent_at)
    assert 0 <= record["overhead_seconds"] < 0.02


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_tpot_is_the_mean_over_tokens(scene: Scene, path: str) -> None:
    """TPOT is the time between the first and the last token over the tokens that usage counts, less one."""
    texts = "abcdefghijklmnopqrst"
    choices = [{"delta": {"content": text}} if path == CHAT else {"text": text} for text in texts]
    tokens = [
        chunk(event({**FRAME, "choices": [{"index": 0, **choice, "logprobs": None, "finish_reason": None}]}))
        for choice in choices
    ]
    last = {"delta": {}} if path == CHAT else {"text": ""}
    finish = chunk(event({**FRAME, "choices": [{"index": 0, **last, "finish_reason": "length"}]}))
    usage = chunk(event({**FRAME, "choices": [], "usage": usage_of(5, 40)}))
    script = [Send(sse_head()), *[step for token in tokens for step in (Wait(0.02), Send(token))]]
    seen = await scene.ask(
        [*script, Send(finish), Send(usage), Send(chunk(DONE)), Send(last_chunk())], body=chat_body(), path=path
    )

    between = seen.answer.at(b'"length"') - seen.answer.at(b'"a"')
    assert seen.record["tpot_seconds"] == near(between / 39)
    assert seen.record["tpot_seconds"] == pytest.approx(between / 39, rel=0.05)
    assert seen.record["token_events"] == 20
    assert seen.record["completion_tokens"] == 40


async def test_bursts_of_tokens(scene: Scene) -> None:
    """Twenty events 50 ms apart with one to six tokens each: TPOT is by tokens, and the gaps are named as gaps of chunks."""
    bursts = [1 + number % 6 for number in range(20)]
    tokens = [Send(part({"content": f"t{number}" * size})) for number, size in enumerate(bursts)]
    before = await scene.gateway.metrics()
    seen = await scene.ask(
        [Send(sse_head()), *[step for token in tokens for step in (Wait(0.05), token)], *ending(sum(bursts))]
    )
    after = await scene.gateway.metrics()

    between = seen.answer.at(b'"stop"') - seen.answer.at(b'"t0"')
    assert seen.record["tpot_seconds"] == pytest.approx(between / (sum(bursts) - 1), rel=0.05)
    grown = {
        name: after.total(f"ridgeline_{name}_seconds_count") - before.total(f"ridgeline_{name}_seconds_count")
        for name in ("chunk_gap", "itl")
    }
    assert grown == {"chunk_gap": 19, "itl": 0}


async def test_a_token_passes_two_gateways_at_once(scene: Scene) -> None:
    """No hop waits for a second event before it passes the first one on."""
    gate = asyncio.Event()
    kept, scene.worker.script = (
        scene.worker.script,
        [Send(sse_head()), ROLE, Send(part({"content": "MARK"})), Until(gate), *ending(1)],
    )
    try:
        async with (
            running_gateway(workers=[scene.gateway.base_url]) as front,
            await RawClient.connect(front.base_url) as client,
        ):
            sent_at = await client.send(request_bytes("POST", CHAT, {**chat_body(stream=False), "stream": True}))
            await client.read_until(b"MARK")
            assert time.monotonic() - sent_at < 1.0
            gate.set()
    finally:
        scene.worker.script = kept


async def test_tpot_needs_two_tokens_and_one_choice(scene: Scene) -> None:
    """A single token has no TPOT, and an answer with two choices none either; both have a TTFT."""
    one = await scene.ask([Send(sse_head()), Send(part({"content": "a"})), *ending(1)])
    two = await scene.ask([Send(sse_head()), Send(part({"content": "a"})), *ending(6)], body=chat_body(n=2))

    for seen in (one, two):
        assert seen.record["tpot_seconds"] is None
        assert seen.record["ttft_seconds"] is not None


@pytest.mark.parametrize("asks", [True, False])
async def test_a_token_passes_at_once(scene: Scene, asks: bool) -> None:
    """Each token is at the client within 20 ms of the worker's write, whether usage has to be taken out or not."""
    texts = [f"t{number:02}" for number in range(15)]
    gates = [asyncio.Event() for _ in texts]
    steps = [step for text, gate in zip(texts, gates, strict=True) for step in (Until(gate), Send(part({"content": text})))]
    request_id = scene.plays([Send(sse_head()), ROLE, *steps, *ending(15)])
    delays = []

    async with await scene.connect() as client:
        body = chat_body() if asks else {**chat_body(stream=False), "stream": True}
        await client.send(scene.request(request_id, body))
        await client.read_until(b"assistant")
        for text, gate in zip(texts, gates, strict=True):
            await asyncio.sleep(0.01)
            written_at = time.monotonic()
            gate.set()
            await client.read_until(text.encode())
            delays.append(time.monotonic() - written_at)

    assert max(delays) < 0.02, delays
    assert (await scene.record(request_id))["outcome"] == "ok"


async def test_the_head_goes_out_when_the_worker_is_silent_after_its_own(scene: Scene) -> None:
    """After the hold the client gets the head without the worker's name; the tokens that come later arrive as ever."""
    seen = await scene.ask(
        [Send(sse_head()), Wait(1.6), ROLE, Send(part({"content": "MARK"})), *ending(1)], body=chat_body("held")
    )
    answer = seen.answer

    assert 0.4 < answer.at(b"\r\n\r\n") - seen.sent_at < 1.3
    assert answer.head is not None
    assert (answer.head.get("x-ridgeline-worker"), answer.head.get("x-ridgeline-pool")) == (None, None)
    assert answer.head.get("x-request-id") == seen.record["request_id"]
    assert (answer.end, seen.record["outcome"]) == (End.COMPLETE, "ok")
    assert seen.record["ttft_seconds"] == near(answer.at(b"MARK") - seen.sent_at)


async def test_the_head_waits_for_the_first_event(scene: Scene) -> None:
    """Within the hold neither the head nor a comment goes out: both come with the first event, with the worker's name."""
    seen = await scene.ask([Send(sse_head()), Wait(0.2), ROLE, Send(part({"content": "a"})), *ending(1)])
    assert seen.answer.head is not None

    assert seen.answer.at(b"\r\n\r\n") - seen.sent_at > 0.19
    assert seen.answer.head.get("x-ridgeline-worker") == seen.record["worker"]
    assert seen.answer.head.get("x-ridgeline-pool") == "default"


async def test_an_error_after_the_head_went_out_early(scene: Scene) -> None:
    """Once the head had to go, a worker that dies before its first event leaves a cut stream, not a clean end."""
    from tests.integration.steps import Close

    seen = await scene.ask([Send(sse_head()), Wait(1.6), Close()], body=chat_body("held"))

    assert (seen.answer.status, seen.answer.end, seen.record["outcome"]) == (200, End.CUT, "truncated")
    assert (seen.record["no_token"], seen.record["ttft_seconds"]) == ("cut", None)


async def test_plain_requests_have_no_ttft(scene: Scene) -> None:
    """Answers that are not streamed add nothing to the TTFT and TPOT histograms, and to E2E they do."""
    names = [
        "ridgeline_ttft_seconds_count",
        "ridgeline_ttft_visible_seconds_count",
        "ridgeline_upstream_ttft_seconds_count",
        "ridgeline_tpot_seconds_count",
        "ridgeline_worker_ttft_seconds_count",
        "ridgeline_no_token_total",
    ]
    before = await scene.quiet()
    for _ in range(3):
        seen = await scene.ask([Wait(0.05), Send(chat_answer("x", usage=usage_of(5, 3)))], body=chat_body(stream=False))
        assert (seen.record["ttft_seconds"], seen.record["tpot_seconds"]) == (None, None)
        assert seen.record["e2e_seconds"] == near(seen.answer.reads[-1][0] - seen.sent_at)
    after = await scene.quiet()

    assert [after.total(name) for name in names] == [before.total(name) for name in names]
    assert after.total("ridgeline_e2e_seconds_count") == before.total("ridgeline_e2e_seconds_count") + 3


async def test_streams_are_counted_once_in_each_histogram(scene: Scene) -> None:
    """One stream of three tokens: one TTFT, one TPOT, two gaps, and sums that are those of its record."""
    before = await scene.quiet()
    tokens = [step for text in "abc" for step in (Wait(0.03), Send(part({"content": text})))]
    seen = await scene.ask([Send(sse_head()), ROLE, *tokens, *ending(3)])
    after = await scene.quiet()

    def grown(name: str) -> float:
        return after.total(name) - before.total(name)

    for name in ("ttft", "upstream_ttft", "tpot", "worker_ttft", "worker_tpot", "ttft_visible"):
        assert grown(f"ridgeline_{name}_seconds_count") == 1, name
    assert grown("ridgeline_ttft_seconds_sum") == pytest.approx(seen.record["ttft_seconds"])
    assert grown("ridgeline_itl_seconds_count") == 2
    assert grown("ridgeline_itl_seconds_sum") == pytest.approx(seen.answer.at(b'"c"') - seen.answer.at(b'"a"'), abs=0.005)


async def test_a_client_that_leaves_before_the_first_token_has_no_ttft(scene: Scene) -> None:
    """An aborted request is no sample of TTFT."""
    before = await scene.quiet()
    request_id = scene.plays([Send(sse_head()), ROLE, Hang()])
    async with await scene.connect() as client:
        await client.send(scene.request(request_id, chat_body()))
        await client.read_until(b"assistant")
    record = await scene.record(request_id)
    after = await scene.quiet()

    assert (record["ttft_seconds"], record["no_token"]) == (None, "cut")
    assert after.total("ridgeline_ttft_seconds_count") == before.total("ridgeline_ttft_seconds_count")


JUMPING_CLOCK = """
import time

steps = [-3600.0, 3600.0]


def jumping(real, scale):
    def read():
        steps.append(steps.pop(0))
        return real() + type(real())(steps[0] * scale)

    return read


time.time, time.time_ns = jumping(time.time, 1), jumping(time.time_ns, 10**9)
"""


async def test_a_wall_clock_that_jumps_moves_no_duration(tmp_path: Path) -> None:
    """Set an hour back and forth at each reading, in every process of the gateway: durations are what the client saw."""
    (tmp_path / "sitecustomize.py").write_text(JUMPING_CLOCK)
    async with running_scene(environ={"PYTHONPATH": str(tmp_path)}) as jumping:
        script = [Send(sse_head()), ROLE, Wait(0.1), Send(part({"content": "MARK"})), Wait(0.1), Send(part({"content": "z"}))]
        seen = [await jumping.ask([*script, *ending(2)]) for _ in range(4)]
        page = await jumping.quiet()

    ended = [one.record["ended_unix_seconds"] for one in seen]
    assert max(ended) - min(ended) > 3000, "the clock did not jump"
    for one in seen:
        assert one.record["ttft_seconds"] == near(one.answer.at(b"MARK") - one.sent_at)
        assert one.record["e2e_seconds"] == near(one.answer.reads[-1][0] - one.sent_at)
        durations = [value for name, value in one.record.items() if name.endswith("_seconds") and "unix" not in name]
        assert all(0 <= value < 1 for value in durations if value is not None)
    for family in ("ttft", "tpot", "e2e", "queue", "connect", "overhead"):
        assert page.total(f"ridgeline_{family}_seconds_sum") < 4


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_streams_ttft_is_not_its_end(scene: Scene, path: str) -> None:
    """On either path the first token is told from the last; a path that nobody serves is no sample."""
    choice = {"delta": {"content": "a"}} if path == CHAT else {"text": "a"}
    token = chunk(event({**FRAME, "choices": [{"index": 0, **choice, "finish_reason": None}]}))
    before = await scene.gateway.metrics()
    seen = await scene.ask([Send(sse_head()), Send(token), Wait(0.1), Send(token), *ending(2)], body=chat_body(), path=path)
    stray = await scene.ask([], body=chat_body(), path="/v1/complete")
    after = await scene.gateway.metrics()

    assert seen.record["ttft_seconds"] < seen.record["e2e_seconds"] - 0.09
    assert (stray.answer.status, stray.record["ttft_seconds"]) == (404, None)
    assert after.total("ridgeline_ttft_seconds_count") - before.total("ridgeline_ttft_seconds_count") == 1
