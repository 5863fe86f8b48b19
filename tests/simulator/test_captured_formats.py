"""Requests that real workers were sent, sent to a simulated one: the answers differ in a short list of fields and no others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from simulator.faults import End, Faults
from simulator.server import WorkerSettings, start_worker
from tests.captures import SURFACE, load, names
from tests.http1 import Head, Message

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

# What may differ from the captured answer, and why. A text or number may be another text or number, but not null, missing, or
# of another type; counts must agree in being 0; everything else is equal.
DIFFERENT = {
    "id": "drawn at random, unless the client gave one",
    "created": "the time of day",
    "date": "the time of day",
    "system_fingerprint": "ends in a hash of another configuration",
    "content": "what the model says",
    "text": "what the model says",
    "reasoning": "what the model says",
    "arguments": "what the model says",
    "city": "what the model says",
    "content-length": "the length of what the model says",
    "x-request-id": "drawn at random, unless the client gave one",
    "prompt_tokens": "another tokenizer",
    "total_tokens": "another tokenizer",
    "completion_tokens": "how long the answer is; compared where the request decides it",
    "cached_tokens": "whole blocks of another number of tokens",
    "created_cache_tokens": "whole blocks of another number of tokens",
    "reasoning_tokens": "what the model says",
    "count": "another tokenizer",
    "input_tokens": "another tokenizer",
    "original_input_tokens": "another tokenizer",
    "output_tokens": "how long the answer is",
    "cache_creation_input_tokens": "whole blocks of another number of tokens",
    "cache_read_input_tokens": "whole blocks of another number of tokens",
    "cache_write_tokens": "whole blocks of another number of tokens",
    "token_ids": "another vocabulary",
    "token_strs": "another vocabulary",
    "prompt_token_ids": "another vocabulary",
    "text_offset": "where tokens begin",
    "prompt": "what made-up ids stand for",
    "delta": "what the model says",
    "thinking": "what the model says",
    "partial_json": "where the model's tokens end",
    "signature": "a hash",
    "item_id": "drawn at random",
    "call_id": "drawn at random",
    "created_at": "the time of day",
    "sequence_number": "as many events as tokens",
    "token": "what the model says",
    "tokens": "what the model says",
    "bytes": "what the model says",
    "logprob": "made up",
    "rank": "made up",
    "token_logprobs": "made up",
    "top_logprobs": "made up",
    "prompt_logprobs": "made up",
    "decoded_token": "made up",
    "time_to_first_token_ms": "measured",
    "generation_time_ms": "measured",
    "queue_time_ms": "measured",
    "mean_itl_ms": "measured",
    "tokens_per_second": "measured",
}
COUNTS = {name for name in DIFFERENT if name.endswith("_tokens")}

# Fields of a captured answer that a simulated one lacks.
LACKING = {"speculative_decoding": "needs --per-request-spec-decode-metrics, which the simulated worker does not have"}

SERVERS: dict[str, dict[str, Any]] = {
    "all on": {
        "aliases": ("tiny-alias",),
        "api_key": "sk-test",
        "block_tokens": 128,
        "prompt_tokens_details": True,
        "per_request_metrics": True,
        "request_id_headers": True,
        "calls_tools": True,
    },
    "parsers": {
        "model": "scripted",
        "calls_tools": True,
        "thinks": True,
        "thoughts": "First I weigh it.",
        "answer": "Hello, this answer",
        "dev_mode": True,
        "force_include_usage": True,
    },
    "speculating": {
        "model": "scripted",
        "answer": "Hello, this answer has eight",
        "draft_tokens": 3,
        "draft_acceptance_ratio": 1.0,
        "block_tokens": 128,
        "prompt_tokens_details": True,
        "per_request_metrics": True,
    },
    "intervals": {"stream_interval": 8, "adapters": ("tiny-lora",), "prompt_tokens_details": True},
    "parallel": {"data_parallel_size": 2, "prompt_tokens_details": True, "request_id_headers": True},
    "defaults": {},
    "details": {"block_tokens": 128, "prompt_tokens_details": True},
    "draining": {"model": "scripted", "faults": Faults(draining=True)},
}
BY_PREFIX = {
    "completion_batch_prefix_": "details",
    **dict.fromkeys(("chat_", "completion_", "err_", "get_", "hdr_", "body_", "tokenize_", "detokenize"), "all on"),
    **dict.fromkeys(("http10_", "ctype_"), "defaults"),
    "dev_": "parsers",
    "during_drain_": "draining",
    **dict.fromkeys(("messages_prefix_", "messages_stream_prefix_", "responses_prefix_"), "details"),
    **dict.fromkeys(("messages_thinking_", "messages_tool_", "messages_eos_", "responses_reasoning_"), "parsers"),
    **dict.fromkeys(("responses_tool_", "responses_error_", "responses_background"), "parsers"),
    **dict.fromkeys(("messages_", "responses_"), "all on"),
    **dict.fromkeys(("force_usage_", "reasoning_", "tool_"), "parsers"),
    **dict.fromkeys(("spec_", "stream_interval_", "trace_", "drain_"), "speculating"),
    **dict.fromkeys(("interval8_", "lora_", "queued_"), "intervals"),
    "dp2_": "parallel",
    "load64_": "defaults",
}
# Captures that are no answer to a request alone, and which test has them.
ELSEWHERE = {
    **dict.fromkeys(("abort_requests_reply", "aborted_by_admin_chat_stream", "chat_while_paused"), "test_worker.py"),
    **dict.fromkeys(("midstream_engine_killed", "midstream_engine_killed_completion"), "below"),
    "midstream_engine_killed_nonstream": "below",
    "midstream_server_sigkill": "test_faults_of_workers.py",
    **dict.fromkeys(("chat_stream_long_prompt_cold", "chat_stream_long_prompt_warm"), "the file has no request body"),
    "keepalive_chat_stream_long_prompt": "the file has no request body; test_worker.py has comments",
    **dict.fromkeys(("err_too_long", "err_too_long_stream"), "the file has no request body; test_bodies.py has the answer"),
    **dict.fromkeys([name for name in names() if name.startswith("embed_")], "the simulated worker only generates"),
    **dict.fromkeys([name for name in names() if name.startswith("overload_503_")], "a full queue; the ones of chat are below"),
    **dict.fromkeys(
        [name for name in names() if name.startswith("sigterm_")], "a worker that stops and says nothing: test_worker.py"
    ),
}
NO_SUCH_THING = {
    "err_bad_token_id": "the simulated vocabulary is larger and has that id",
    "dp2_kv_event_sources": "the simulated worker publishes no KV events",
    "during_drain_models": "a directory as the model's root",
}
# What the captured worker did otherwise than the simulated one, which changes the answer.
OTHER_CHOICES = {
    "chat_stream_stop_token_id": "the captured model ran into a stop token",
    "force_usage_chat_stream_eos": "the captured model did not begin with <think>, so all it said was reasoning",
    "chat_stream_stop_string": "the captured model wrote the stop text letter by letter",
    "chat_stream_200": "the captured answer ends within a character",
    "messages_error_type": "the words in which a wrong type is told are those of another parser",
    "queued_chat_stream_7": "the captured request waited behind others, so there was a comment",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[dict[str, str]]:
    """A worker for each set of flags, by name."""
    async with AsyncExitStack() as stack:
        urls = {}
        for name, flags in SERVERS.items():
            fixed = {
                "model": "tiny",
                "shape": "llama-3.1-8b",
                "gpu": "h100-sxm",
                "port": 0,
                "speed": 50.0,
                "max_model_len": 32_768,
            }
            running, urls[name] = await start_worker(WorkerSettings(**{**fixed, **flags}))
            stack.push_async_callback(running.cleanup)
        yield urls


async def exchange(url: str, request: bytes) -> tuple[Head, bytes]:
    """Send the bytes of a request and return head and body of the answer."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    message = Message(is_request=False)
    try:
        async with asyncio.timeout(10):
            writer.write(request)
            while not message.is_complete:
                data = await reader.read(65536)
                assert data, "the worker closed the connection"
                message.feed(data)
    finally:
        writer.close()
    assert message.head is not None
    return message.head, bytes(message.body)


