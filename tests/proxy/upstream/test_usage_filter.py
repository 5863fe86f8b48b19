"""The usage event that nobody but the gateway asked for is taken out, and not a byte more."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.upstream.usage_filter import MAX_HELD_BYTES, UsageFilter
from tests import captures

TEXT = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
USAGE = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\n'
CONTINUOUS = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"


def strip(*pieces: bytes) -> bytes:
    events = UsageFilter()
    return b"".join([events.feed(piece) for piece in pieces]) + events.finish()


def every_cut(stream: bytes) -> list[list[bytes]]:
    """The stream whole, in two at every offset, and byte by byte."""
    ways = [[stream[:at], stream[at:]] for at in range(len(stream) + 1)]
    return [*ways, [stream[at : at + 1] for at in range(len(stream))]]


ENDS = pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])


@ENDS
@pytest.mark.parametrize("end_mark", [b"", DONE], ids=["bare", "done"])
def test_the_usage_event_is_taken_out_wherever_it_is_cut(end, end_mark):
    """What remains is the stream without the event, for each line end and each cut."""
    stream = (TEXT + USAGE + end_mark).replace(b"\n", end)

    for pieces in every_cut(stream):
        assert strip(*pieces) == (TEXT + end_mark).replace(b"\n", end)


def test_the_event_between_two_others_in_one_piece():
    """Events around it in the same piece stay."""
    assert strip(TEXT + TEXT + USAGE + TEXT + DONE) == TEXT + TEXT + TEXT + DONE


@pytest.mark.parametrize("ending", [b"", b"\n"], ids=["none", "one line end"])
def test_a_last_event_without_its_blank_line(ending):
    """A stream that just stops behind the usage event loses it all the same."""
    for pieces in every_cut(TEXT + USAGE.rstrip(b"\n") + ending):
        assert strip(*pieces) == TEXT


@pytest.mark.parametrize(
    "event",
    [
        rb'data: {"choices":[{"index":0,"delta":{"content":"\"usage\":{\"prompt_tokens\":1}"}}]}' + b"\n\n",
        b'data: {"choices":[{"index":0,"delta":{"content":"usage"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}\n\n',
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[]}\n\n',
        b'data: {"choices":[],"prompt_filter_results":["usage"]}\n\n',
        b'data: {"usage":{"prompt_tokens":1}}\n\n',  # no choices at all: not the answer to our question
        b'data: {"choices":[],"usage":"none","error":{}}\n\n',
        b'data: {"choices":{},"usage":"none"}\n\n',
        b'data: {"choices":[null],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n',
        b'data: {"choices":[0],"usage":{"prompt_tokens":NaN}}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":"none"}\n\n',
        b'data: {"choices":[],"usage":"none"\n\n',
        b': "usage":{}\n\n',
        b'event: x\nid: "usage"\n\n',
        b'data: "usage"\n\n',
    ],
)
def test_events_that_only_look_like_it_stay(event):
    """Usage in text, null or unreadable usage, an event without choices and other fields are the client's."""
    for pieces in every_cut(event + DONE):
        assert strip(*pieces) == event + DONE


@pytest.mark.parametrize("usage", [b'"x"', b"[1]", b"7", b'{"prompt_tokens":1e999}', b"1e999", b"{}", b"NaN"])
def test_a_usage_without_sense_is_taken_out_too(usage):
    """Nobody but who asks for it gets an event with no choices and a usage, whatever is in it."""
    event = b'data: {"choices":[],"usage":%b}\n\n' % usage
    for pieces in every_cut(TEXT + event + DONE):
        assert strip(*pieces) == TEXT + DONE


def test_null_usage_in_every_event_does_not_keep_the_last():
    """Events with "usage":null are no sign that the worker sends usage to everybody."""
    null = TEXT.replace(b"]}", b'],"usage":null}', 1).replace(b"]}\n", b"]}\n")

    assert strip(null, null, USAGE, DONE) == null + null + DONE


def test_forced_usage_belongs_to_the_stream():
    """A worker that puts usage beside choices would have sent the last one anyway."""
    for pieces in every_cut(CONTINUOUS + USAGE + DONE):
        assert strip(*pieces) == CONTINUOUS + USAGE + DONE


def test_usage_over_several_data_lines():
    """An event whose JSON is spread over data lines is recognised, too."""
    event = b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":3}}\n\n'

    for pieces in every_cut(TEXT + event + DONE):
        assert strip(*pieces) == TEXT + DONE


def test_a_long_unfinished_event_is_given_back():
    """No more than the limit is held; the long event goes through whole, and the one behind it is still found."""
    long = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 9216 + b'"}}]}\n\n'
    events = UsageFilter()

    assert events.feed(long[:9000]) == long[:9000]
    assert MAX_HELD_BYTES < 9000
    assert not events.is_between_events
    assert not events.gives_whole_events
    assert events.feed(long[9000:]) == long[9000:]
    assert events.is_between_events
    assert events.feed(USAGE + DONE) == DONE


@ENDS
def test_cuts_at_the_end_of_a_long_event(end):
    """The blank line of an event that was given back early is seen wherever it is cut, so usage behind it is found."""
    long = (b'data: {"choices":[{"delta":{"content":"' + b"x" * MAX_HELD_BYTES + b'"}}]}\n\n').replace(b"\n", end)
    usage = USAGE.replace(b"\n", end)
    for at in range(len(long) - 6, len(long) + 6):
        whole = long + usage + DONE
        assert strip(whole[: MAX_HELD_BYTES + 10], whole[MAX_HELD_BYTES + 10 : at], whole[at:]) == long + DONE


