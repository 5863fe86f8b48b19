"""What a meter reads from bytes and their arrivals: what counts as a token, when, and how a stream ends."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.events import Usage
from telemetry.meter import StreamMeter
from telemetry.sse import MAX_EVENT_BYTES
from tests.plain_reading import token_offsets
from tests.telemetry.streams import (
    BOUNDS,
    DONE,
    ROLE,
    STOP,
    STREAMS,
    ParsingMeter,
    choices_of,
    cut,
    dialect_of,
    each_second,
    event,
    measure,
    same,
    text,
    usage,
)

BOUNDED = settings(deadline=None, max_examples=200)

# Cuts


@pytest.mark.parametrize("name", STREAMS)
def test_the_first_token_is_where_its_event_ends(name):
    """Byte by byte, with the offset as the clock: each instant is that of the last byte of the event that it names."""
    payload, choices, dialect = STREAMS[name], choices_of(name), dialect_of(name)
    whole = measure((0.0, payload), choices=choices, dialect=dialect)
    ends = [at + 2 for at in range(len(payload)) if payload[at : at + 2] == b"\n\n"]

    meter = StreamMeter(choices, BOUNDS, dialect)
    meter.feed([float(at + 1) for at in range(len(payload))], [payload[at : at + 1] for at in range(len(payload))])
    found = meter.finish(0.0)
    by_event = measure(
        *((float(high), payload[low:high]) for low, high in pairwise([0, *ends])), choices=choices, dialect=dialect
    )

    assert found == by_event
    offsets = token_offsets(payload)
    assert found.first_token_at == (float(offsets[0]) if offsets else None)
    assert found.token_events == len(offsets)
    counted = ("usage", "finish_reasons", "token_events", "is_complete", "is_error", "missing_end", "faults")
    assert [getattr(found, field) for field in counted] == [getattr(whole, field) for field in counted]


@BOUNDED
@given(name=st.sampled_from(sorted(STREAMS)), cuts=st.sets(st.integers(0, 60_000), max_size=40), batch=st.integers(1, 9))
def test_cuts_and_batches_change_nothing(name, cuts, batch):
    """Cutting a stream into pieces that arrive at the same instant, fed in any batches, changes no measurement."""
    payload, choices, dialect = STREAMS[name], choices_of(name), dialect_of(name)
    pieces = cut(payload, cuts)
    meter = StreamMeter(choices, BOUNDS, dialect)
    for at in range(0, len(pieces), batch):
        some = pieces[at : at + batch]
        meter.feed([1.0] * len(some), some)

    assert meter.finish(2.0) == measure((1.0, payload), choices=choices, dialect=dialect)


@pytest.mark.parametrize(
    ("name", "events", "usage_counts", "reasons"),
    [
        ("chat_stream_include_usage", None, True, ("length",)),
        ("chat_stream_eos", 4, None, ("stop",)),
        ("chat_stream_max1", 1, None, ("length",)),
        ("chat_stream_n2", None, True, ("length", "length")),
        ("tool_auto_stream", 6, None, ("tool_calls",)),
        ("aborted_by_admin_chat_stream", None, None, ("abort",)),
        ("chat_stream", None, None, ("length",)),
    ],
)
def test_captured_streams_say_what_is_known_of_them(name, events, usage_counts, reasons):
    """Token events, usage and finish reasons are those told of the captures."""
    found = measure((1.0, STREAMS[name]), choices=choices_of(name))

    assert found.finish_reasons == reasons
    assert found.is_complete
    assert found.missing_end is None
    assert found.faults == 0
    if events is not None:
        assert found.token_events == events
    if usage_counts:
        assert found.usage is not None


@pytest.mark.parametrize("name", STREAMS)
def test_no_captured_stream_has_faults_or_odd_figures(name):
    """Real streams are read without a fault, with or without recognising ordinary events, and every figure is finite."""
    payload, choices, dialect = STREAMS[name], choices_of(name), dialect_of(name)
    ends = [at + 2 for at in range(len(payload)) if payload[at : at + 2] == b"\n\n"]
    timed = [(0.01 * number, payload[low:high]) for number, (low, high) in enumerate(pairwise([0, *ends]))]

    found = measure(*timed, choices=choices, dialect=dialect)

    assert found.faults == 0
    assert all(isfinite(figure) for figure in (found.gap_sum_seconds, found.stall_ratio or 0, found.tpot_seconds() or 0))
    assert same(found, measure(*timed, choices=choices, meter=ParsingMeter(choices, BOUNDS, dialect)))


# What a token is


@pytest.mark.parametrize(
    "first",
    [
        [ROLE],
        [event({"role": "assistant", "content": None})],
        [ROLE, ROLE],
        [event({"role": "assistant"})],
        [event({})],
        [event(None)],
        [event({"content": ""})],
        [event({"tool_calls": []})],
        [event({"tool_calls": None, "content": None})],
        [b": keep-alive\n\n"],
        [b": keep-alive\n\n", ROLE],
        [b'data: {"choices":[]}\n\n'],
        [b'data: {"choices":null}\n\n'],
        [b"data: {}\n\n"],
        [b'data: {"choices":[null]}\n\n'],
        [b'data: {"choices":[{"index":0}]}\n\n'],
        [b"event: ping\n\n"],
        [b"retry: 5\n\n"],
        [usage(0)],
        [b'data: {"choices":[{"index":0,"text":""}]}\n\n'],
    ],
)
def test_what_is_no_token(first):
    """Role-only and empty deltas, comments, usage and odd choices do not stop the clock; the first text does."""
    found = each_second(*first, text(), text(), STOP, DONE)

    assert found.first_token_at == found.first_visible_at == float(len(first))
    assert found.token_events == 2


@pytest.mark.parametrize(
    ("delta", "is_visible"),
    [
        ({"content": "a"}, True),
        ({"refusal": "a"}, True),
        ({"content": None, "reasoning": "a"}, False),
        ({"reasoning_content": "a"}, False),
        ({"reasoning": "a", "reasoning_content": "a"}, False),
        ({"content": "", "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, False),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, False),
    ],
)
def test_every_kind_of_token(delta, is_visible):
    """Text, reasoning under either name (or both: one event) and tool calls are tokens; only text is visible."""
    found = each_second(ROLE, event(delta), event(delta), STOP, DONE)

    assert (found.first_token_at, found.token_events) == (1.0, 2)
    assert found.first_visible_at == (1.0 if is_visible else None)


def test_completions_have_no_role_chunk():
    """Text stands in the choice itself."""
    piece = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'

    found = each_second(piece, piece, DONE)

    assert (found.first_token_at, found.first_visible_at, found.token_events) == (0.0, 0.0, 2)


@pytest.mark.parametrize("name", ["chat_stream_echo", "completion_stream_echo"])
def test_captured_echoes(name):
    """A chat sends the echo as an event of its own, a completion puts the first token behind it."""
    is_chat = name.startswith("chat")
    payload = STREAMS[name]
    meter = StreamMeter(1, BOUNDS, echoes=is_chat)
    ends = [at + 2 for at in range(len(payload)) if payload[at : at + 2] == b"\n\n"]

    found = measure(*((float(at), payload[low:high]) for at, (low, high) in enumerate(pairwise([0, *ends]))), meter=meter)

    assert (found.first_token_at, found.token_events) == ((2.0, 4) if is_chat else (0.0, 2))


def test_an_echo_is_no_token_of_any_choice():
    """The first text of each choice is the prompt's; a finish reason beside it counts."""
    meter = StreamMeter(2, BOUNDS, echoes=True)
    other = event({"content": "p"}, index=1, finish="length")

    found = measure((1.0, ROLE), (2.0, text("p")), (3.0, other), (4.0, text()), (5.0, STOP), (6.0, DONE), meter=meter)

    assert (found.first_token_at, found.first_visible_at, found.token_events) == (4.0, 4.0, 1)
    assert found.finish_reasons == ("stop", "length")