def normalised(value: Any, field: str = "") -> Any:
    """A value in which all that may differ is replaced by what of it may not."""
    if field in DIFFERENT and value is not None and not isinstance(value, dict):
        if field in COUNTS:
            return "0" if value == 0 else "count"
        if isinstance(value, list):
            kinds = [
                normalised(item) if field == "content" or (isinstance(item, dict) and "token" in item) else type(item).__name__
                for item in value
            ]
            return [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]
        return type(value).__name__
    if isinstance(value, dict):
        return [(key, normalised(item, key)) for key, item in value.items() if key not in LACKING]
    if isinstance(value, list):
        return [normalised(item, field) for item in value]
    return value


def events_of(body: bytes) -> dict[Any, list[Any]]:
    """What a stream tells of each choice, and under no choice's name the rest; what is repeated is left out."""
    found: dict[Any, list[Any]] = {}
    for block in body.removesuffix(b"\n\n").split(b"\n\n"):
        name, _, text = block.rpartition(b"data: ")
        value = text.decode() if text == b"[DONE]" or block.startswith(b":") else json.loads(text)
        choices = value.get("choices") if isinstance(value, dict) else None
        story = found.setdefault(choices[0]["index"] if choices else None, [])
        told = [name.decode(), normalised(value)]
        if not story or story[-1] != told:
            story.append(told)
    return found