def test_usage_at_the_end_of_a_long_event_stays():
    """The rest of an event that has begun to go out is never taken out."""
    long = b'data: {"x":"' + b"x" * 9000 + b'","choices":[],"usage":{"prompt_tokens":3}}\n\n'

    assert strip(long[:9000], long[9000:], DONE) == long + DONE


def test_only_an_unfinished_event_is_held():
    """Whole events go on at once; of the rest nothing goes until its blank line is there."""
    events = UsageFilter()

    assert events.feed(TEXT + TEXT[:-1]) == TEXT
    assert events.gives_whole_events
    assert repr(events) == f"<UsageFilter {len(TEXT) - 1} bytes held>"
    assert events.feed(b"\n") == TEXT
    assert events.finish() == b""


STREAMS = [name for name in captures.names() if captures.load(name).payload.startswith((b"data: ", b": "))]


@settings(deadline=None, max_examples=150)
@given(name=st.sampled_from(STREAMS), cuts=st.sets(st.integers(0, 60_000), max_size=30))
def test_captured_streams(name, cuts):
    """However a real stream is cut, all events but an asked usage event come out, byte for byte."""
    payload = captures.load(name).payload
    at = sorted({0, len(payload), *(cut for cut in cuts if cut < len(payload))})

    assert strip(*(payload[low:high] for low, high in pairwise(at))) == strip(payload)


@pytest.mark.parametrize("name", STREAMS)
def test_what_is_taken_from_captured_streams(name):
    """Exactly the one event with empty choices and usage goes, unless usage also stands beside choices.

    The fingerprint that stands on the last event of a stream goes to the event that is the last one then.
    """
    payload = captures.load(name).payload
    events = [event + b"\n\n" for event in payload.split(b"\n\n")[:-1]]
    rest = payload.split(b"\n\n")[-1]
    asked = [event for event in events if b'"choices":[],"usage":{' in event]
    beside = [event for event in events if b'"usage":{' in event and event not in asked]

    expected = events if beside else [event for event in events if event not in asked]
    if asked and not beside and (fingerprint := re.search(rb',"system_fingerprint":"[^"]*"', asked[0])):
        last = events[events.index(asked[0]) - 1]
        expected[expected.index(last)] = last.removesuffix(b"}\n\n") + fingerprint[0] + b"}\n\n"

    assert strip(payload) == b"".join(expected) + rest


@pytest.mark.parametrize(
    ("asked", "not_asked"),
    [
        ("chat_stream_include_usage", "chat_stream"),
        ("completion_stream_include_usage", "completion_stream"),
    ],
)
def test_what_remains_is_what_a_direct_client_gets(asked, not_asked):
    """A stream asked for usage and stripped equals the stream of the same request without the question, but for its id."""
    stripped = strip(captures.load(asked).payload)
    direct = captures.load(not_asked).payload

    own = re.compile(rb'"id":"[^"]*"|"created":\d+')
    assert own.sub(b"", stripped) == own.sub(b"", direct)


def finish(index: int, more: str = "") -> bytes:
    return b'data: {"choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]%b}\n\n' % (index, more.encode())


def test_each_choice_gets_a_known_fingerprint_back():
    """A worker has it on each finishing event when it is not asked for usage, so what it was is kept for the next stream."""
    usage = b'data: {"choices":[],"usage":{"completion_tokens":2},"system_fingerprint":"f-1"}\n\n'
    field = ',"system_fingerprint":"f-1"'
    first, later = UsageFilter(2), UsageFilter(2, "f-1")

    outs = [each.feed(finish(0) + finish(1)) + each.feed(usage + DONE) + each.finish() for each in (first, later)]

    assert outs[0] == finish(0) + finish(1, field) + DONE
    assert outs[1] == finish(0, field) + finish(1, field) + DONE
    assert first.fingerprint == "f-1"


def test_a_fingerprint_is_not_put_where_one_is():
    """Nor into a stream whose events have usage anyway."""
    own = finish(0, ',"system_fingerprint":"own"')
    forced = finish(0, ',"usage":{"completion_tokens":1}')

    for event in (own, forced):
        assert UsageFilter(2, "f-1").feed(event) == event


def test_only_the_event_that_finishes_the_last_choice_waits():
    """Every other event goes on as soon as it is whole; the one that waits can be released when its successor is late."""
    finish = [
        TEXT.replace(b'"index":0', b'"index":%d' % index).replace(b"}}]}", b'},"finish_reason":"stop"}]}') for index in (0, 1)
    ]
    events = UsageFilter(choices=2)

    assert events.feed(TEXT) == TEXT
    assert events.feed(finish[0]) == finish[0]
    assert events.feed(TEXT) == TEXT
    assert events.feed(finish[1]) == b""
    assert not events.is_between_events
    assert events.release() == finish[1]
    assert events.feed(USAGE + DONE) == DONE
    assert events.finish() == b""


def test_an_event_is_late_only_when_it_waited_at_the_look_before():
    """A look that falls between the finishing event and its successor does not part them."""
    finish = TEXT.replace(b"}}]}", b'},"finish_reason":"stop"}]}')
    events = UsageFilter()
    events.feed(finish)

    assert events.release_late() == b""
    assert events.release_late() == finish
    assert events.release_late() == b""

    other = UsageFilter()
    other.feed(finish)
    assert other.release_late(is_last=True) == finish
