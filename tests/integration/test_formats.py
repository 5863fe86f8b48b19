"""Every endpoint beside chat and completions: what the worker gets, what the client gets, and what is measured of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.captures import load
from tests.http1 import chunk, last_chunk
from tests.integration.answers import plain, sse_head, stream_of
from tests.integration.gateway import running_gateway
from tests.integration.raw_client import End, RawClient
from tests.integration.scene import Scene, chat_body, events_of, running_scene
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.steps import Close, Hang, Send, Step, Wait

pytestmark = pytest.mark.asyncio(loop_scope="module")

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
KEYS = {"all": None, "one": ["tiny"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway of one worker."""
    async with running_scene() as one:
        yield one


def named(kind: str, **fields: Any) -> bytes:
    """One event of the typed formats, as a chunk."""
    return chunk(b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode()))


def a_response(answer_id: str = "resp_1", status: str = "completed") -> dict[str, Any]:
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3}
    return {"id": answer_id, "object": "response", "status": status, "output": [{"type": "message"}], "usage": usage}


def response_stream(answer_id: str = "resp_1", *, wait_seconds: float = 0.0) -> list[Step]:
    start = named("response.created", response=a_response(answer_id, "in_progress") | {"usage": None, "output": []})
    texts = [named("response.output_text.delta", delta=text) for text in "abc"]
    end = named("response.completed", response=a_response(answer_id))
    waits = [Wait(wait_seconds)] if wait_seconds else []
    return [Send(sse_head() + start), *waits, *map(Send, texts), Send(end + last_chunk())]


def message_stream(*, wait_seconds: float = 0.0) -> list[Step]:
    start = named("message_start", message={"type": "message", "usage": {"input_tokens": 9, "output_tokens": 0}})
    text = named("content_block_delta", delta={"type": "text_delta", "text": "a"}, index=0)
    counts = {"input_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": 2}
    end = named("message_delta", delta={"stop_reason": "end_turn"}, usage=counts) + named("message_stop")
    waits = [Wait(wait_seconds)] if wait_seconds else []
    return [Send(sse_head() + start + named("ping")), *waits, Send(text), Send(text), Send(end + last_chunk())]


ASKED = {
    RESPONSES: {"model": "tiny", "input": "Hi", "stream": True, "max_output_tokens": 50},
    MESSAGES: {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50, "stream": True},
}


@pytest.mark.parametrize(
    ("path", "script", "tokens", "reasons"),
    [
        (RESPONSES, response_stream(wait_seconds=0.2), 3, ["completed"]),
        (MESSAGES, message_stream(wait_seconds=0.2), 2, ["end_turn"]),
    ],
)
async def test_a_stream_of_named_events(scene: Scene, path: str, script: list[Step], tokens: int, reasons: list[str]) -> None:
    """The request goes on unchanged; what the worker sends at once is no token, and the usage at the end is the record's."""
    seen = await scene.ask(script, body=ASKED[path], path=path)
    [request] = scene.arrivals(seen.record["request_id"])
    record = seen.record

    assert json.loads(request.body) == ASKED[path]
    assert record["endpoint"] == path.removeprefix("/v1/")
    assert (record["outcome"], record["finish_reasons"], record["missing_end"]) == ("ok", reasons, None)
    assert (record["prompt_tokens"], record["cached_tokens"], record["completion_tokens"]) == (9, 4, tokens)
    assert (record["completion_is_estimate"], record["prompt_is_estimate"], record["max_tokens"]) == (False, False, 50)
    assert 0.19 < record["ttft_seconds"] < record["e2e_seconds"]
    assert record["ttft_first_byte_seconds"] < 0.15
    assert record["token_events"] == tokens


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
async def test_a_stream_of_named_events_that_dies(scene: Scene, path: str) -> None:
    """The client gets an error event of the format's own, and no clean end."""
    script = response_stream()[:-2] if path == RESPONSES else message_stream()[:-2]
    seen = await scene.ask([*script, Close()], body=ASKED[path], path=path)
    last = events_of(seen.answer.body)[-1]

    assert seen.answer.end is End.CUT
    assert seen.answer.body.rstrip().rpartition(b"\n\n")[2].startswith(b"event: error\n")
    assert last["type"] == "error"
    assert (last if path == RESPONSES else last["error"])["code"] == "worker_disconnected"
    assert (seen.record["outcome"], seen.record["completion_is_estimate"]) == ("truncated", path == RESPONSES)


