"""Formats, held against what real workers sent: same fields in the same order, same kinds of values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator.dialect import DIALECTS
from simulator.text import Output, ToolCall, Wish, write_output
from simulator.vocabulary import END, Part, Token, tokens_of
from simulator.wire.chat import ChatFormat
from simulator.wire.common import Choice, Delta, Format, Head, Style, Timing, Usage, likely, logprob
from simulator.wire.completion import CompletionFormat
from tests.captures import load

HEAD = Head(identifier="x", created=1, model="tiny", fingerprint="vllm-0.32.0-00000000")
USAGE = Usage(prompt_tokens=18, completion_tokens=12)
FULL = Style(has_parser=True, details=True)  # as the captured server had it
TIMING = Timing(queue_seconds=0.001, first_token_seconds=0.01, generation_seconds=0.03, tokens=4)
FORMATS = (ChatFormat, CompletionFormat)


def shape(value: Any) -> Any:
    """A JSON value with its numbers and texts left out: keys in order, types, and what is null."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def events(payload: bytes) -> list[Any]:
    """The events of a stream, an end mark as its text."""
    texts = [block.removeprefix(b"data: ") for block in payload.removesuffix(b"\n\n").split(b"\n\n")]
    return [text.decode() if text == b"[DONE]" else json.loads(text) for text in texts]


def only(data: bytes) -> Any:
    """The one event there is."""
    (value,) = events(data)
    return value


def deduplicated(found: list[Any]) -> list[Any]:
    shapes = [shape(event) for event in found]
    return [event for position, event in enumerate(shapes) if position == 0 or event != shapes[position - 1]]


def a_stream(form: Format, *, usage: bool = False, running: bool = False, ends: bool = False) -> bytes:
    """A stream of three tokens; the last is an end token if it ``ends`` by itself."""
    given = USAGE if running else None
    *first, last = tokens_of("a b c")

    def piece(token: Token, finish_reason: str | None = None) -> bytes:
        is_last = finish_reason is not None and not usage
        return form.piece(Delta(index=0, tokens=[token], finish_reason=finish_reason, usage=given, is_last=is_last))

    return b"".join(
        (
            form.opening(0, given, None),
            *(piece(token) for token in first),
            piece(END if ends else last, "stop" if ends else "length"),
            form.closing(USAGE, TIMING) if usage else b"",
            form.ending(),
        )
    )


@pytest.mark.parametrize(
    ("name", "form", "asked"),
    [
        ("chat_stream", ChatFormat, {}),
        ("chat_stream_include_usage", ChatFormat, {"usage": True}),
        ("chat_stream_continuous_usage", ChatFormat, {"usage": True, "running": True}),
        ("chat_stream_eos", ChatFormat, {"usage": True, "ends": True}),
        ("completion_stream", CompletionFormat, {}),
        ("completion_stream_include_usage", CompletionFormat, {"usage": True}),
        ("completion_stream_continuous_usage", CompletionFormat, {"usage": True, "running": True}),
    ],
)
def test_streams_look_like_captured_ones(name, form, asked):
    """Event for event, a stream has the fields of the captured one in their order, however many tokens there are."""
    assert deduplicated(events(a_stream(form(HEAD, FULL), **asked))) == deduplicated(events(load(name).payload))


@pytest.mark.parametrize(("name", "form"), [("chat_nonstream", ChatFormat), ("completion_nonstream", CompletionFormat)])
def test_plain_answers_look_like_captured_ones(name, form):
    """A plain answer has the fields of the captured one in their order."""
    output = Output(tokens=tuple(tokens_of("some text")), finish_reason="length")
    answer = form(HEAD, FULL).answer([Choice(index=0, output=output)], USAGE, TIMING)

    assert shape(json.loads(answer)) == shape(json.loads(load(name).payload))


@pytest.mark.parametrize("form", FORMATS)
def test_usage_adds_up(form):
    """The usage event tells the counts it was given and their sum."""
    usage = only(form(HEAD, Style()).closing(USAGE, None))["usage"]

    assert usage == {"prompt_tokens": 18, "total_tokens": 30, "completion_tokens": 12}


