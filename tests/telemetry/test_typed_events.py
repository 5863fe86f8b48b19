"""Events of ``/v1/responses`` and ``/v1/messages``: what is a token, what was used, and what becomes of wrong fields."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.dialects import MESSAGES, RESPONSES
from telemetry.events import Usage, WorkerTimes
from telemetry.measurements import Measurements
from telemetry.meter import StreamMeter
from telemetry.plain_meter import PlainMeter, read_plain
from telemetry.typed_events import TypedEvent, read_messages_event, read_responses_event
from tests import captures
from tests.telemetry.streams import BOUNDS, ParsingMeter, each_second, measure, same, typed


def content(kind: str, **delta: object) -> bytes:
    return typed("content_block_delta", delta={"type": kind, **delta}, index=0)


def message_usage(**counts: object) -> bytes:
    return typed("message_delta", delta={"stop_reason": "end_turn"}, usage=counts)


START = typed("message_start", message={"type": "message", "usage": {"input_tokens": 9, "output_tokens": 0}})
TEXT = content("text_delta", text="a")
STOP = typed("message_stop")
CREATED = typed("response.created", response={"id": "resp_1", "status": "in_progress", "usage": None, "output": []})


def response_end(status: str = "completed", kind: str = "response.completed", **fields: object) -> bytes:
    return typed(kind, response={"id": "resp_1", "status": status, "output": [{"type": "message"}], **fields})


def output(text: str = "a") -> bytes:
    return typed("response.output_text.delta", delta=text, sequence_number=4)


# Captures


@pytest.mark.parametrize(
    ("name", "usage", "reasons", "tokens"),
    [
        ("messages_stream", Usage(18, 6, 0, has_details=True), ("max_tokens",), 6),
        ("messages_eos_stream", Usage(25, 9), ("end_turn",), 8),
        ("messages_thinking_stream", Usage(25, 11), ("end_turn",), 8),
        ("messages_tool_stream", Usage(200, 12), ("tool_use",), 6),
        ("messages_stream_prefix_cold", Usage(315, 3, 0, has_details=True), ("max_tokens",), 3),
        ("messages_stream_prefix_warm", Usage(315, 3, 256, has_details=True), ("max_tokens",), 3),
        ("spec_messages_stream", Usage(22, 9, 0, has_details=True), ("end_turn",), 3),
    ],
)
def test_captured_message_streams(name, usage, reasons, tokens):
    """Tokens, reasons and the whole prompt, whether cold, warm or without figures of the cache."""
    found = measure((1.0, captures.load(name).payload), dialect=MESSAGES)

    assert (found.usage, found.finish_reasons, found.token_events) == (usage, reasons, tokens)
    assert (found.is_complete, found.missing_end, found.is_error, found.faults) == (True, None, False, 0)


@pytest.mark.parametrize(
    ("name", "usage", "reasons", "tokens"),
    [
        ("responses_stream", Usage(18, 6, 0, 0, has_details=True), ("max_output_tokens",), 3),
        ("responses_reasoning_stream", Usage(25, 11, 0, 4, has_details=True), ("completed",), 8),
        ("responses_tool_stream", Usage(200, 12, 128, 0, has_details=True), ("completed",), 2),
        ("spec_responses_stream", Usage(22, 9, 0, 0, has_details=True), ("completed",), 2),
    ],
)
def test_captured_response_streams(name, usage, reasons, tokens):
    """Tokens, reasons and usage, which is not subtracted here; the id by which the response can be asked for."""
    found = measure((1.0, captures.load(name).payload), dialect=RESPONSES)

    assert (found.usage, found.finish_reasons, found.token_events) == (usage, reasons, tokens)
    assert (found.is_complete, found.missing_end, found.is_error, found.faults) == (True, None, False, 0)
    assert found.answer_id is not None
    assert found.answer_id.startswith("resp_")


@pytest.mark.parametrize(
    ("name", "dialect", "usage", "reasons"),
    [
        ("messages_nonstream", MESSAGES, Usage(18, 6, 0, has_details=True), ("max_tokens",)),
        ("messages_prefix_warm", MESSAGES, Usage(315, 3, 256, has_details=True), ("max_tokens",)),
        ("messages_prefix_cold", MESSAGES, Usage(315, 3, 0, has_details=True), ("max_tokens",)),
        ("messages_tool_nonstream", MESSAGES, Usage(200, 12), ("tool_use",)),
        ("messages_thinking_nonstream", MESSAGES, Usage(25, 11), ("end_turn",)),
        ("responses_nonstream", RESPONSES, Usage(18, 6, 0, 0, has_details=True), ("max_output_tokens",)),
        ("responses_prefix_warm", RESPONSES, Usage(315, 3, 256, 0, has_details=True), ("max_output_tokens",)),
        ("responses_tool_nonstream", RESPONSES, Usage(200, 12, 0, 0, has_details=True), ("completed",)),
        ("responses_reasoning_nonstream", RESPONSES, Usage(25, 11, 0, 4, has_details=True), ("completed",)),
    ],
)
def test_captured_plain_answers(name, dialect, usage, reasons):
    """The same of plain answers, in one piece or many; they have no first token."""
    payload = captures.load(name).payload
    meter = PlainMeter(dialect)
    meter.feed([1.0] * 2, [payload[:100], payload[100:]])

    for found in (meter.finish(2.0), read_plain(payload, dialect)):
        assert (found.usage, found.finish_reasons, found.token_events) == (usage, reasons, 1)
        assert (found.first_token_at, found.is_error, found.faults) == (None, False, 0)


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("messages_error_model", MESSAGES),
        ("messages_error_type", MESSAGES),
        ("overload_503_messages", MESSAGES),
        ("responses_error_model", RESPONSES),
        ("responses_error_previous", RESPONSES),
    ],
)
def test_captured_errors(name, dialect):
    """A refusal is an error in either shape, and nothing in it is a token."""
    found = read_plain(captures.load(name).payload, dialect)

    assert (found.is_error, found.token_events, found.usage) == (True, 0, None)


# Messages


@pytest.mark.parametrize(
    "first",
    [
        [START],
        [START, typed("content_block_start", content_block={"type": "text", "text": ""}, index=0)],
        [typed("content_block_start", content_block={"type": "thinking", "thinking": ""}, index=0)],
        [typed("ping")],
        [b": comment\n\n"],
        [content("text_delta", text="")],
        [content("signature_delta", signature="x")],
        [content("input_json_delta", partial_json="")],
        [typed("content_block_delta", delta=None)],
        [typed("content_block_delta")],
        [typed("content_block_stop", index=0)],
        [typed("invented", delta={"text": "x"})],
    ],
)
def test_what_is_no_token_of_a_message(first):
    """Starts, stops, pings, signatures and empty pieces do not stop the clock; the first text does."""
    found = each_second(*first, TEXT, TEXT, message_usage(output_tokens=2), STOP, dialect=MESSAGES)

    assert found.first_token_at == found.first_visible_at == float(len(first))
    assert (found.token_events, found.faults) == (2, 0)


@pytest.mark.parametrize(
    ("piece", "is_visible"),
    [
        (content("text_delta", text="a"), True),
        (content("thinking_delta", thinking="a"), False),
        (content("input_json_delta", partial_json="{"), False),
        (typed("content_block_start", content_block={"type": "tool_use", "name": "f", "input": {}}), False),
        (typed("content_block_start", content_block={"type": "server_tool_use", "name": "f"}), False),
        (typed("content_block_start", content_block={"type": "text", "text": "a"}), True),
    ],
)
def test_every_kind_of_token_of_a_message(piece, is_visible):
    """Text, thinking, the name of a call and its arguments are tokens; only text is visible."""
    found = each_second(START, piece, piece, STOP, dialect=MESSAGES)

    assert (found.first_token_at, found.token_events) == (1.0, 2)
    assert found.first_visible_at == (1.0 if is_visible else None)


@pytest.mark.parametrize(
    ("counts", "usage", "faults"),
    [
        ({"input_tokens": 59, "cache_read_input_tokens": 256, "cache_creation_input_tokens": 0}, Usage(315, None, 256), 0),
        ({"input_tokens": 59, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 256}, Usage(315, None, 0), 0),
        ({"input_tokens": 59, "cache_read_input_tokens": None}, Usage(59), 0),
        ({"input_tokens": 59}, Usage(59), 0),
        ({"output_tokens": 4}, Usage(9, 4), 0),
        ({}, Usage(9), 0),
        ({"input_tokens": "59", "output_tokens": 4}, Usage(9, 4), 1),
        ({"input_tokens": -1}, Usage(9), 1),
        ({"input_tokens": 59, "cache_read_input_tokens": -9}, Usage(9), 2),
        ({"input_tokens": 59, "output_tokens": 5.5}, Usage(59), 1),
        ({"input_tokens": 10**30}, Usage(9), 1),
    ],
)
def test_usage_of_a_message(counts, usage, faults):
    """Cached tokens are put back into the prompt; what the end does not say, or says wrongly, is what the beginning said."""
    found = each_second(START, TEXT, message_usage(**counts), STOP, dialect=MESSAGES)

    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.cached_tokens) == (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
    )
    assert found.faults == faults


@pytest.mark.parametrize(
    ("pieces", "is_complete", "missing_end"),
    [
        ([TEXT, message_usage(output_tokens=1), STOP], True, None),
        ([TEXT, message_usage(output_tokens=1)], True, "message_stop"),
        ([TEXT, STOP], True, "finish_reason"),
        ([TEXT], False, None),
        ([], False, None),
    ],
)
def test_how_a_message_ends(pieces, is_complete, missing_end):
    """A stop reason or the last event complete a message; the one that did not come is named."""
    found = each_second(START, *pieces, dialect=MESSAGES)

    assert (found.is_complete, found.missing_end) == (is_complete, missing_end)


def test_usage_at_the_beginning_is_what_is_known_of_a_message_that_was_cut():
    """The prompt of a message is told before its text, and holds for a stream that ends too soon."""
    found = each_second(START, TEXT, dialect=MESSAGES)

    assert (found.usage, found.usage_is_final) == (Usage(9, 0), False)


@pytest.mark.parametrize("text", ['{"type":"overloaded_error","message":"m"}', '"m"', "null"])
def test_an_error_event_of_a_message(text):
    """An error of any shape is one, and its text is no token."""
    error = b'event: error\ndata: {"type":"error","error":%b}\n\n' % text.encode()

    found = each_second(START, TEXT, error, dialect=MESSAGES)

    assert (found.is_error, found.token_events) == (True, 1)


def test_ordinary_text_of_a_message_is_recognised():
    """Events that differ in nothing but their text are counted without being read as JSON, and measured the same."""
    broken = TEXT.replace(b'"a"', b'"\xff"')
    timed = [(0.1 * at, piece) for at, piece in enumerate([START, TEXT, TEXT, TEXT, TEXT, TEXT, message_usage(), STOP])]
    meter = StreamMeter(1, BOUNDS, MESSAGES)
    meter.feed([0.1 * at for at in range(8)], [START, *[TEXT] * 4, *[broken] * 3])

    assert meter.finish(9.0).faults == 0
    assert same(measure(*timed, dialect=MESSAGES), measure(*timed, meter=ParsingMeter(1, BOUNDS, MESSAGES)))


# Responses


@pytest.mark.parametrize(
    "first",
    [
        [CREATED],
        [CREATED, typed("response.in_progress", response={"id": "resp_1"})],
        [typed("response.output_item.added", item={"type": "message", "content": []})],
        [typed("response.output_item.added", item={"type": "reasoning", "summary": []})],
        [typed("response.content_part.added", part={"type": "output_text", "text": ""})],
        [output("")],
        [typed("response.output_text.delta", delta=None)],
        [typed("response.output_text.delta")],
        [typed("response.queued", response={"id": "resp_1"})],
        [b": comment\n\n"],
    ],
)
def test_what_is_no_token_of_a_response(first):
    """What a worker sends before it has generated anything does not stop the clock, however early it comes."""
    found = each_second(*first, output(), output(), response_end(), dialect=RESPONSES)

    assert found.first_token_at == found.first_visible_at == float(len(first))
    assert (found.token_events, found.faults) == (2, 0)


@pytest.mark.parametrize(
    ("piece", "is_visible"),
    [
        (output("a"), True),
        (typed("response.refusal.delta", delta="a"), True),
        (typed("response.reasoning_text.delta", delta="a"), False),
        (typed("response.reasoning_summary_text.delta", delta="a"), False),
        (typed("response.function_call_arguments.delta", delta="{"), False),
        (typed("response.custom_tool_call_input.delta", delta="{"), False),
        (typed("response.output_item.added", item={"type": "function_call", "name": "f"}), False),
    ],
)
def test_every_kind_of_token_of_a_response(piece, is_visible):
    """Text, refusals, reasoning, the name of a call and its arguments are tokens; only text is visible."""
    found = each_second(CREATED, piece, piece, response_end(), dialect=RESPONSES)

    assert (found.first_token_at, found.token_events) == (1.0, 2)
    assert found.first_visible_at == (1.0 if is_visible else None)


def test_what_repeats_the_text_is_no_token():
    """``done`` events hold the whole text again: they move neither the count nor the last token."""
    again = typed("response.output_text.done", text="aa")
    item = typed("response.output_item.done", item={"type": "message", "content": [{"text": "aa"}]})

    found = each_second(CREATED, output(), output(), again, item, dialect=RESPONSES)

    assert (found.token_events, found.last_token_at) == (2, 2.0)


@pytest.mark.parametrize(
    ("end", "reasons", "is_error", "is_aborted"),
    [
        (response_end(), ("completed",), False, False),
        (response_end("incomplete", incomplete_details={"reason": "max_output_tokens"}), ("max_output_tokens",), False, False),
        (response_end("incomplete", "response.incomplete"), ("incomplete",), False, False),
        (response_end("failed", "response.failed", error={"code": "server_error"}), ("failed",), True, False),
        (response_end("failed", "response.failed"), ("failed",), True, False),
        (response_end("cancelled"), ("cancelled",), False, True),
        (typed("response.completed", response=None), (), False, False),
        (typed("error", message="m", code="x"), (), True, False),
        (b'data: {"error":{"message":"m"}}\n\n', (), True, False),
    ],
)
def test_how_a_response_ends(end, reasons, is_error, is_aborted):
    """Completed, cut short, failed and cancelled are told apart; only an error event leaves the stream incomplete."""
    found = each_second(CREATED, output(), end, dialect=RESPONSES)

    assert (found.is_error, found.token_events) == (is_error, 1)
    assert found.finish_reasons == (() if is_error else reasons)
    assert found.is_aborted == is_aborted
    assert found.is_complete == (b"response." in end[:20])


@pytest.mark.parametrize(
    ("usage", "expected", "faults"),
    [
        ({"input_tokens": 9, "output_tokens": 5}, Usage(9, 5), 0),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}, Usage(9, None, 4, has_details=True), 0),
        ({"input_tokens": 9, "input_tokens_details": None}, Usage(9), 0),
        ({"input_tokens": 9, "input_tokens_details": 7}, Usage(9), 1),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 10}}, Usage(9, has_details=True), 1),
        ({"output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 4}}, Usage(None, 9, reasoning_tokens=4), 0),
        ({"input_tokens": "9", "output_tokens": -1}, Usage(), 2),
        (None, None, 0),
        ([1], None, 1),
    ],
)
def test_usage_of_a_response(usage, expected, faults):
    """Counts come from the last event; nothing is subtracted or added; what is wrong is unknown and counted."""
    found = each_second(CREATED, output(), response_end(usage=usage), dialect=RESPONSES)

    assert (found.usage, found.faults) == (expected, faults)


def test_the_workers_times_of_a_response():
    """They stand in the response itself."""
    found = each_second(CREATED, output(), response_end(metrics={"queue_time_ms": 250}), dialect=RESPONSES)

    assert found.times == WorkerTimes(queue_seconds=0.25)
    assert read_plain(captures.load("responses_nonstream").payload, RESPONSES).times is not None


TRICKY = st.text(st.sampled_from('ab "\\{}[]:,/\n\u00e9\u4e2d'), max_size=8) | st.sampled_from(
    ["", '"', '"delta":"', '"delta":""', '"type":"response.output_text.delta"}', '.delta"}', "\\"]
)


@settings(deadline=None, max_examples=300)
@given(
    kind=st.sampled_from(["response.output_text.delta", "response.reasoning_text.delta", "response.audio.delta", "invented"]),
    delta=TRICKY,
    other=TRICKY,
    is_last=st.booleans(),
    compact=st.booleans(),
)
def test_a_delta_that_is_not_parsed_says_the_same(kind, delta, other, is_last, compact):
    """Whatever the text is and wherever the type stands, an event has a token exactly if its delta holds something."""
    fields = {"item_id": other, "delta": delta, "logprobs": [{"token": other}]}
    fields = fields | {"type": kind} if is_last else {"type": kind} | fields
    data = json.dumps(fields, separators=(",", ":") if compact else None).encode()

    event, faults = read_responses_event(data)

    has_token = any(choice.has_token for choice in event.choices or ())
    assert (has_token, faults) == (bool(delta) and kind.endswith(".delta"), 0)


# Anything

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KINDS = ["message_start", "content_block_start", "content_block_delta", "message_delta", "message", "error"]
KINDS += [
    "response.created",
    "response.completed",
    "response.failed",
    "response.output_text.delta",
    "response.output_item.added",
]
PARTS = [
    "message",
    "delta",
    "content_block",
    "usage",
    "error",
    "content",
    "stop_reason",
    "response",
    "item",
    "output",
    "status",
]
COUNTS = ["input_tokens", "output_tokens", "cache_read_input_tokens", "input_tokens_details"]


@settings(deadline=None, max_examples=300)
@given(
    kind=st.sampled_from(KINDS) | JSON,
    parts=st.dictionaries(
        st.sampled_from(PARTS), JSON | st.dictionaries(st.sampled_from([*COUNTS, "usage", "type", "text"]), JSON), max_size=4
    ),
)
def test_no_document_raises(kind, parts):
    """Whatever types the parts have, an event comes back and its figures are in range."""
    data = json.dumps({"type": kind, **parts}).encode()
    for read in (read_messages_event, read_responses_event):
        event, faults = read(data)
        assert isinstance(event, TypedEvent)
        assert faults >= 0
        if event.usage is not None:
            usage, _ = event.usage.checked()
            assert all(figure is None or 0 <= figure <= 2**40 for figure in (usage.prompt_tokens, usage.cached_tokens))
    for dialect in (MESSAGES, RESPONSES):
        found = measure((1.0, b"data: " + data + b"\n\n"), dialect=dialect)
        assert isinstance(found, Measurements)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"\xff", b'{"type":7}', b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_object_is_an_empty_event(data):
    """Anything that cannot be read is one fault and says nothing."""
    for read in (read_messages_event, read_responses_event):
        event, faults = read(data)
        assert (faults, event.choices, event.usage, event.is_error) == (1, None, None, False)