@pytest.mark.parametrize(
    ("path", "event"),
    [
        (RESPONSES, named("response.failed", response=a_response(status="failed") | {"error": {"code": "server_error"}})),
        (RESPONSES, named("error", message="m", code="x")),
        (MESSAGES, named("error", error={"type": "overloaded_error", "message": "m"})),
    ],
)
async def test_an_error_event_is_a_failure(scene: Scene, path: str, event: bytes) -> None:
    """Under status 200, at the beginning or after tokens: no success, and its words are no tokens."""
    for before, tokens in ([], 0), (response_stream()[:2] if path == RESPONSES else message_stream()[:2], 1):
        head = [] if before else [Send(sse_head())]
        seen = await scene.ask([*head, *before, Send(event + last_chunk())], body=ASKED[path], path=path)

        assert (seen.record["outcome"], seen.record["token_events"]) == ("worker_error", tokens)


async def test_errors_of_the_gateway_speak_the_format(scene: Scene) -> None:
    """A client of either API finds the error where it looks for it."""
    for path in (RESPONSES, MESSAGES):
        seen = await scene.ask([], body=ASKED[path] | {"model": "nobody"}, path=path)
        body = json.loads(seen.answer.body)

        assert seen.answer.status == 404
        assert body["error"]["code"] == "model_not_found"
        assert body.get("type") == ("error" if path == MESSAGES else None)


@pytest.mark.parametrize(
    ("path", "name", "body", "capture", "tokens"),
    [
        ("/v1/messages/count_tokens", "tokenize", {"messages": [{"content": "Hi"}]}, "messages_count_tokens", (None, None)),
        ("/v1/embeddings", "embeddings", {"input": ["Hi", "you"]}, "embed_base64_batch", (6, 0)),
        ("/v1/embeddings", "embeddings", {"input": [[1, 2], [3]]}, "embed_token_ids", None),
        ("/v1/rerank", "rerank", {"query": "water", "documents": ["earth", "world"]}, "embed_rerank", (7, None)),
        ("/v1/score", "rerank", {"text_1": "water", "text_2": ["earth", "world"]}, "embed_score", (7, 0)),
        ("/tokenize", "tokenize", {"prompt": "Tell me"}, "tokenize_prompt", (None, None)),
        ("/detokenize", "tokenize", {"tokens": [300, 301]}, "detokenize", (None, None)),
        ("/v1/responses", "responses", {"input": "Hi"}, "responses_nonstream", (18, 6)),
        ("/v1/messages", "messages", {"messages": [], "max_tokens": 6}, "messages_prefix_warm", (315, 3)),
    ],
)
async def test_plain_requests(
    scene: Scene, path: str, name: str, body: dict[str, Any], capture: str, tokens: tuple[int | None, int | None] | None
) -> None:
    """Each path reaches its worker under its own name, is passed on unchanged, and has a whole record without a TTFT."""
    answer = load(capture)
    seen = await scene.ask([Send(answer.response)], body={"model": "tiny", **body}, path=path)
    [request] = scene.arrivals(seen.record["request_id"])
    record = seen.record

    assert (request.path, json.loads(request.body)) == (path, {"model": "tiny", **body})
    assert seen.answer.body == answer.payload
    assert (record["endpoint"], record["outcome"], record["ttft_seconds"], record["no_token"]) == (name, "ok", None, None)
    if tokens is not None:
        assert (record["prompt_tokens"], record["completion_tokens"]) == tokens
    assert record["e2e_seconds"] > 0
    assert not record["prompt_is_estimate"]


async def test_reading_needs_no_room_for_an_answer() -> None:
    """What generates nothing fits by its prompt alone, and what is only counted need not fit at all."""
    text = "word " * 2000
    async with running_scene({"tiny": {"max_total_tokens": 4000}}) as scene:
        answer = [Send(plain(200, {}))]
        chat = await scene.ask(answer, body=chat_body(stream=False, messages=[{"content": text}], max_tokens=3900))
        embedding = await scene.ask(answer, body={"model": "tiny", "input": text, "max_tokens": 3900}, path="/v1/embeddings")
        counted = await scene.ask(answer, body={"model": "tiny", "prompt": text * 50}, path="/tokenize")

    assert [seen.answer.status for seen in (chat, embedding, counted)] == [400, 200, 200]


