"""What real workers sent, replayed through the whole gateway however the bytes are cut: nothing is changed, all is counted."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from proxy.serving.endpoints import Endpoints
from tests import plain_reading
from tests.captures import Capture, load, names
from tests.http1 import Head, Message, chunk
from tests.integration.answers import DONE, event
from tests.integration.raw_client import End
from tests.integration.scene import CHAT, COMPLETIONS, Scene, events_of, running_scene
from tests.integration.scripted_worker import Received
from tests.integration.steps import ByteByByte, Close, Send, Step, Wait
from tests.routing.topologies import a_model, a_pool, a_topology

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALIASES = ["scripted", "tiny-alias", "tiny-lora", "tiny-embed", "nope"]
# Answered by the gateway, since it is no JSON: test_outcomes.py has it.
REFUSED_HERE = {"err_invalid_json"}
SLOW = [
    "messages_thinking_stream",
    "responses_tool_stream",
    "chat_stream_utf8",
    "chat_stream_include_usage",
    "tool_auto_stream",
    "completion_stream",
    "chat_nonstream",
]


@dataclass(frozen=True, slots=True)
class Case:
    """A capture with what a worker sends when the gateway asks it for usage, and what has to come out."""

    name: str
    path: str
    body: bytes  # of the client's request
    served: bytes  # the worker's answer, head and all
    expected: bytes  # what the client must get, without framing
    is_cut: bool  # the worker's connection ends before the answer does
    expects: dict[str, Any]  # fields of the record


def request_body(capture: Capture) -> bytes:
    """The body as captured; where the file left it out, a stand-in that is as much of a stream."""
    body = capture.request.partition(b"\r\n\r\n")[2]
    if body.strip():
        return body
    streams = b"text/event-stream" in capture.response_head or capture.name.endswith("_stream")
    fields = {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "long"}], **fields}).encode()


def with_usage(capture: Capture) -> bytes:
    """The same stream as the worker would have sent it with usage asked for: one event more, before the end marker."""
    payload = capture.payload
    assert payload.endswith(DONE)
    first = events_of(payload)[0]
    tokens = len(plain_reading.token_offsets(payload))
    usage = {"prompt_tokens": 7, "total_tokens": 7 + tokens, "completion_tokens": tokens}
    extra = {name: first[name] for name in ("id", "object", "created", "model")} | {"choices": [], "usage": usage}
    at = capture.response.rindex(chunk(DONE))
    return capture.response[:at] + chunk(event(extra)) + capture.response[at:]


def judged(response: bytes, *, is_complete: bool, wants_choices: int, echoes: bool) -> dict[str, Any]:
    """What the record of an exchange has to say, by plain reading of the worker's answer."""
    message = Message(is_request=False)
    message.feed(response)
    if message.head is None:
        return {"outcome": "worker_error", "finish_reasons": [], "prompt_tokens": None, "completion_tokens": None}
    status, is_stream = message.head.status, "event-stream" in (message.head.get("content-type") or "")
    if status >= 400:
        outcome = "worker_busy" if status in (429, 503) else "worker_error" if status >= 500 else "client_error"
        return {"outcome": outcome, "worker_status": status, "prompt_tokens": None, "cached_tokens": None}
    payload = bytes(message.body)
    items = [data for _, data in plain_reading.timed_events(payload)] if is_stream else [json.loads(payload)]
    reasons = plain_reading.finish_reasons(items)
    final = next((usage for item in reversed(items) if (usage := plain_reading.usage_of(item))), None)
    is_over = not is_stream or "[DONE]" in items or len(reasons) >= wants_choices
    if any("error" in item and item["error"] is not None for item in items if isinstance(item, dict)):
        outcome = "worker_error"
    elif "abort" in reasons:
        outcome = "aborted"
    else:
        outcome = "ok" if is_complete and is_over else "truncated"
    found: dict[str, Any] = {"outcome": outcome, "worker_status": status, "finish_reasons": reasons}
    if is_stream:
        found["token_events"] = tokens = len(plain_reading.token_offsets(payload, echoes=echoes))
        found |= {"completion_is_estimate": tokens > 0, "prompt_is_estimate": tokens > 0}
        found |= {"completion_tokens": tokens or None, "cached_tokens": None}
    if final is not None:
        found |= {**final, "completion_is_estimate": False, "prompt_is_estimate": False}
    return found


