"""The bytes that a vLLM worker answers with, for scripts: heads, events, whole streams."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from tests.http1 import chunk, last_chunk
from tests.integration.steps import Send, Step, Wait

DONE = b"data: [DONE]\n\n"

METRICS_PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
"""


def _head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "server: uvicorn"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers), "", ""]).encode("latin-1")


def sse_head(*headers: tuple[str, str], status: int = 200, keep_alive: bool = True) -> bytes:
    """The head of a streamed answer, chunked as vLLM does it."""
    framing = [("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked")]
    return _head(status, [*framing, *([] if keep_alive else [("connection", "close")]), *headers])


def plain(
    status: int = 200,
    body: bytes | dict[str, Any] = b"",
    headers: Iterable[tuple[str, str]] = (),
    *,
    content_type: str = "application/json",
) -> bytes:
    """A whole answer with a declared length."""
    if isinstance(body, dict):
        body = json.dumps(body, separators=(",", ":")).encode()
    return _head(status, [("content-length", str(len(body))), ("content-type", content_type), *headers]) + body


def event(payload: dict[str, Any] | str | bytes) -> bytes:
    """One server-sent event: a value as JSON, a text as its data; bytes are taken as a whole event."""
    if isinstance(payload, bytes):
        return payload
    text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    return b"data: " + text.encode() + b"\n\n"


def stream_of(
    events: Iterable[dict[str, Any] | str | bytes], *, gap_seconds: float = 0.0, head: bytes | None = None, done: bool = True
) -> list[Step]:
    """A whole streamed answer: head, each event as a chunk of its own with a gap before it, ``[DONE]``, the last chunk."""
    steps: list[Step] = [Send(sse_head() if head is None else head)]
    for item in events:
        if gap_seconds:
            steps.append(Wait(gap_seconds))
        steps.append(Send(chunk(event(item))))
    if done:
        steps.append(Send(chunk(DONE)))
    return [*steps, Send(last_chunk())]


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    """A ``usage`` object; without details when the cached tokens are not reported."""
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return usage


def chat_events(
    texts: Sequence[str], *, usage: dict[str, Any] | None = None, finish_reason: str = "stop", model: str = "tiny"
) -> list[dict[str, Any]]:
    """The events of a chat stream: the role, each text, the finish reason on an empty delta, and usage when given."""

    def part(choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices}

    def choice(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return part([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}])

    events = [choice({"role": "assistant", "content": ""}), *(choice({"content": text}) for text in texts)]
    events.append(choice({}, finish_reason))
    return events if usage is None else [*events, part([]) | {"usage": usage}]


def chat_answer(text: str, *, usage: dict[str, Any], finish_reason: str = "stop", model: str = "tiny") -> bytes:
    """A whole plain chat answer."""
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}]
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model, "choices": choices, "usage": usage}
    return plain(200, body)