@pytest.mark.parametrize("form", FORMATS)
def test_cached_tokens_are_told_with_the_flag_only(form):
    """Without the flag there are no details in a stream, and null in a plain answer."""
    usage = Usage(prompt_tokens=18, completion_tokens=1, cached_tokens=16)
    choice = Choice(index=0, output=Output(tokens=(), finish_reason="stop"))

    def told(style: Style) -> list[Any]:
        streamed = only(form(HEAD, style).closing(usage, None))["usage"]
        plain = json.loads(form(HEAD, style).answer([choice], usage, None))["usage"]
        return [(one.get("prompt_tokens_details") or {}).get("cached_tokens") for one in (streamed, plain)]

    assert told(Style()) == [None, None]
    assert told(Style(details=True)) == [16, 16]


def test_what_the_cache_learned_is_told_as_captured():
    """A cold chat tells the created cache tokens, a warm one the cached tokens, under the captured names."""
    captured = [json.loads(load(f"chat_prefix_{name}").payload)["usage"] for name in ("cold", "warm")]
    choice = Choice(index=0, output=Output(tokens=(), finish_reason="stop"))
    ours = []
    for cached, created in ((0, 256), (256, 0)):
        usage = Usage(prompt_tokens=315, completion_tokens=2, cached_tokens=cached, created_cache_tokens=created)
        ours.append(json.loads(ChatFormat(HEAD, FULL).answer([choice], usage, None))["usage"])

    assert ours == captured


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("name", "tells"), [("0.9.2", False), ("0.11", False), ("0.22", False), ("0.32", True)])
def test_older_versions_leave_the_details_out_when_nothing_was_cached(form, name, tells):
    """That nothing was cached is told by the newest version only."""
    style = Style(dialect=DIALECTS[name], details=True)
    cold = only(form(HEAD, style).closing(USAGE, None))["usage"]
    warm = only(form(HEAD, style).closing(Usage(prompt_tokens=18, completion_tokens=1, cached_tokens=16), None))["usage"]

    assert ("prompt_tokens_details" in cold) is tells
    assert warm["prompt_tokens_details"]["cached_tokens"] == 16
    assert ("created_cache_tokens" in warm["prompt_tokens_details"]) is (tells and form is ChatFormat)


@pytest.mark.parametrize(
    ("name", "fields"),
    [("0.9.2", {"reasoning_content"}), ("0.11", {"reasoning", "reasoning_content"}), ("0.22", {"reasoning"})],
)
def test_reasoning_goes_where_the_version_has_it(name, fields):
    """The field was renamed, and for a while there were both."""
    style = Style(dialect=DIALECTS[name], has_parser=True)
    token = Token(1, "hm", "hm", Part.REASONING)
    output = Output(tokens=(token, *tokens_of("yes")), finish_reason="stop")

    delta = only(ChatFormat(HEAD, style).piece(Delta(index=0, tokens=[token])))["choices"][0]["delta"]
    message = json.loads(ChatFormat(HEAD, style).answer([Choice(index=0, output=output)], USAGE, None))["choices"][0]["message"]

    assert delta == dict.fromkeys(fields, "hm")
    assert {field for field in ("reasoning", "reasoning_content") if message.get(field) == "hm"} == fields
    assert message["content"] == "yes"


def test_an_old_version_has_few_fields():
    """Versions before token ids were told have the plain fields of the API."""
    style = Style(dialect=DIALECTS["0.9.2"])
    chat = ChatFormat(HEAD, style)
    chunk = only(chat.piece(Delta(index=0, tokens=list(tokens_of("a")), is_last=True)))
    output = Output(tokens=tuple(tokens_of("a")), finish_reason="stop")
    answer = json.loads(chat.answer([Choice(index=0, output=output)], USAGE, TIMING))
    completion = only(CompletionFormat(HEAD, style).piece(Delta(index=0, tokens=[])))

    assert list(chunk) == ["id", "object", "created", "model", "choices"]
    assert list(chunk["choices"][0]) == ["index", "delta", "logprobs", "finish_reason"]
    assert list(answer["choices"][0]["message"]) == ["role", "content", "tool_calls", "reasoning_content"]
    assert "metrics" not in answer
    assert list(completion["choices"][0]) == ["index", "text", "logprobs", "finish_reason", "stop_reason"]