async def test_an_upload(scene: Scene) -> None:
    """A form reaches its worker byte for byte, with the model behind the file, streamed for or not."""
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + bytes(range(256)) * 4000
    form = file + b'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n--b--\r\n'
    type_of_form = [("Content-Type", "multipart/form-data; boundary=b")]
    answer = {"text": "Hello", "usage": {"type": "duration", "seconds": 3}}
    whole = await scene.ask([Send(plain(200, answer))], body=form, path="/v1/audio/transcriptions", headers=type_of_form)
    events = [{"object": "transcription.chunk", "choices": [{"delta": {"content": text}}]} for text in "ab"]
    events += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}]
    stream = await scene.ask(stream_of(events), body=form, path="/v1/audio/translations", headers=type_of_form)

    assert [scene.arrivals(each.record["request_id"])[0].body == form for each in (whole, stream)] == [True, True]
    assert [each.record["outcome"] for each in (whole, stream)] == ["ok", "ok"]
    assert [each.record["endpoint"] for each in (whole, stream)] == ["audio", "audio"]
    assert (stream.record["completion_tokens"], stream.record["completion_is_estimate"]) == (2, True)
    assert (stream.record["prompt_tokens"], whole.record["prompt_tokens"]) == (None, None)
    assert stream.record["ttft_seconds"] is not None


async def test_methods_that_a_path_does_not_answer(scene: Scene) -> None:
    """405 names the one that it does."""
    for path, allowed in ((RESPONSES, "POST"), ("/v1/models", "GET"), (f"{RESPONSES}/resp_1", "GET"), ("/tokenize", "POST")):
        seen = await scene.ask([], path=path, method="PUT")
        assert seen.answer.head is not None
        assert (seen.answer.status, seen.answer.head.get("allow")) == (405, allowed)


# Answers that workers keep

MISSING = [Send(plain(404, {"error": {"message": "not found"}}))]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Scene]:
    """Three workers of one model and one of another, and a key that may use only the first model."""
    keys = [
        {"name": name, "sha256": hashlib.sha256(f"sk-{name}".encode()).hexdigest(), **({"models": models} if models else {})}
        for name, models in KEYS.items()
    ]
    async with running_scene({"tiny": {}, "other": {}}, workers={"tiny": 3}, config={"keys": keys}) as one:
        yield one


def headers(key: str = "all") -> list[tuple[str, str]]:
    return [("x-api-key", f"sk-{key}")]


async def look_up(
    fleet: Scene, answer_id: str, *, key: str = "all", suffix: str = "", method: str = "GET"
) -> tuple[int, dict[str, Any], Any]:
    """Ask for an answer: status, record, and body."""
    request_id = fleet.plays(MISSING)
    async with await fleet.connect() as client:
        path = f"{RESPONSES}/{answer_id}{suffix}"
        await client.send(fleet.request(request_id, None, path=path, method=method, headers=headers(key)))
        answer = await client.read_answer()
    return answer.status, await fleet.record(request_id), answer.body


@pytest.mark.parametrize("stream", [True, False])
async def test_who_made_an_answer_is_asked_for_it(fleet: Scene, stream: bool) -> None:
    """The worker that made a response is the only one that is asked for it, and what it shows is not counted again."""
    answer_id = f"resp_made_{stream}"
    script = response_stream(answer_id) if stream else [Send(plain(200, a_response(answer_id)))]
    body = {"model": "tiny", "input": "Hi", "stream": stream}
    made = await fleet.ask(script, body=body, path=RESPONSES, headers=headers())
    [first] = fleet.arrivals(made.record["request_id"])
    before = await fleet.gateway.metrics()
    shown = await fleet.ask(
        [Send(plain(200, a_response(answer_id)))], path=f"{RESPONSES}/{answer_id}", method="GET", body=b"", headers=headers()
    )
    [request] = fleet.arrivals(shown.record["request_id"])
    after = await fleet.gateway.metrics()

    assert shown.record["worker"] == made.record["worker"]
    assert (request.method, request.path) == ("GET", f"{RESPONSES}/{answer_id}")
    assert request.headers["host"] == first.headers["host"]
    assert json.loads(shown.answer.body)["id"] == answer_id
    assert (shown.record["endpoint"], shown.record["attempts"], shown.record["outcome"]) == ("response_lookup", 1, "ok")
    assert (shown.record["prompt_tokens"], shown.record["completion_tokens"], shown.record["route_reason"]) == (
        None,
        None,
        None,
    )
    assert after.total("ridgeline_completion_tokens_total") == before.total("ridgeline_completion_tokens_total")


