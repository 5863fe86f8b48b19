"""Formats, held against what real workers sent: same fields in the same order, same kinds of values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator import wire
from tests.captures import load

HEAD = wire.Head(identifier="x", created=1, model="tiny", fingerprint="vllm-0.32.0-00000000")
USAGE = wire.Usage(prompt_tokens=18, completion_tokens=12, cached_tokens=0, created_cache_tokens=0)
PER_REQUEST_METRICS = "metrics"  # the captured servers had a flag on that adds them; ours is like one without


def shape(value: Any) -> Any:
    """A JSON value with its numbers and texts left out: keys in order, types, and what is null."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def events(payload: bytes) -> list[Any]:
    """The events of a stream: the shape of each, or its text if it is no JSON."""
    found = []
    for block in payload.removesuffix(b"\n\n").split(b"\n\n"):
        text = block.removeprefix(b"data: ")
        if text == b"[DONE]":
            found.append("[DONE]")
            continue
        value = json.loads(text)
        value.pop(PER_REQUEST_METRICS, None)
        found.append(shape(value))
    return found


def deduplicated(found: list[Any]) -> list[Any]:
    return [event for position, event in enumerate(found) if position == 0 or event != found[position - 1]]


def a_stream(form: wire.Format, *, usage: bool = False, running: bool = False, ends: bool = False) -> bytes:
    """A stream of three tokens; the last is an end token if it ``ends`` by itself."""
    given = USAGE if running else None
    last = "" if ends else "c"
    return b"".join(
        (
            form.opening(HEAD, given),
            form.piece(HEAD, "a", None, given, is_last=False),
            form.piece(HEAD, "b", None, given, is_last=False),
            form.piece(HEAD, last, "stop" if ends else "length", given, is_last=not usage),
            form.closing(HEAD, USAGE) if usage else b"",
            wire.DONE,
        )
    )


@pytest.mark.parametrize(
    ("name", "form", "asked"),
    [
        ("chat_stream", wire.ChatFormat(), {}),
        ("chat_stream_include_usage", wire.ChatFormat(), {"usage": True}),
        ("chat_stream_continuous_usage", wire.ChatFormat(), {"usage": True, "running": True}),
        ("chat_stream_eos", wire.ChatFormat(), {"usage": True, "ends": True}),
        ("completion_stream", wire.CompletionFormat(), {}),
        ("completion_stream_include_usage", wire.CompletionFormat(), {"usage": True}),
        ("completion_stream_continuous_usage", wire.CompletionFormat(), {"usage": True, "running": True}),
    ],
)
def test_streams_look_like_captured_ones(name, form, asked):
    """Event for event, a stream has the fields of the captured one in their order, however many tokens there are."""
    assert deduplicated(events(a_stream(form, **asked))) == deduplicated(events(load(name).payload))


@pytest.mark.parametrize(
    ("name", "form"), [("chat_nonstream", wire.ChatFormat()), ("completion_nonstream", wire.CompletionFormat())]
)
def test_plain_answers_look_like_captured_ones(name, form):
    """A plain answer has the fields of the captured one in their order; the per-request metrics are null without their flag."""
    captured = json.loads(load(name).payload)
    captured[PER_REQUEST_METRICS] = None

    assert shape(json.loads(form.answer(HEAD, "text", "length", USAGE))) == shape(captured)


@pytest.mark.parametrize("form", [wire.ChatFormat(), wire.CompletionFormat()])
def test_usage_adds_up(form):
    """The usage event tells the counts it was given and their sum."""
    usage = json.loads(form.closing(HEAD, USAGE).removeprefix(b"data: "))["usage"]

    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (18, 12, 30)


def test_what_the_cache_learned_is_told_as_captured():
    """A cold chat tells the created cache tokens, a warm one the cached tokens, under the captured names."""
    captured = [json.loads(load(f"chat_prefix_{name}").payload)["usage"] for name in ("cold", "warm")]
    ours = []
    for cached, created in ((0, 256), (256, 0)):
        usage = wire.Usage(prompt_tokens=315, completion_tokens=2, cached_tokens=cached, created_cache_tokens=created)
        ours.append(json.loads(wire.ChatFormat().answer(HEAD, "", "length", usage))["usage"])

    assert ours == captured


def test_text_is_sent_as_it_is():
    """Characters beyond ASCII are not escaped."""
    event = wire.ChatFormat().piece(HEAD, "水", None, None, is_last=False)

    assert '"content":"水"'.encode() in event


def test_models_look_like_the_captured_list():
    """The list of models has the captured fields in their order."""
    captured = json.loads(load("get_models").payload)
    captured["data"] = captured["data"][:1]

    assert shape(json.loads(wire.models_body("tiny", 1, 32768, "x"))) == shape(captured)


def test_small_bodies():
    """Version, tokenize, unknown path and missing key answer as captured from vLLM 0.32.0."""
    assert wire.version_body() == b'{"version":"0.32.0"}'
    assert wire.tokenize_body(2, 32768) == b'{"count":2,"max_model_len":32768,"tokens":[0,1],"token_strs":null}'
    assert wire.detail_body("Not Found") == b'{"detail":"Not Found"}'
    assert wire.UNAUTHORIZED == b'{"error":"Unauthorized"}'
