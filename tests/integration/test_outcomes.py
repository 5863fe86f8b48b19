"""Every way in which a request can end: what the client gets, and the one record and one count that come of it."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from telemetry.record import Outcome
from tests.http1 import chunk, last_chunk
from tests.integration.answers import (
    DONE,
    chat_answer,
    chat_events,
    event,
    plain,
    sse_head,
    stream_of,
    usage_of,
)
from tests.integration.raw_client import End, request_bytes
from tests.integration.scene import CHAT, Scene, chat_body, events_of, running_scene, unreachable
from tests.integration.steps import Close, Hang, Reset, Send, Step, Wait

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

KEY, NARROW_KEY = "sk-good", "sk-narrow"
GOOD = stream_of(chat_events(["a", "b", "c"], usage=usage_of(5, 3, 0)))
ROLE, FIRST, SECOND, FINISH = (chunk(event(item)) for item in chat_events(["a", "b"], finish_reason="stop"))
STARTED = [Send(sse_head()), Send(ROLE), Send(FIRST)]
ERROR = {"error": {"message": "EngineCore died", "type": "InternalServerError", "param": None, "code": 500}}
POOLS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "hasty": {"limits": {"first_byte_seconds": 1, "token_gap_seconds": 1}},
    "bounded": {"limits": {"total_seconds": 1}},
    "half": {"policy": "round-robin"},
    "dead": {},
    "far": {"limits": {"connect_seconds": 1}},
    "sick": {},
}


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway with keys, small limits, and a model for each kind of trouble."""
    config = {
        "limits": {"body_bytes": 100_000},
        "keys": [
            {"name": "good", "sha256": sha256(KEY)},
            {"name": "narrow", "sha256": sha256(NARROW_KEY), "models": ["bounded"]},
        ],
    }
    headers = [("Authorization", f"Bearer {KEY}")]
    async with running_scene(POOLS, config=config, workers={"half": 2}, headers=headers) as one:
        one.workers["sick"][0].health_status = 503
        yield one


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request that the gateway answers itself, with what it says."""

    status: int
    code: str
    outcome: str
    reason: str
    method: str = "POST"
    path: str = CHAT
    body: bytes | dict[str, Any] | None = field(default_factory=chat_body)
    headers: tuple[tuple[str, str], ...] = ()


REFUSED = {
    "unknown model": Refused(
        status=404, code="model_not_found", outcome="client_error", reason="model_not_found", body=chat_body("nobody")
    ),
    "no model": Refused(
        status=400, code="model_missing", outcome="client_error", reason="model_missing", body={"messages": []}
    ),
    "bad JSON": Refused(
        status=400, code="invalid_json", outcome="client_error", reason="invalid_json", body=b'{"model": "tiny",'
    ),
    "JSON of another kind": Refused(
        status=400, code="invalid_json", outcome="client_error", reason="invalid_json", body=b"[1]"
    ),
    "no body": Refused(status=400, code="invalid_json", outcome="client_error", reason="invalid_json", body=b""),
    "unknown path": Refused(status=404, code="not_found", outcome="client_error", reason="not_found", path="/v1/sleep"),
    "wrong method": Refused(
        status=405, code="method_not_allowed", outcome="client_error", reason="method_not_allowed", method="GET", body=None
    ),
    "too large": Refused(
        status=413, code="body_too_large", outcome="client_error", reason="body_too_large", body=b'"' + b"x" * 100_000 + b'"'
    ),
    "compressed": Refused(
        status=415,
        code="unsupported_encoding",
        outcome="client_error",
        reason="unsupported_encoding",
        body=gzip.compress(json.dumps(chat_body()).encode()),
        headers=(("Content-Encoding", "gzip"),),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_request_is_refused_before_a_worker_sees_it(scene: Scene, name: str) -> None:
    """The gateway says what is wrong in the API's shape, no worker is asked, and the outcome says whose fault it was."""
    case = REFUSED[name]
    seen = await scene.ask([], body=case.body, path=case.path, method=case.method, headers=case.headers)

    assert (seen.answer.status, seen.answer.end) == (case.status, End.COMPLETE)
    assert seen.answer.json()["error"]["code"] == case.code
    assert {"message", "type", "param", "code"} == seen.answer.json()["error"].keys()
    assert seen.answer.head is not None
    assert seen.answer.head.get("x-request-id") == seen.record["request_id"]
    got = {name: seen.record[name] for name in ("status", "outcome", "reason", "attempts")}
    assert got == {"status": case.status, "outcome": case.outcome, "reason": case.reason, "attempts": 0}
    assert scene.arrivals(seen.record["request_id"]) == []