async def test_a_conversation_goes_on_where_it_was(fleet: Scene) -> None:
    """A request that names the response before it goes to the worker that made that one; others take turns."""
    for number in range(6):
        answer_id = f"resp_turn_{number}"
        first = await fleet.ask(
            [Send(plain(200, a_response(answer_id)))], body={"model": "tiny", "input": "Hi"}, path=RESPONSES, headers=headers()
        )
        again = await fleet.ask(
            [Send(plain(200, a_response(answer_id + "_b")))],
            body={"model": "tiny", "input": "And?", "previous_response_id": answer_id},
            path=RESPONSES,
            headers=headers(),
        )
        assert (again.record["worker"], again.record["route_reason"]) == (first.record["worker"], "owner")
    unknown = await fleet.ask(
        [Send(plain(200, a_response()))],
        body={"model": "tiny", "input": "And?", "previous_response_id": "resp_unheard"},
        path=RESPONSES,
        headers=headers(),
    )

    assert unknown.record["route_reason"] != "owner"


async def test_who_made_an_answer_before_is_sought(fleet: Scene) -> None:
    """Another process or gateway may have passed that answer on: a worker that does not have it is followed by the next one."""
    body = {"model": "tiny", "input": "And?", "previous_response_id": "resp_of_another"}
    found = await fleet.ask(MISSING, [Send(plain(200, a_response("resp_on")))], body=body, path=RESPONSES, headers=headers())
    again = await fleet.ask([Send(plain(200, a_response("resp_on_and_on")))], body=body, path=RESPONSES, headers=headers())
    first, second = fleet.arrivals(found.record["request_id"])

    assert (found.answer.status, found.record["outcome"], found.record["attempts"]) == (200, "ok", 2)
    assert first.headers["host"] != second.headers["host"]
    assert (again.record["worker"], again.record["route_reason"]) == (found.record["worker"], "owner")


async def test_an_answer_that_nobody_has_cannot_be_gone_on_from(fleet: Scene) -> None:
    """Each worker of the model is asked once, and the client gets the last one's own words; nobody is the worse for it."""
    body = {"model": "tiny", "input": "And?", "previous_response_id": "resp_of_nobody"}
    seen = await fleet.ask(*[MISSING] * 9, body=body, path=RESPONSES, headers=headers())
    arrivals = fleet.arrivals(seen.record["request_id"])

    assert (seen.answer.status, seen.record["outcome"]) == (404, "client_error")
    assert seen.answer.body == MISSING[0].data.partition(b"\r\n\r\n")[2]
    assert len(arrivals) == len(fleet.workers["tiny"]) == len({request.headers["host"] for request in arrivals})


async def test_a_running_response_can_be_cancelled(fleet: Scene) -> None:
    """Its worker is known as soon as the stream has begun."""
    answer_id = "resp_running"
    request_id = fleet.plays([Send(sse_head() + named("response.created", response={"id": answer_id})), Hang()])
    async with await fleet.connect() as client:
        body = {"model": "other", "input": "Hi", "stream": True}
        await client.send(fleet.request(request_id, body, path=RESPONSES, headers=headers()))
        await client.read_until(b"response.created")
        cancelled = await fleet.ask(
            [Send(plain(200, a_response(answer_id, "cancelled")))],
            path=f"{RESPONSES}/{answer_id}/cancel",
            body=b"",
            headers=headers(),
        )
    [request] = fleet.arrivals(cancelled.record["request_id"])

    assert (request.method, request.path) == ("POST", f"{RESPONSES}/{answer_id}/cancel")
    assert request in fleet.workers["other"][0].requests
    assert (await fleet.record(request_id))["outcome"] == "client_gone"


async def test_workers_are_asked_in_turn(fleet: Scene) -> None:
    """One that nobody remembers is asked for at each worker once; who has it is remembered, who has not is passed over."""
    owner = fleet.workers["other"][0]
    request_id = fleet.plays(MISSING, MISSING, MISSING, [Send(plain(200, a_response("resp_far")))])
    seen = []
    for _ in range(2):
        async with await fleet.connect() as client:
            await client.send(
                fleet.request(request_id, b"", path=f"{RESPONSES}/resp_far?stream=true", method="GET", headers=headers())
            )
            seen.append(await client.read_answer())
    arrivals = fleet.arrivals(request_id)

    assert [answer.status for answer in seen] == [200, 200]
    assert len(arrivals) == 5
    assert len({request.headers["host"] for request in arrivals[:4]}) == 4
    assert all(request in owner.requests for request in arrivals[3:])
    assert all(request.path == f"{RESPONSES}/resp_far?stream=true" for request in arrivals)