# How a stream ends


@pytest.mark.parametrize(
    ("pieces", "is_complete", "missing_end"),
    [
        ([text(), STOP, DONE], True, None),
        ([text(finish="length"), DONE], True, None),
        ([text(), STOP, b"data: [DONE] \n\n"], True, None),
        ([text(), STOP, b"data:[DONE]\n\n"], True, None),
        ([text(), STOP, b"data: [DONE]"], True, None),
        ([text(), STOP, b"data: [DONE]\n"], True, None),
        ([text(), STOP, b"data: [DONE]\r\n\r\n"], True, None),
        ([text(), STOP], True, "done"),
        ([text(), DONE], True, "finish_reason"),
        ([text()], False, None),
        ([text(), b"data: [DO"], False, None),
        ([], False, None),
    ],
)
def test_end_markers(pieces, is_complete, missing_end):
    """A finish reason or [DONE], in any spelling, completes a stream; the one that did not come is named."""
    found = each_second(*pieces)

    assert (found.is_complete, found.missing_end) == (is_complete, missing_end)
    assert found.faults == (b"data: [DO" in pieces)


def test_every_choice_has_to_finish():
    """With n=2 one finish reason is not the end; reasons are in the order of the choices; there are no gaps."""
    half = [ROLE, event({"content": "a"}, index=1), text(), event({}, index=1, finish="length")]

    assert not each_second(*half, choices=2).is_complete
    found = each_second(*half, STOP, usage(8), DONE, choices=2)

    assert found.is_complete
    assert found.finish_reasons == ("stop", "length")
    assert (found.first_token_at, found.gap_counts, found.stall_ratio) == (1.0, None, None)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_generation_that_the_worker_ended(reason):
    """Finish reasons abort and error say that the worker gave up."""
    assert each_second(text(), event({}, finish=reason), DONE).is_aborted
    assert not each_second(text(), STOP, DONE).is_aborted