def case_of(name: str) -> Case:
    """Read a capture; where the client did not ask for usage, the worker's answer is the one to a request that did."""
    capture = load(name)
    body = request_body(capture)
    asked = json.loads(body)
    path = capture.request.split(b" ")[1].decode()
    is_stream = b"text/event-stream" in capture.response_head
    wants_usage = (asked.get("stream_options") or {}).get("include_usage") is True
    has_usage = b'"usage":{' in capture.response
    served = capture.response
    if (
        is_stream
        and path in (CHAT, COMPLETIONS)
        and not wants_usage
        and not has_usage
        and capture.payload.endswith(DONE)
        and b'"error"' not in capture.response
    ):
        served = with_usage(capture)
    prompts = asked.get("prompt")
    count = len(prompts) if isinstance(prompts, list) and isinstance(prompts[0], str | list) else 1
    echoes = name == "chat_stream_echo"
    expects = judged(served, is_complete=capture.complete, wants_choices=count * (asked.get("n") or 1), echoes=echoes)
    if count > 1:
        expects["cached_tokens"] = None  # of a batch, a worker says what one prompt had
    return Case(name, path, body, served, capture.payload, not capture.complete, expects)


PATHS = {endpoint.path for endpoint in Endpoints(a_topology(a_model(a_pool(0))), 0).listed if endpoint.method == b"POST"}
CASES = [name for name in names() if load(name).request.split(b" ")[1] in PATHS and name not in REFUSED_HERE]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway whose one model has all the names that captures ask for."""
    async with running_scene(aliases=ALIASES) as one:
        yield one


def in_pieces(data: bytes, cuts: list[int]) -> list[Step]:
    """Writes of the bytes between these offsets, far enough apart to be reads of their own more often than not."""
    edges = sorted({0, len(data), *cuts})
    return [step for start, end in itertools.pairwise(edges) for step in (Send(data[start:end]), Wait(0.0004))]


def random_cuts(name: str, size: int, turn: int) -> list[int]:
    """Where to cut, the same in each run: few places, or many."""
    chance = random.Random(f"{name}-{turn}")
    return [chance.randrange(size + 1) for _ in range(chance.choice((2, 9, 40)))]


def ending(case: Case) -> list[Step]:
    return [Close()] if case.is_cut else []


async def replay(scene: Scene, case: Case, script: list[Step]) -> None:
    """Play the answer to the client's request and hold both ends against the capture."""
    seen = await scene.ask(
        [*script, *ending(case)], body=case.body, path=case.path, headers=[("Content-Type", "application/json")]
    )
    answer, record = seen.answer, seen.record

    if not case.served:
        assert (answer.status, answer.end) == (502, End.COMPLETE)
    else:
        head = Head.parse(case.served.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        told = answer.body.removeprefix(case.expected)  # an error event of the gateway's own
        assert answer.body == case.expected + told
        assert [item["error"]["code"] for item in events_of(told)] == (["worker_disconnected"] if case.is_cut else [])
        assert answer.end is (End.CUT if case.is_cut else End.COMPLETE)
        assert answer.status == head.status
        assert answer.head is not None
        assert answer.head.get("content-type") == head.get("content-type")
    found = {name: record.get(name) for name in case.expects}
    if record.get("cached_inferred"):
        found["cached_tokens"] = case.expects.get("cached_tokens")
    if record.get("prompt_is_estimate"):
        assert record["prompt_tokens"] == record["estimated_prompt_tokens"] > 0
        found.pop("prompt_tokens", None)
    assert found == case.expects
    assert record["status"] == answer.status


@pytest.mark.parametrize("name", CASES)
async def test_an_answer_passes_unchanged_however_it_is_cut(scene: Scene, name: str) -> None:
    """The client gets each captured answer byte for byte and the record says what was in it: in one write, event by event,
    head glued to body, and cut anywhere."""
    case = case_of(name)
    head = case.served.find(b"\r\n\r\n") + 4 if case.served else 0
    scripts: list[list[Step]] = [[Send(case.served)] if case.served else []]
    if case.served:
        scripts.append(in_pieces(case.served, [head]))
        scripts.append(in_pieces(case.served, [head + 20]))
        chunk_ends = [found.end() for found in re.finditer(rb"\n\n\r\n", case.served)]
        scripts.append(in_pieces(case.served, [head, *chunk_ends]))
        scripts += [in_pieces(case.served, random_cuts(name, len(case.served), turn)) for turn in range(3)]

    results = await asyncio.gather(*(replay(scene, case, script) for script in scripts), return_exceptions=True)

    for number, result in enumerate(results):
        if isinstance(result, BaseException):
            result.add_note(f"way of cutting: number {number}")
            raise result


@pytest.mark.parametrize("name", SLOW)
async def test_an_answer_passes_unchanged_byte_by_byte(scene: Scene, name: str) -> None:
    """The same when each byte comes alone."""
    case = case_of(name)

    await replay(scene, case, [ByteByByte(case.served)])


def framed(case: Case, framing: str) -> list[bytes]:
    """The same answer as another worker might frame it: head and body."""
    message = Message(is_request=False)
    message.feed(case.served)
    assert message.head is not None
    body = bytes(message.body)
    kept = [f"{name}: {value}" for name, value in message.head.headers if name not in ("content-length", "transfer-encoding")]
    lines = [message.head.first_line, *kept]
    if framing == "length":
        lines.append(f"content-length: {len(body)}")
    elif framing == "until close":
        lines.append("connection: close")
    else:
        lines.append("Transfer-Encoding: Chunked")
        size = {"one chunk": len(body), "small chunks": 7, "odd chunks": 1000}[framing]
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        if framing == "odd chunks":  # extensions, upper case and leading zeros are allowed, and so are trailer fields
            body = b"".join(b"00%X;a=b\r\n%b\r\n" % (len(part), part) for part in parts) + b"000\r\nx-later: 1\r\n\r\n"
        else:
            body = b"".join(map(chunk, parts)) + b"0\r\n\r\n"
    return ["\r\n".join([*lines, "", ""]).encode(), body]


FRAMINGS = ["length", "until close", "one chunk", "small chunks", "odd chunks"]
REFRAMED = [*SLOW, "chat_stream", "chat_stream_n2", "force_usage_chat_stream_eos", "completion_stream_logprobs", "err_too_long"]


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("name", REFRAMED)
async def test_an_answer_passes_unchanged_however_it_is_framed(scene: Scene, name: str, framing: str) -> None:
    """The body is the same for the client whatever framing its worker chose, and however that is cut."""
    case = case_of(name)
    head, body = framed(case, framing)
    data = head + body
    last = [Close()] if framing == "until close" else []
    cuts = [[], [len(head)], random_cuts(name, len(data), 1), random_cuts(name, len(data), 2)]

    await asyncio.gather(*(replay(scene, case, [*in_pieces(data, cut), *last]) for cut in cuts))


@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
@pytest.mark.parametrize("name", ["chat_stream", "chat_stream_include_usage", "completion_stream"])
async def test_other_line_ends_mean_the_same(scene: Scene, name: str, line_end: bytes) -> None:
    """Events whose lines end in CR LF or CR are counted in the same way; a usage event that nobody asked for is taken out."""
    case = case_of(name)
    message = Message(is_request=False)
    message.feed(case.served)
    body = bytes(message.body).replace(b"\n", line_end)
    assert message.head is not None
    events = [part + line_end * 2 for part in body.split(line_end * 2)[:-1]]
    expected = case.expected.replace(b"\n", line_end)
    served = message.head.raw + b"".join(map(chunk, events)) + b"0\r\n\r\n"
    other = replace(case, served=served, expected=expected)
    cuts = [[], *(random_cuts(name, len(served), turn) for turn in range(4))]

    await asyncio.gather(*(replay(scene, other, in_pieces(served, cut)) for cut in cuts))


STREAM_BODIES = [
    b'{"model":"tiny","stream":true,"messages":[]}',
    b'{"stream" : true , "model":"tiny","messages":[] }',
    b'{"model":"tiny","stream":true,"stream_options":null,"messages":[]}',
    b'{"model":"tiny","stream":true,"stream_options":{},"messages":[]}',
    b'{"model":"tiny","stream":true,"stream_options":{ "include_usage" : false },"messages":[]}',
    b'{"model":"tiny","stream":true,"stream_options":{"include_usage":null,"x":1},"messages":[]}',
    b'{"model":"tiny","stream":true,"stream_options":{"x":{"y":1}},"messages":[]}',
    b'{"model":"tiny","stream":true,"messages":[{"role":"user","content":"\\"stream_options\\":{}"}]}',
    b'{"messages":[{"stream_options":{"include_usage":false}}],"model":"tiny","stream":true,"stream_options":{"a":1}}',
    b'{"model":"tiny","stream":true,"messages":[],"f":1.10,"g":1E5,"u":"\\u00e9\\ud83d\\ude00","big":123456789012345678901}',
    b'{"model":"tiny-alias","metadata":{"model":"tiny-alias"},"stream":true,"messages":[{"content":"\\"model\\":\\"tiny-alias\\""}]}',
    b'{"metadata":{"model":"tiny-alias"},"model" : "tiny\\u002dalias","stream":true,"messages":[]}',
]


@pytest.mark.parametrize("body", STREAM_BODIES)
async def test_a_body_is_changed_only_where_it_must_be(scene: Scene, body: bytes) -> None:
    """The worker gets the client's body, with its own name of the model, and with usage asked for or not touched there."""
    case = case_of("chat_stream")
    seen = await scene.ask([Send(case.served)], body=body, headers=[("Content-Type", "application/json")])
    [request] = scene.arrivals(seen.record["request_id"])
    sent, got = json.loads(body), json.loads(request.body)
    asked = {**sent, "model": "tiny", "stream_options": {**(sent.get("stream_options") or {}), "include_usage": True}}

    assert got in (asked, {**sent, "model": "tiny"})
    assert seen.answer.status == 200
    if got == asked:
        assert seen.answer.body == case.expected
    for part in (b'"f":1.10,"g":1E5', b"\\ud83d\\ude00", b"123456789012345678901"):
        assert (part in body) is (part in request.body)


def asked_for(request: Received) -> dict[str, Any]:
    return json.loads(request.body).get("stream_options") or {}


async def test_counts_in_each_event_are_not_switched_on_for_the_gateway(scene: Scene) -> None:
    """A client that sets only `continuous_usage_stats` gets no usage from a worker, and gets none through the gateway."""
    capture = load("chat_stream_continuous_only")
    direct, counted = capture.response, load("chat_stream_continuous_usage").response
    body = capture.request.partition(b"\r\n\r\n")[2]
    request_id = scene.plays([])

    def script(request: Received) -> list[Step]:
        options = asked_for(request)
        if options.get("include_usage") is not True:
            return [Send(direct)]
        return [Send(counted if options.get("continuous_usage_stats") else with_usage(capture))]

    kept, scene.worker.script = scene.worker.script, script
    try:
        async with await scene.connect() as client:
            await client.send(scene.request(request_id, body, headers=[("Content-Type", "application/json")]))
            answer = await client.read_answer()
    finally:
        scene.worker.script = kept

    assert b'"usage"' not in answer.body


async def test_usage_is_asked_for_only_where_a_client_streams(scene: Scene) -> None:
    """A worker sees a plain request as it was sent, and a stream's with nothing but the question added."""
    plain_case, stream_case = case_of("chat_nonstream"), case_of("chat_stream")
    for case in (plain_case, stream_case):
        await replay(scene, case, [Send(case.served)])
    sent_plain, sent_stream = scene.worker.requests[-2:]

    assert sent_plain.body == plain_case.body
    assert json.loads(sent_stream.body) == {**json.loads(stream_case.body), "stream_options": {"include_usage": True}}
    assert sent_stream.path == CHAT


async def test_all_kinds_of_captures_are_here() -> None:
    """Every endpoint of which there are captures, streams and plain answers, cut and refused ones are replayed."""
    cases = [case_of(name) for name in CASES]

    others = {"/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank"}
    assert {case.path for case in cases} == {CHAT, COMPLETIONS, *others, "/tokenize", "/detokenize"}
    assert {case.expects["outcome"] for case in cases} >= {
        "ok",
        "client_error",
        "worker_error",
        "truncated",
        "aborted",
        "worker_busy",
    }
    assert sum(case.served != load(case.name).response for case in cases) >= 5
    assert set(SLOW) <= set(CASES)
