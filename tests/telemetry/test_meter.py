"""Figures from bytes and their arrivals: what counts as a token, when, and what is unknown."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.events import Usage, WorkerTimes
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


# Usage


@pytest.mark.parametrize(
    ("completion", "tpot"), [(5, 0.5), (2, 2.0), (1, None), (0, None), (None, None), (-1, None), ("5", None), (5.5, None)]
)
def test_tpot_needs_two_counted_tokens(completion, tpot):
    """(last - first) / (tokens - 1), with tokens from usage; unknown below two, or where usage is wrong or absent."""
    found = each_second(text(), text(), text(), usage(completion), DONE)

    assert found.tpot_seconds() == tpot
    assert found.faults == (completion in (-1, "5", 5.5))


@pytest.mark.parametrize("pieces", [[], [text()], [text(), text()], [usage(0)], [text(), text(), usage(2)]])
def test_few_tokens_in_one_read_give_no_odd_figures(pieces):
    """With no time between tokens figures are 0 or unknown, never NaN or infinite."""
    found = measure((1.0, b"".join(pieces)))

    assert found.tpot_seconds() in {None, 0.0}
    assert found.stall_ratio in {None, 1.0}
    assert found.gap_sum_seconds == 0.0


def test_the_last_usage_wins():
    """Continuous figures are followed, never added up nor lowered, and the final event overrides them."""

    def counted(tokens: int) -> bytes:
        return text(usage={"prompt_tokens": 3, "completion_tokens": tokens})

    pieces = [counted(1), counted(2), counted(0), counted(2), counted(5)]

    assert each_second(*pieces).usage == Usage(3, 5)
    assert each_second(*pieces, usage(6), DONE).usage == Usage(3, 6)


def test_usage_beside_several_choices_is_that_of_all():
    """An event with several choices counts the whole answer: nothing is added up, and the largest figure stays."""

    def both(tokens: int) -> bytes:
        choices = [{"index": index, "delta": {"content": "a"}} for index in (0, 1)]
        return usage(tokens, choices=choices)

    alone = event({"content": "a"}, index=1, usage={"prompt_tokens": 3, "completion_tokens": 1})
    found = each_second(alone, both(2), both(6), both(4), choices=2)

    assert found.usage == Usage(3, 6)


def test_usage_of_choices_is_summed_while_the_end_has_not_come():
    """Continuous figures are per choice; without the final event their sum is what is known."""
    pieces = [
        event({"content": "a"}, index=index, usage={"prompt_tokens": 3, "completion_tokens": tokens})
        for index, tokens in ((0, 1), (1, 1), (0, 2), (1, 4))
    ]
    found = each_second(*pieces, choices=2)

    assert found.usage is not None
    assert found.usage.completion_tokens == 6


@pytest.mark.parametrize("value", ['"s"', "[1]", "7", "true", '{"completion_tokens":"5"}', '{"completion_tokens":1e30}'])
def test_bad_usage_does_not_stop_the_stream(value):
    """It is counted and ignored: tokens before and behind it count."""
    bad = b'data: {"choices":[],"usage":' + value.encode() + b"}\n\n"

    found = each_second(text(), bad, text(), STOP, DONE)

    assert (found.faults, found.token_events, found.is_complete) == (1, 2, True)
    assert found.usage is None or found.usage.completion_tokens is None


# Gaps


def test_gaps_are_counted_in_their_buckets():
    """Each gap between token events lands in its bucket (bounds are inclusive); what is no token makes none."""
    found = measure(
        (0.0, ROLE), (1.0, text()), (1.015, b": ping\n\n"), (1.5, text()), (3.5, text()), (9.0, text()), (9.5, STOP)
    )

    assert found.gap_counts == [0, 0, 0, 0, 0, 0, 1, 0, 1, 1]
    assert found.gap_sum_seconds == 8.0
    assert not found.gaps_are_per_token


@pytest.mark.parametrize(("completion", "per_token"), [(4, True), (5, True), (6, False), (3, False), (None, False)])
def test_when_gaps_stand_for_single_tokens(completion, per_token):
    """As many tokens as events, or one more for the end of text: else a gap may stand for several tokens."""
    assert each_second(*[text()] * 4, STOP, usage(completion), DONE).gaps_are_per_token is per_token


@pytest.mark.parametrize(("final", "per_token"), [(4, True), (9, False)])
def test_usage_in_some_events_tells_nothing_of_the_others(final, per_token):
    """Where not each token event has its count, gaps are those of single tokens only if the total says so."""
    counted = text(usage={"prompt_tokens": 3, "completion_tokens": 1})

    assert each_second(counted, *[text()] * 3, STOP, usage(final), DONE).gaps_are_per_token is per_token
    assert each_second(*[text()] * 3, text(finish="stop", usage={"completion_tokens": final})).gaps_are_per_token is per_token


def test_several_tokens_in_one_event_share_their_gap():
    """With continuous usage a gap is divided by the tokens it brought, also those of an event without text."""

    def counted(tokens: int, content: str = "a") -> bytes:
        return text(content, usage={"prompt_tokens": 3, "completion_tokens": tokens})

    found = measure((0.0, counted(2)), (0.4, counted(6)), (0.5, counted(7)), (0.6, counted(8, "")), (0.7, counted(9)))

    assert found.gap_counts == [0, 0, 0, 0, 0, 3, 0, 0, 0, 0]
    assert found.gap_sum_seconds == pytest.approx(0.1 + 0.1 + 0.1)
    assert found.gaps_are_per_token
    assert found.token_events == 4


def test_steady_bursts_are_no_stall():
    """Four tokens every 50 ms is an even pace; a pause of a second among them is one."""

    def burst(number: int) -> bytes:
        return text(usage={"prompt_tokens": 3, "completion_tokens": 4 * number})

    steady = measure(*((0.05 * number, burst(number)) for number in range(1, 20)))
    stalled = measure(*((0.05 * number + (number > 9), burst(number)) for number in range(1, 20)))

    assert steady.stall_ratio == pytest.approx(1.0, abs=0.3)
    assert stalled.stall_ratio == pytest.approx(21, rel=0.3)


def test_a_gap_above_all_bounds():
    """The stall ratio is finite when the median lies in the last bucket, too."""
    found = measure((0.0, text()), (100.0, text()), (200.0, text()))

    assert found.gap_counts == [0] * 9 + [2]
    assert found.stall_ratio == pytest.approx(100 / 51)


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


# The worker's own clocks


@pytest.mark.parametrize(
    ("text_of", "times", "faults"),
    [
        ("null", None, 0),
        ("{}", WorkerTimes(), 0),
        ('{"time_to_first_token_ms":250,"queue_time_ms":0,"generation_time_ms":1500.5}', WorkerTimes(0.25, 0.0, 1.5005), 0),
        ('{"mean_itl_ms":20}', WorkerTimes(itl_seconds=0.02), 0),
        ('{"mean_itl_ms":null,"queue_time_ms":-1}', WorkerTimes(), 1),
        ('{"mean_itl_ms":"x","queue_time_ms":1e30}', WorkerTimes(), 2),
        ('{"mean_itl_ms":true}', WorkerTimes(), 1),
        ('{"mean_itl_ms":NaN}', WorkerTimes(), 1),
        ("7", None, 1),
        ("[]", None, 1),
    ],
)
def test_the_workers_times(text_of, times, faults):
    """They are read from the last event in seconds; absent and wrong figures are unknown, and nothing of ours changes."""
    plain = usage(5)
    with_times = plain[:-3] + b',"metrics":' + text_of.encode() + b"}\n\n"

    found, without = (each_second(text(), text(), STOP, last, DONE) for last in (with_times, plain))

    assert (found.times, found.faults) == (times, faults)
    assert (found.tpot_seconds(), found.first_token_at) == (without.tpot_seconds(), without.first_token_at)


@pytest.mark.parametrize(
    ("name", "has_times"),
    [
        ("chat_stream_include_usage", True),
        ("chat_stream_n2", False),
        ("chat_stream", False),
        ("load64_chat_stream_continuous", False),
    ],
)
def test_the_times_of_captured_streams(name, has_times):
    """One choice and asked usage give them, where the worker was told to measure."""
    assert (measure((1.0, STREAMS[name]), choices=choices_of(name)).times is not None) == has_times