async def test_an_answer_that_nobody_has(fleet: Scene) -> None:
    """Every worker is asked once, and the last one's 404 is the client's."""
    status, record, body = await look_up(fleet, "resp_none")

    assert (status, json.loads(body)) == (404, {"error": {"message": "not found"}})
    assert (record["attempts"], record["outcome"]) == (4, "client_error")


async def test_a_key_asks_its_own_models_only(fleet: Scene) -> None:
    """Workers of a model that the key may not use are not asked, even if one is known to have the answer."""
    await fleet.ask(
        [Send(plain(200, a_response("resp_other")))], body={"model": "other", "input": "Hi"}, path=RESPONSES, headers=headers()
    )
    status, record, _ = await look_up(fleet, "resp_other", key="one")

    assert (status, record["attempts"]) == (404, 3)
    assert not any(
        request.headers.get("x-request-id") == record["request_id"] for request in fleet.workers["other"][0].requests
    )


async def test_a_worker_that_is_away_is_passed_over(fleet: Scene) -> None:
    """One that refuses connections does not end the search."""
    away = fleet.workers["tiny"][1]
    await away.stop_listening()
    try:
        found = await fleet.ask(
            MISSING,
            MISSING,
            [Send(plain(200, a_response("resp_away")))],
            path=f"{RESPONSES}/resp_away",
            method="GET",
            body=b"",
            headers=headers(),
        )
    finally:
        await away.start()

    assert (found.answer.status, found.record["outcome"]) == (200, "ok")


async def test_a_worker_that_does_not_answer_is_passed_over(fleet: Scene) -> None:
    """It has nothing to compute, so its silence ends after five seconds and the next one is asked."""
    found = await fleet.ask(
        [Hang()],
        [Send(plain(200, a_response("resp_slow")))],
        path=f"{RESPONSES}/resp_slow",
        method="GET",
        body=b"",
        headers=headers(),
    )

    assert (found.answer.status, found.record["attempts"]) == (200, 2)
    assert 4.5 < found.record["e2e_seconds"] < 7


FAILING: dict[str, list[Step]] = {
    "closes": [Close()],
    "half a head": [Send(b"HTTP/1.1 404 x\r\ncontent-le"), Wait(0.02), Close()],
    "no HTTP": [Send(b"hello\r\n\r\n")],
    **{str(status): [Send(plain(status, {"error": "no"}))] for status in (302, 400, 401, 403, 405, 429, 500, 501, 503)},
}


@pytest.mark.parametrize("way", FAILING)
async def test_a_worker_that_fails_is_passed_over(fleet: Scene, way: str) -> None:
    """Whatever is wrong with one of those that may have an answer, the next one is asked."""
    found = await fleet.ask(
        FAILING[way],
        [Send(plain(200, a_response("resp_found")))],
        path=f"{RESPONSES}/resp_found_{way.replace(' ', '_')}",
        method="GET",
        body=b"",
        headers=headers(),
    )

    assert (found.answer.status, found.answer.json()["id"]) == (200, "resp_found")
    assert (found.record["outcome"], found.record["worker_status"], found.record["fault"]) == ("ok", 200, None)


@pytest.mark.parametrize("way", ["half a head", "401", "400", "500"])
async def test_that_an_answer_is_not_there_is_the_news(fleet: Scene, way: str) -> None:
    """Of all errors the client gets the one that some worker does not have it, wherever that came in the order."""
    first = await fleet.ask(MISSING, FAILING[way], path=f"{RESPONSES}/resp_x", method="GET", body=b"", headers=headers())
    last = await fleet.ask(*[FAILING[way]] * 3, MISSING, path=f"{RESPONSES}/resp_x", method="GET", body=b"", headers=headers())

    assert [seen.answer.status for seen in (first, last)] == [404, 404]
    assert first.answer.json()["error"]["code"] == "response_not_found"
    assert first.record["outcome"] == "client_error"