@pytest.mark.parametrize(
    "error", [b'{"error":{"message":"m","code":500}}', b'{"error":"m","choices":[]}', b'{"object":"error"}']
)
def test_error_events(error):
    """An error event is seen before and after tokens, whatever follows it."""
    assert each_second(b"data: " + error + b"\n\n", DONE).is_error
    found = each_second(text(), text(), text(), b"data: " + error + b"\n\n", text(), DONE)
    assert found.is_error
    assert found.token_events == 4


@pytest.mark.parametrize("error", [{"message": "m"}, "m"])
def test_text_beside_an_error_is_no_token(error):
    """What an error event says in the place of text was not generated."""
    found = each_second(text(), text("Internal server error", error=error, finish="error"), DONE)

    assert (found.is_error, found.token_events, found.last_token_at) == (True, 1, 0.0)


def test_usage_beside_an_error_is_nobodys():
    """What an error event says was used is not taken, and what came before it stays."""
    usage = b'"usage":{"prompt_tokens":7,"completion_tokens":9}'
    error = b'data: {"error":{"message":"m"},' + usage + b"}\n\n"

    assert each_second(text(), error, DONE).usage is None
    assert each_second(text(), b'data: {"choices":[],' + usage + b"}\n\n", error, DONE).usage == Usage(7, 9)


def test_a_null_error_is_none():
    """Some servers write "error":null beside every delta."""
    found = each_second(*[text(error=None)] * 5, STOP, DONE)

    assert not found.is_error
    assert found.token_events == 5


def test_the_last_token_may_be_the_end():
    """On EOS the finish reason comes with an empty delta: the token that ended it arrived then."""
    found = each_second(ROLE, text(), text(), STOP, usage(3), DONE)

    assert (found.first_token_at, found.last_token_at) == (1.0, 3.0)
    assert found.tpot_seconds() == 1.0


# Silence


def test_comments_are_no_events():
    """A keep-alive comment does not move the instant by which a worker's silence is judged, in any spelling."""
    meter = StreamMeter(1, BOUNDS)
    meter.feed([1.0, 2.0], [ROLE, text()])
    assert (meter.events, meter.last_event_at) == (2, 2.0)

    for at, comment in enumerate([b": keep-alive\n\n", b":\n\n", b": a\r\n\r\n", b"\n", b": b\n\n: c\n\n"], start=3):
        meter.feed([float(at)], [comment])
    assert (meter.events, meter.last_event_at) == (2, 2.0)

    meter.feed([20.0], [DONE])
    assert (meter.events, meter.last_event_at) == (3, 20.0)


# Size


def test_an_event_of_two_mebibytes_in_one_line():
    """It is read, in one piece or many, and the stream goes on."""
    large = event({"tool_calls": [{"index": 0, "function": {"arguments": "x" * 2 * 1024 * 1024}}]})
    for pieces in ([large], cut(large, range(0, len(large), 65_536))):
        found = measure(*((1.0, piece) for piece in [text(), *pieces, text(), STOP, DONE]))
        assert (found.token_events, found.faults, found.is_complete) == (3, 0, True)


def test_an_event_over_the_cap():
    """It is passed over and counted once; everything behind it is read, also what shares its last piece."""
    large = text("x" * (MAX_EVENT_BYTES + 70_000))
    pieces = cut(large, range(0, len(large) - 10, 65_536))
    pieces[-1] += text() + text()[:20]

    found = measure(*((1.0, piece) for piece in [text(), *pieces, text()[20:], STOP, DONE]))

    assert (found.token_events, found.faults, found.is_complete) == (3, 1, True)