@pytest.mark.parametrize(
    ("header", "status", "code"),
    [
        (None, 401, "invalid_api_key"),
        ("Bearer sk-wrong", 401, "invalid_api_key"),
        ("Bearer ", 401, "invalid_api_key"),
        (f"Basic {KEY}", 401, "invalid_api_key"),
        (KEY, 401, "invalid_api_key"),
        (f"Bearer {NARROW_KEY}", 403, "model_not_allowed"),
    ],
)
async def test_a_key_is_refused(scene: Scene, header: str | None, status: int, code: str) -> None:
    """Without a known key, or with one for other models, the outcome is a rejection for authentication; no key is shown."""
    request_id = scene.plays([])
    headers = [("X-Request-Id", request_id), *([] if header is None else [("Authorization", header)])]

    async with await scene.connect() as client:
        answer = await client.request("POST", CHAT, chat_body(), headers)
    record = await scene.record(request_id)

    assert (answer.status, answer.json()["error"]["code"]) == (status, code)
    assert (record["outcome"], record["reason"], record["status"]) == ("rejected", "auth", status)
    assert b"sk-" not in answer.raw
    assert "sk-" not in scene.gateway.log_path.read_text() + scene.gateway.stderr


async def test_a_chunked_body_is_refused_where_it_passes_the_limit(scene: Scene) -> None:
    """A body without a declared length gets 413 as soon as it is too large, although the client would send on."""
    request_id = scene.plays([])
    head = request_bytes("POST", CHAT, None, [("X-Request-Id", request_id), *scene.headers, ("Transfer-Encoding", "chunked")])

    async with await scene.connect() as client:
        await client.send(head + chunk(b"x" * 60_000))
        await client.send(chunk(b"x" * 60_000))
        answer = await client.read_answer()
    record = await scene.record(request_id)

    assert (answer.status, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert (record["outcome"], record["status"]) == ("client_error", 413)


@pytest.mark.parametrize("status", [400, 404, 409, 422, 429, 500, 501, 503])
async def test_a_worker_refusal_is_passed_on(scene: Scene, status: int) -> None:
    """A worker's own error keeps its status, body and Retry-After, for streams and plain requests alike."""
    body = {"error": {"message": f"no, {status}", "type": "x", "param": None, "code": status}}
    script = [Send(plain(status, body, [("retry-after", "7")]))]
    expected = "worker_busy" if status in (429, 503) else "worker_error" if status >= 500 else "client_error"

    for stream in (True, False):
        seen = await scene.ask(script, body=chat_body(stream=stream))

        assert (seen.answer.status, seen.answer.json(), seen.answer.end) == (status, body, End.COMPLETE)
        assert seen.answer.head is not None
        assert seen.answer.head.get("retry-after") == "7"
        assert (seen.record["outcome"], seen.record["worker_status"]) == (expected, status)
        assert seen.record["ttft_seconds"] is None
        assert seen.record["no_token"] == ("refused" if stream else None)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_worker_refuses_the_gateways_key(scene: Scene, status: int) -> None:
    """A worker that does not accept the gateway's key is no matter for the client's: 502, a fault of the worker."""
    seen = await scene.ask([Send(plain(status, {"error": {"message": "Unauthorized"}}))])

    assert (seen.answer.status, seen.answer.json()["error"]["code"]) == (502, "worker_refused_gateway")
    assert (seen.record["outcome"], seen.record["worker_status"]) == ("worker_error", status)
    assert b"Unauthorized" not in seen.answer.body


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What a worker does, and how it ends."""

    script: list[Step]
    outcome: str
    status: int = 200
    end: End = End.COMPLETE
    code: str | None = None  # of the gateway's own error, as an answer or as the last event
    no_token: str | None = None
    stream: bool = True
    model: str = "tiny"
    passes_body: bool = True  # the bytes of the worker's body reach the client
    takes_seconds: tuple[float, float] | None = None


def failed(script: list[Step], **rest: Any) -> Broken:
    """Nothing of the worker's answer can be used: 502."""
    return Broken(script=script, outcome="worker_error", status=502, code="worker_failed", passes_body=False, **rest)


def cut(script: list[Step], **rest: Any) -> Broken:
    """The answer stops under way: the client is told, and its connection ends."""
    return Broken(script=script, outcome="truncated", end=End.CUT, code="worker_disconnected", **rest)


def answer_with(head: str, body: bytes = b"") -> list[Step]:
    return [Send(head.replace("\n", "\r\n").encode() + b"\r\n" + body)]


NOT_ANSWERED, UNMETERED = "not_answered", "unmetered"
COMMENTS: list[Step] = [step for _ in range(30) for step in (Wait(0.1), Send(chunk(b": keep-alive\n\n")))]
BROKEN = {
    "good": Broken(script=GOOD, outcome="ok"),
    "good and plain": Broken(script=[Send(chat_answer("x", usage=usage_of(5, 3, 0)))], outcome="ok", stream=False),
    "no token at all": Broken(script=stream_of(chat_events([])), outcome="ok", no_token="empty"),
    "without the end marker": Broken(script=stream_of(chat_events(["a"]), done=False), outcome="ok"),
    "error event first": Broken(script=stream_of([ERROR]), outcome="worker_error", no_token="refused"),
    "error event after tokens": Broken(script=stream_of([*chat_events(["a"])[:2], ERROR]), outcome="worker_error"),
    "error event after tokens, with finish": Broken(script=stream_of([*chat_events(["a"]), ERROR]), outcome="worker_error"),
    "error object": Broken(script=[Send(plain(200, ERROR))], outcome="worker_error", stream=False),
    "abort": Broken(script=stream_of(chat_events(["a"], finish_reason="abort")), outcome="aborted"),
    "abort, plain": Broken(
        script=[Send(chat_answer("x", usage=usage_of(5, 3), finish_reason="abort"))], outcome="aborted", stream=False
    ),
    "clean end without finish": Broken(script=[*STARTED, Send(last_chunk())], outcome="truncated"),
    "clean end without token": Broken(
        script=[Send(sse_head()), Send(ROLE), Send(last_chunk())], outcome="truncated", no_token="cut"
    ),
    "FIN": cut([*STARTED, Wait(0.05), Close()]),
    "RST": cut([*STARTED, Wait(0.05), Reset()]),
    "FIN after the role": cut([Send(sse_head()), Send(ROLE), Wait(0.05), Close()], no_token="cut"),
    # Here nothing can be said: an event of the gateway's own would run into the unfinished one.
    "FIN in an event": Broken(
        script=[*STARTED, Wait(0.05), Send(SECOND[:40]), Wait(0.05), Close()], outcome="truncated", end=End.CUT
    ),
    "FIN between chunks of an event": Broken(
        script=[*STARTED, Wait(0.05), Send(chunk(b'data: {"id"')), Wait(0.05), Close()], outcome="truncated", end=End.CUT
    ),
    "FIN before the end marker": cut([*STARTED, Send(FINISH), Wait(0.05), Close()]),
    "FIN in a plain answer": Broken(
        script=[
            *answer_with("HTTP/1.1 200 OK\ncontent-type: application/json\ncontent-length: 50\n", b'{"id":'),
            Wait(0.05),
            Close(),
        ],
        outcome="truncated",
        end=End.CUT,
        stream=False,
    ),
    "bad chunk after tokens": cut([*STARTED, Wait(0.05), Send(b"zz\r\nnope\r\n"), Hang()]),
    "closed before an answer": failed([Close()], no_token=NOT_ANSWERED),
    "reset before an answer": failed([Reset()], no_token=NOT_ANSWERED),
    "closed before a plain answer": failed([Close()], stream=False),
    "closed in the head": failed([Send(b"HTTP/1.1 200 OK\r\ncontent-"), Wait(0.05), Close()], no_token=NOT_ANSWERED),
    "closed after the head": failed([Send(sse_head()), Wait(0.05), Close()], no_token="cut"),
    "both lengths": failed(
        [*answer_with("HTTP/1.1 200 OK\ncontent-length: 3\ntransfer-encoding: chunked\n", b"3\r\nabc\r\n0\r\n\r\n"), Hang()],
        no_token=NOT_ANSWERED,
    ),
    "two lengths": failed(
        [*answer_with("HTTP/1.1 200 OK\ncontent-length: 3\ncontent-length: 4\n", b"abcd"), Hang()], no_token=NOT_ANSWERED
    ),
    "bad first chunk": failed([Send(sse_head()), Send(b"zz\r\nnope\r\n"), Hang()], no_token="cut"),
    "garbage": failed([Send(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"), Hang()], no_token=NOT_ANSWERED),
    "garbage without end": failed([Send(b"\x00\xff" * 40_000), Hang()], no_token=NOT_ANSWERED),
    "a head of 100 kB": failed(
        [*answer_with("HTTP/1.1 200 OK\nx-large: " + "y" * 100_000 + "\ncontent-length: 0\n"), Close()], no_token=NOT_ANSWERED
    ),
    "a redirect": failed(
        [*answer_with("HTTP/1.1 307 Temporary Redirect\nlocation: http://127.0.0.1:1/\ncontent-length: 0\n"), Hang()],
        no_token=NOT_ANSWERED,
    ),
    "another protocol": failed(
        [*answer_with("HTTP/1.1 101 Switching Protocols\nupgrade: websocket\nconnection: upgrade\n"), Hang()],
        no_token=NOT_ANSWERED,
    ),
    "compressed, plain": Broken(
        script=[Send(plain(200, gzip.compress(b'{"choices":[]}'), [("content-encoding", "gzip")]))], outcome="ok", stream=False
    ),
    "compressed stream": Broken(
        script=[
            Send(sse_head(("content-encoding", "gzip"))),
            Send(chunk(gzip.compress(b"data: [DONE]\n\n"))),
            Send(last_chunk()),
        ],
        outcome="ok",
        no_token=UNMETERED,
    ),
    "a stream that was asked for and a plain answer that came": Broken(
        script=[Send(chat_answer("x", usage=usage_of(5, 3)))], outcome="ok"
    ),
    "silent from the beginning": Broken(
        script=[Hang()],
        outcome="timeout",
        status=504,
        code="first_byte_timeout",
        passes_body=False,
        model="hasty",
        no_token=NOT_ANSWERED,
        takes_seconds=(1, 2),
    ),
    "silent after the head": Broken(
        script=[Send(sse_head()), Hang()],
        outcome="timeout",
        status=504,
        code="first_byte_timeout",
        passes_body=False,
        model="hasty",
        no_token="cut",
        takes_seconds=(1, 2),
    ),
    "stalled": Broken(
        script=[*STARTED, Hang()],
        outcome="stalled",
        end=End.CUT,
        code="worker_stalled",
        model="hasty",
        takes_seconds=(1, 2),
    ),
    "stalled with comments": Broken(
        script=[*STARTED, *COMMENTS, Hang()],
        outcome="stalled",
        end=End.CUT,
        code="worker_stalled",
        model="hasty",
        passes_body=False,
        takes_seconds=(1, 2),
    ),
    "stalled, plain": Broken(
        script=[*answer_with("HTTP/1.1 200 OK\ncontent-type: application/json\ncontent-length: 50\n", b'{"id":'), Hang()],
        outcome="stalled",
        end=End.CUT,
        model="hasty",
        stream=False,
        takes_seconds=(1, 2),
    ),
    "over the total": Broken(
        script=[*STARTED, *[step for _ in range(40) for step in (Wait(0.1), Send(SECOND))]],
        outcome="timeout",
        end=End.CUT,
        code="total_timeout",
        model="bounded",
        passes_body=False,
        takes_seconds=(1, 2),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_how_a_worker_ends_is_how_a_request_ends(scene: Scene, name: str) -> None:
    """Whatever a worker does, the client can tell a whole answer from a broken one, and there is one record that says so."""
    case = BROKEN[name]
    seen = await scene.ask(case.script, body=chat_body(case.model, stream=case.stream))
    answer, record = seen.answer, seen.record

    assert (answer.status, answer.end, record["outcome"]) == (case.status, case.end, case.outcome)
    assert (record["status"], record["no_token"], record["model"]) == (case.status, case.no_token, case.model)
    if case.passes_body:
        sent = b"".join(step.data for step in case.script if isinstance(step, Send)).partition(b"\r\n\r\n")[2]
        assert answer.body[:20] in sent
        assert b"[DONE]" not in answer.body or b"[DONE]" in sent
    if case.code is not None:
        error = answer.json() if answer.end is End.COMPLETE else events_of(answer.body)[-1]
        assert error["error"]["code"] == case.code
        assert b"127.0.0.1" not in answer.body
    else:
        assert b'"code":"worker_' not in answer.body, answer.body[-300:]
    if case.takes_seconds is not None:
        assert case.takes_seconds[0] <= record["e2e_seconds"] <= case.takes_seconds[1]


async def test_every_choice_has_to_finish(scene: Scene) -> None:
    """With two choices asked for, an end after one finish reason is none; after both it is, also without the marker."""
    parts = [event({**item, "choices": [{**item["choices"][0], "index": 1}]}) for item in chat_events(["a"])]
    half = stream_of(parts, done=False)
    both = stream_of([*chat_events(["a"]), *parts], done=False)

    assert (await scene.ask(half, body=chat_body(n=2))).record["outcome"] == "truncated"
    whole = await scene.ask(both, body=chat_body(n=2))
    assert (whole.record["outcome"], whole.record["finish_reasons"]) == ("ok", ["stop", "stop"])
    assert whole.record["missing_end"] == "done"


async def test_comments_alone_do_not_end_a_waiting_stream(scene: Scene) -> None:
    """Tokens less than the gap apart keep a stream alive however long it lasts, with comments between or not."""
    parts = [step for _ in range(3) for step in (Wait(0.7), Send(chunk(b": keep-alive\n\n")), Send(SECOND))]
    seen = await scene.ask([*STARTED, *parts, Send(FINISH), Send(chunk(DONE)), Send(last_chunk())], body=chat_body("hasty"))

    assert (seen.record["outcome"], seen.answer.end) == ("ok", End.COMPLETE)


async def test_a_request_goes_to_the_other_worker_when_the_first_refuses_to_connect(scene: Scene) -> None:
    """While a worker's port is closed but not yet known to be down, each request is answered by the other one."""
    down, up = scene.workers["half"]
    await scene.gateway.metrics_when(lambda metrics: metrics.value("ridgeline_worker_up", worker=down.url[7:]) == 1)
    await down.stop()
    try:
        seen = [await scene.ask(GOOD, body=chat_body("half")) for _ in range(4)]
    finally:
        await down.start()

    assert [one.record["outcome"] for one in seen] == ["ok"] * 4
    assert {one.record["worker"] for one in seen} == {up.url[7:]}
    retries = sum(one.record["attempts"] - 1 for one in seen)
    assert 1 <= retries <= 4
    assert {one.record["route_reason"] for one in seen if one.record["attempts"] == 2} == {"retry"}
    metrics = await scene.quiet()
    assert metrics.value("ridgeline_attempts_total", worker=down.url[7:], result="connect_failed") == retries


async def test_no_worker_can_be_reached(scene: Scene) -> None:
    """When every worker refuses to connect the answer is 503, with a word of when to come back."""
    down = scene.workers["dead"][0]
    await scene.gateway.metrics_when(lambda metrics: metrics.value("ridgeline_worker_up", worker=down.url[7:]) == 1)
    await down.stop()
    try:
        seen = await scene.ask(GOOD, body=chat_body("dead"))
    finally:
        await down.start()

    assert (seen.answer.status, seen.answer.json()["error"]["code"]) == (503, "worker_unreachable")
    assert seen.answer.head is not None
    assert seen.answer.head.get("retry-after") == "2"
    assert (seen.record["outcome"], seen.record["no_token"]) == ("worker_error", NOT_ANSWERED)


async def test_a_worker_cannot_be_connected_to_in_time(scene: Scene) -> None:
    """A connection that is not made within its limit is a failed attempt, and with no other worker the answer is 503."""
    far = scene.workers["far"][0]
    await scene.gateway.metrics_when(
        lambda metrics: metrics.value("ridgeline_worker_up", worker=far.url[7:]) == 1, timeout_seconds=15
    )
    await far.stop()
    try:
        with unreachable(far.port):
            seen = await scene.ask(GOOD, body=chat_body("far"))
    finally:
        await far.start()

    assert (seen.answer.status, seen.answer.json()["error"]["code"]) == (503, "worker_unreachable")
    assert 0.9 < seen.record["e2e_seconds"] < 2
    assert seen.record["connect_seconds"] == pytest.approx(seen.record["e2e_seconds"], abs=0.1)
    metrics = await scene.quiet()
    assert metrics.value("ridgeline_attempts_total", worker=far.url[7:], result="connect_timeout") == 1


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("key", [KEY, "sk-wrong"])
async def test_a_refused_client_that_sends_on_can_read_why(scene: Scene, framing: str, key: str) -> None:
    """A client that sends all of 5 MB before it reads gets its 413 or 401 whole, and not a reset instead."""
    request_id = scene.plays([])
    fields = [("X-Request-Id", request_id), ("Authorization", f"Bearer {key}")]
    data = b"x" * 5_000_000
    if framing == "length":
        parts = [request_bytes("POST", CHAT, data, fields)]
    else:
        parts = [request_bytes("POST", CHAT, None, [*fields, ("Transfer-Encoding", "chunked")]), *[chunk(data[:50_000])] * 100]
    async with await scene.connect() as client:
        for one in parts:
            await client.send(one)
        answer = await client.read_answer()

    assert (answer.status, answer.end) == (413 if key == KEY else 401, End.COMPLETE)
    assert (await scene.record(request_id))["status"] == answer.status


ODD_BODIES = {
    "deep": b'{"model": "tiny", "messages": ' + b"[" * 90_000,
    "deep and closed": b'{"model": "tiny", "x": ' + b"[" * 40_000 + b"]" * 40_000 + b"}",
    "half a pair": b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud83d"}]}',
    "half a pair in the model": b'{"model": "tiny\\ud83d", "messages": []}',
    "no UTF-8": b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "a mark in front": b'\xef\xbb\xbf{"model": "tiny", "messages": []}',
    "NaN": b'{"model": "tiny", "messages": [], "temperature": NaN}',
    "huge numbers": b'{"model": "tiny", "messages": [], "max_tokens": 99999999999999999999999999999999, "n": 1e400}',
    "negative numbers": b'{"model": "tiny", "messages": [], "max_tokens": -5, "n": -1}',
    "wrong types": b'{"model": "tiny", "messages": 3, "stream": "yes", "max_tokens": "x", "stream_options": [], "n": null}',
    "model of another type": b'{"model": {"name": "tiny"}, "messages": []}',
    "twice": b'{"model": "nobody", "messages": [], "model": "tiny", "stream": false, "stream": true}',
    "an empty prompt list": b'{"model": "tiny", "prompt": []}',
    "mixed prompts": b'{"model": "tiny", "prompt": ["a", 1, [2], null]}',
    "blanks around": b' \r\n\t{"model": "tiny", "messages": []}\n ',
    "null": b"null",
    "a text": b'"tiny"',
    "two values": b'{"model": "tiny"}{"model": "tiny"}',
    "nothing but blanks": b"   ",
}


@pytest.mark.parametrize("name", ODD_BODIES)
async def test_an_odd_body_is_the_clients_or_the_workers_business(scene: Scene, name: str) -> None:
    """Whatever the body, the gateway does not fail: it says what is wrong with it, or leaves that to the worker."""
    seen = await scene.ask([Send(plain(422, {"error": {"message": "no"}}))], body=ODD_BODIES[name])

    assert seen.answer.status in (400, 404, 422), seen.answer.body
    assert seen.record["outcome"] == "client_error"
    for request in scene.arrivals(seen.record["request_id"]):
        assert request.body == ODD_BODIES[name] or b'"include_usage":true' in request.body


@pytest.mark.parametrize(
    "fields", [[("X-Large", "y" * 70_000)], [(f"X-{number}", "y") for number in range(200)], [("X" * 70_000, "y")]]
)
async def test_a_head_that_is_too_large(scene: Scene, fields: list[tuple[str, str]]) -> None:
    """A head over the limits of size or of fields gets 431."""
    async with await scene.connect() as client:
        answer = await client.request("POST", CHAT, chat_body(), [*scene.headers, *fields])

    assert (answer.status, answer.end) == (431, End.COMPLETE)


async def test_every_worker_is_down(scene: Scene) -> None:
    """When health checks say that all are down, the answer is 503 with Retry-After, and no worker is asked."""
    sick = scene.workers["sick"][0]
    await scene.gateway.metrics_when(
        lambda metrics: metrics.value("ridgeline_worker_up", worker=sick.url[7:]) == 0, timeout_seconds=15
    )
    await asyncio.sleep(0.1)
    seen = await scene.ask(GOOD, body=chat_body("sick"))

    assert (seen.answer.status, seen.answer.json()["error"]["code"]) == (503, "no_worker")
    assert seen.answer.head is not None
    assert int(seen.answer.head.get("retry-after") or 0) > 0
    assert (seen.record["outcome"], seen.record["reason"], seen.record["attempts"]) == ("rejected", "no_worker", 0)
    assert sick.requests == []


async def test_a_request_that_cannot_be_read_has_a_record_too(scene: Scene) -> None:
    """A head that is no HTTP gets 400 and one record; the connection ends."""
    before = len(await scene.gateway.records(0))
    async with await scene.connect() as client:
        await client.send(b"GET  /v1/models\r\nnonsense\r\n\r\n")
        answer = await client.read_answer()
        with suppress(ConnectionResetError):
            assert await client.read_some() == b""
    records = await scene.gateway.records(before + 1)

    assert (answer.status, len(records), records[-1]["outcome"]) == (400, before + 1, "client_error")


async def test_nothing_that_was_said_is_written_down(scene: Scene) -> None:
    """Neither prompts nor answers nor header values get into the log, whatever came of the request."""
    body = chat_body(messages=[{"role": "user", "content": "PROMPT-MARK"}], user="USER-MARK")
    answer = stream_of([*chat_events(["ANSWER-MARK"])[:2], {"error": {"message": "ERROR-MARK"}}])
    for script in (answer, [Close()], [Send(plain(400, {"error": {"message": "ERROR-MARK"}}))]):
        await scene.ask(script, body=body, headers=[("X-Header", "HEADER-MARK"), ("User-Agent", "AGENT-MARK")])
    await scene.ask([], body=b'{"model": "MODEL-MARK", "messages": ["PROMPT-MARK"]}', path=CHAT + "?QUERY-MARK")
    await scene.ask([], body=b'{"PROMPT-MARK', path="/PATH-MARK")
    await scene.ask([], body=b'{"PROMPT-MARK')

    assert "-MARK" not in scene.gateway.log_path.read_text()
    assert "-MARK" not in scene.gateway.stderr
    status, recent = await scene.gateway.get(scene.gateway.admin_url + "/api/records")
    assert status == 200
    assert "-MARK" not in recent


async def test_every_request_is_counted_once(scene: Scene) -> None:
    """After all of the above: a record for each request, counts by outcome are those of the records, nothing is in flight."""
    metrics = await scene.quiet()
    records = await scene.gateway.records(0)
    ids = Counter(record["request_id"] for record in records)
    of_records = Counter((record["model"], record["pool"], record["endpoint"], record["outcome"]) for record in records)
    of_metrics = {
        tuple(sample.labels[name] for name in ("model", "pool", "endpoint", "outcome")): sample.value
        for sample in metrics["ridgeline_requests_total"]
        if sample.value
    }

    assert max(ids.values(), default=1) == 1
    assert of_metrics == dict(of_records)
    assert metrics.total("ridgeline_records_dropped_total") == 0
    assert {record["outcome"] for record in records} <= {outcome.value for outcome in Outcome}
    rejected = Counter(record["reason"] for record in records if record["outcome"] == "rejected")
    assert {sample.labels["reason"]: 0 for sample in metrics["ridgeline_rejections_total"]} | rejected == {
        reason: metrics.total("ridgeline_rejections_total", reason=reason)
        for reason in {sample.labels["reason"] for sample in metrics["ridgeline_rejections_total"]}
    }


async def test_a_stream_is_complete_when_its_end_marker_has_come(scene: Scene) -> None:
    """What a worker does with its connection after the marker does not matter to the client, nor to the record."""
    seen = await scene.ask([*STARTED, Send(FINISH), Send(chunk(DONE)), Wait(0.05), Close()], body=chat_body())

    assert seen.answer.end is End.COMPLETE
    assert seen.answer.body.endswith(DONE)
    assert seen.record["outcome"] == "ok"