@pytest.mark.parametrize(("way", "status"), [("half a head", 502), ("401", 502), ("400", 400), ("500", 500)])
async def test_when_all_fail(fleet: Scene, way: str, status: int) -> None:
    """The last one's failure is told."""
    seen = await fleet.ask(FAILING[way], path=f"{RESPONSES}/resp_x", method="GET", body=b"", headers=headers())

    assert (seen.answer.status, seen.record["attempts"]) == (status, 4)


async def test_who_has_an_answer_is_believed(fleet: Scene) -> None:
    """Why the worker that made it does not cancel it is the client's to know, and no other is asked."""
    body = {"model": "tiny", "input": "Hi"}
    await fleet.ask([Send(plain(200, a_response("resp_sync")))], body=body, path=RESPONSES, headers=headers())
    seen = await fleet.ask(FAILING["400"], path=f"{RESPONSES}/resp_sync/cancel", body=b"", headers=headers())

    assert (seen.answer.status, seen.answer.json(), seen.record["attempts"]) == (400, {"error": "no"}, 1)


async def test_ids_that_are_chosen_by_clients_are_not_kept_at_any_length(fleet: Scene) -> None:
    """A long one is passed on, and nobody can ask for it."""
    long = "r" * 100_000
    made = await fleet.ask(
        [Send(plain(200, a_response(long)))], body={"model": "tiny", "input": "Hi"}, path=RESPONSES, headers=headers()
    )
    again = await fleet.ask(
        [Send(plain(200, a_response()))],
        body={"model": "tiny", "input": "And?", "previous_response_id": long},
        path=RESPONSES,
        headers=headers(),
    )

    assert made.answer.json()["id"] == long
    assert again.record["route_reason"] != "owner"


async def test_models_of_one_worker_are_kept_apart() -> None:
    """A key for one of them gets, cancels and goes on from only what was made with it, known or not."""
    async with ScriptedWorker() as worker:
        models = [{"name": name, "workers": [{"url": worker.url, "name": f"w-{name}"}]} for name in ("tiny", "other")]
        keys = [
            {"name": name, "sha256": hashlib.sha256(f"sk-{name}".encode()).hexdigest(), **({"models": of} if of else {})}
            for name, of in KEYS.items()
        ]
        async with running_gateway({"models": models, "keys": keys}) as gateway:

            async def ask(method: str, path: str, body: Any, key: str) -> int:
                worker.script = [Send(plain(200, a_response(path.split("/")[3] if path != RESPONSES else body["id"])))]
                async with await RawClient.connect(gateway.base_url) as client:
                    return (await client.request(method, path, body, headers(key))).status

            for model in ("tiny", "other"):
                assert await ask("POST", RESPONSES, {"model": model, "input": "Hi", "id": f"resp_{model}"}, "all") == 200
            wanted = {("tiny", "one"): 200, ("other", "one"): 404, ("tiny", "all"): 200, ("other", "all"): 200}
            for _ in range(2):  # what the key for all has been shown does not become another model's
                for (model, key), status in wanted.items():
                    seen = len(worker.requests)
                    assert await ask("GET", f"{RESPONSES}/resp_{model}", None, key) == status
                    assert await ask("POST", f"{RESPONSES}/resp_{model}/cancel", b"", key) == status
                    assert len(worker.requests) == seen + (2 if status == 200 else 0)
            assert await ask("GET", f"{RESPONSES}/resp_unknown", None, "all") == 200
            assert await ask("GET", f"{RESPONSES}/resp_unknown", None, "one") == 404
            after = {"model": "tiny", "input": "And?", "id": "resp_next", "previous_response_id": "resp_other"}
            assert await ask("POST", RESPONSES, after, "one") == 404


@pytest.mark.parametrize("answer_id", ["", "a/b", "a%2Fb", "x" * 300, "a b"])
async def test_ids_that_are_none(fleet: Scene, answer_id: str) -> None:
    """What cannot be an id reaches no worker."""
    seen = await fleet.ask(MISSING, path=f"{RESPONSES}/{answer_id}".replace(" ", "%20"), method="GET", headers=headers())

    assert seen.answer.status == 404
    assert fleet.arrivals(seen.record["request_id"]) == []


async def test_nothing_is_left_in_flight(fleet: Scene) -> None:
    """After all of the above no worker has work of ours, and all connections can be used again."""
    await fleet.quiet()
    await asyncio.gather(
        *(fleet.ask([Send(plain(200, {}))], body=chat_body(stream=False), headers=headers()) for _ in range(4))
    )
    await fleet.quiet()