def test_tokens_that_nobody_sees_make_no_event_where_there_is_a_parser():
    """With a parser an empty delta is not sent; without one it is, with empty content; token ids and logprobs force it."""
    delta = Delta(index=0, tokens=[Token(1, "<0xC3>", "")])

    assert ChatFormat(HEAD, Style(has_parser=True)).piece(delta) == b""
    assert only(ChatFormat(HEAD, Style()).piece(delta))["choices"][0]["delta"] == {"content": ""}
    assert only(ChatFormat(HEAD, Style(has_parser=True, token_ids=True)).piece(delta))["choices"][0]["delta"] == {}
    assert only(ChatFormat(HEAD, Style(has_parser=True, top_logprobs=0)).piece(delta))["choices"][0]["delta"] == {}


def test_hidden_reasoning_leaves_a_null_beside_the_content():
    """Reasoning that is not to be shown makes no event, and is null where content is."""
    form = ChatFormat(HEAD, Style(has_parser=True, shows_reasoning=False))

    assert form.piece(Delta(index=0, tokens=[Token(1, "hm", "hm", Part.REASONING)])) == b""
    delta = only(form.piece(Delta(index=0, tokens=list(tokens_of("yes")))))["choices"][0]["delta"]
    assert delta == {"content": "yes", "reasoning": None}


def test_several_tokens_in_one_event_keep_their_parts_apart():
    """An event may have the end of the reasoning and the start of the content; a call its name and arguments."""
    form = ChatFormat(HEAD, Style(has_parser=True))
    output = write_output(b"p", Wish(limit_tokens=50, thinks=True, thoughts="hm", fixed="yes"))
    tool = ToolCall(name="f", arguments="{}", finish_reason="tool_calls")
    call = write_output(b"p", Wish(limit_tokens=50, tool=tool))

    thought = only(form.piece(Delta(index=0, tokens=output.tokens)))["choices"][0]["delta"]
    called = only(form.piece(Delta(index=0, tokens=call.tokens)))["choices"][0]["delta"]

    assert thought == {"reasoning": "hm", "content": "\n\nyes"}
    assert called["content"] is None
    assert called["tool_calls"] == [
        {"id": "chatcmpl-tool-x", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}
    ]


def test_text_is_sent_as_it_is():
    """Characters beyond ASCII are not escaped."""
    event = ChatFormat(HEAD, Style()).piece(Delta(index=0, tokens=[Token(1, "水", "水")]))

    assert '"content":"水"'.encode() in event


def test_offsets_of_logprobs_go_on():
    """Each token is placed behind the text before it; the first token of an echo has no probability."""
    form = CompletionFormat(HEAD, Style(top_logprobs=1))
    tokens = list(tokens_of("one two"))
    streamed = only(form.piece(Delta(index=0, tokens=tokens, start=5)))["choices"][0]["logprobs"]
    output = Output(tokens=tuple(tokens), finish_reason="length")
    choice = Choice(index=0, output=output, echo="one two", echo_tokens=tokens, hides_output=True)
    echoed = json.loads(form.answer([choice], USAGE, None))["choices"][0]

    assert (streamed["text_offset"], streamed["tokens"]) == ([5, 8], ["one", " two"])
    assert echoed["text"] == "one two"
    assert (echoed["logprobs"]["token_logprobs"][0], echoed["logprobs"]["token_logprobs"][1]) == (None, logprob(tokens[1]))


def test_alternatives_are_less_likely():
    """The token itself is the likeliest, and as many are told as were asked for."""
    (token,) = tokens_of("one")
    pairs = likely(token, 3)

    assert pairs[0] == ("one", logprob(token))
    assert [value for _, value in pairs] == sorted((value for _, value in pairs), reverse=True)
    assert (len(pairs), likely(token, 0)) == (3, [])


def test_times_are_told_as_captured():
    """Milliseconds from scheduling on; there is no mean gap for one token."""
    one = Timing(queue_seconds=0.0, first_token_seconds=0.01, generation_seconds=0.0, tokens=1)

    assert TIMING.as_object() == {
        "time_to_first_token_ms": 10.0,
        "generation_time_ms": 30.0,
        "queue_time_ms": 1.0,
        "mean_itl_ms": 10.0,
        "tokens_per_second": pytest.approx(100.0),
    }
    assert one.as_object()["mean_itl_ms"] is None