def compared(head: Head, body: bytes) -> Any:
    """An answer as far as it has to be the captured one."""
    headers = [(name, type(value).__name__ if name in DIFFERENT else value) for name, value in head.headers]
    if "event-stream" in (head.get("content-type") or ""):
        return head.first_line, headers, events_of(body)
    return head.first_line, headers, normalised(json.loads(body)) if body else None


def server_of(name: str) -> str:
    return next(server for prefix, server in BY_PREFIX.items() if name.startswith(prefix))


@pytest.mark.parametrize("name", [name for name in names() if name not in {**ELSEWHERE, **OTHER_CHOICES}])
async def test_an_answer_is_the_captured_one_but_for_the_listed_fields(servers: dict[str, str], name: str) -> None:
    """Status line, headers, and all fields of body or events are there, in the same order, with the same values."""
    capture = load(name)

    ours = await exchange(servers[server_of(name)], capture.request)

    assert compared(*ours) == compared(Head.parse(capture.response_head), capture.payload)
    if b'"ignore_eos": true' in capture.request:
        assert last_count(ours[1]) == last_count(capture.payload)


@pytest.mark.parametrize("name", [name for name in names(SURFACE) if name not in NO_SUCH_THING])
async def test_so_is_all_around_it(servers: dict[str, str], name: str) -> None:
    """Errors, headers, ranks, small endpoints: status line, headers and body are the captured ones, too."""
    capture = load(name, SURFACE)

    ours = await exchange(servers[server_of(name)], capture.request)

    assert compared(*ours) == compared(Head.parse(capture.response_head), capture.payload)


@pytest.mark.parametrize("name", [*OTHER_CHOICES, *NO_SUCH_THING])
async def test_an_exception_is_still_one(servers: dict[str, str], name: str) -> None:
    """What is left out above really differs."""
    capture = load(name) if name in OTHER_CHOICES else load(name, SURFACE)

    ours = await exchange(servers[server_of(name)], capture.request)

    assert compared(*ours) != compared(Head.parse(capture.response_head), capture.payload)


@pytest.mark.parametrize(
    "name", ["midstream_engine_killed", "midstream_engine_killed_completion", "midstream_engine_killed_nonstream"]
)
async def test_an_engine_that_dies_looks_like_the_captured_one(name: str) -> None:
    """After some tokens comes an error event under status 200, then the end mark; a plain request gets the error as status."""
    faults = Faults(end=End.ERROR, end_at_token=5)
    settings = WorkerSettings(
        model="tiny",
        shape="llama-3.1-8b",
        gpu="h100-sxm",
        port=0,
        speed=50.0,
        api_key="sk-test",
        request_id_headers=True,
        faults=faults,
    )
    running, url = await start_worker(settings)
    try:
        ours = await exchange(url, load(name).request)
    finally:
        await running.cleanup()

    assert compared(*ours) == compared(Head.parse(load(name).response_head), load(name).payload)


@pytest.mark.parametrize("name", ["overload_503_nonstream", "overload_503_stream"])
async def test_a_full_queue_refuses_as_captured(name: str) -> None:
    """With as many requests waiting as may wait, the next one is a 503 in the captured words."""
    settings = WorkerSettings(model="scripted", shape="llama-3.1-8b", gpu="h100-sxm", port=0, max_num_seqs=1, max_queued=1)
    running, url = await start_worker(settings)
    try:
        body = json.dumps({"prompt": "x", "max_tokens": 5000, "ignore_eos": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        engine, others = running.worker.driver.engine, []
        async with asyncio.timeout(5):
            for wanted in ((1, 0), (1, 1)):
                others.append(asyncio.create_task(exchange(url, head + body)))
                while True:
                    await asyncio.sleep(0)
                    if (engine.running, engine.waiting) == wanted:
                        break
        ours = await exchange(url, load(name).request)
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    finally:
        await running.cleanup()

    assert compared(*ours) == compared(Head.parse(load(name).response_head), load(name).payload)


def last_count(body: bytes) -> int | None:
    """The completion tokens of an answer as they are told last."""
    found = body.rpartition(b'"completion_tokens":')[2]
    return int(found[: len(found) - len(found.lstrip(b"0123456789"))]) if b'"completion_tokens":' in body else None
