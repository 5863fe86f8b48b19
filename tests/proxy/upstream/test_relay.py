"""The body on its way through: the client gets the worker's payload, the meter the same figures, however reads fall."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.upstream.relay import Relay, make_meter
from proxy.upstream.usage_filter import UsageFilter
from proxy.wire.framing import AnswerHead, Framing, FramingError, parse_answer_head
from telemetry.measurements import Measurements
from telemetry.meter import StreamMeter
from telemetry.plain_meter import NoMeter, PlainMeter
from tests import captures
from tests.captures import Capture
from tests.http1 import Message, chunk, last_chunk

STREAMS = {
    name: capture
    for name in captures.names()
    if (capture := captures.load(name)).payload.startswith((b"data: ", b": "))
    and b"transfer-encoding: chunked" in capture.response_head.lower()
}
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
BOTH = pytest.mark.parametrize("strips_usage", [False, True], ids=["as it is", "stripped"])


def a_head(*lines: bytes, content_type: bytes = b"text/event-stream") -> AnswerHead:
    return parse_answer_head(b"\r\n".join((b"HTTP/1.1 200 OK", b"Content-Type: " + content_type, *lines, b"", b"")))


CHUNKED = a_head(b"Transfer-Encoding: chunked")


def a_relay(head: AnswerHead = CHUNKED, *, strips_usage: bool = False, is_http11: bool = True) -> Relay:
    return Relay(head, make_meter(head, 1), strips_usage=strips_usage, is_http11=is_http11)


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut for cut in cuts if 0 < cut < len(data))})
    return [data[low:high] for low, high in pairwise(at)]


def as_read(capture: Capture) -> list[bytes]:
    """The body in the reads in which the client got it."""
    start = len(capture.response_head)
    return cut(capture.response_body, (offset - start for _, offset, _ in capture.reads))


def run(relay: Relay, reads: Iterable[bytes]) -> tuple[bytes, Measurements]:
    """What a client has after these reads, without its framing, and what was measured; all arrived at one instant."""
    out = b"".join([relay.feed(read, 1.0) for read in reads])
    if relay.framing is Framing.CHUNKED:
        message = Message(is_request=False)
        message.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + out)
        assert message.is_complete is relay.has_ended
        assert not message.rest or not relay.has_ended
        out = bytes(message.body)
    return out, relay.finish(1.0)


def expected(capture: Capture, *, strips_usage: bool) -> bytes:
    if not strips_usage:
        return capture.payload
    events = UsageFilter()
    kept = events.feed(capture.payload)
    return kept + (events.finish() if capture.complete else b"")


@BOTH
@pytest.mark.parametrize("is_http11", [True, False], ids=["1.1", "1.0"])
@pytest.mark.parametrize("name", STREAMS)
def test_captured_streams_arrive_whole(name, strips_usage, is_http11):
    """In one read, in the reads of the capture, byte by byte and glued in pairs: the same payload, end and figures."""
    capture = STREAMS[name]
    reads = as_read(capture)
    ways = [
        reads,
        [capture.response_body],
        [b"".join(reads[at : at + 2]) for at in range(0, len(reads), 2)],
        cut(capture.response_body, range(len(capture.response_body) if len(capture.response_body) < 6000 else 0)),
    ]

    results = []
    for way in ways:
        relay = a_relay(strips_usage=strips_usage, is_http11=is_http11)
        results.append(run(relay, way))
        assert relay.framing is (Framing.CHUNKED if is_http11 else Framing.CLOSE)
        assert (relay.has_ended, relay.rest) == (capture.complete, b"")
        assert relay.answer_bytes == len(capture.payload)

    assert [payload for payload, _ in results] == [expected(capture, strips_usage=strips_usage)] * len(ways)
    assert [found for _, found in results] == [results[0][1]] * len(ways)


@settings(deadline=None, max_examples=200)
@given(
    name=st.sampled_from(sorted(STREAMS)),
    cuts=st.sets(st.integers(0, 60_000), max_size=40),
    strips_usage=st.booleans(),
    is_http11=st.booleans(),
)
def test_captured_streams_cut_anywhere(name, cuts, strips_usage, is_http11):
    """Any cut of the worker's bytes gives the client the same payload and the record the same figures."""
    capture = STREAMS[name]
    whole = run(a_relay(strips_usage=strips_usage, is_http11=is_http11), [capture.response_body])

    found = run(a_relay(strips_usage=strips_usage, is_http11=is_http11), cut(capture.response_body, cuts))

    assert found == whole
    assert found[0] == expected(capture, strips_usage=strips_usage)


EVENTS = st.sampled_from([TEXT, USAGE, DONE, b": ping\n\n", TEXT.replace(b'"a"', b'"\xe4\xb8\xad"'), b"\n", b"data: x"])


@settings(deadline=None, max_examples=200)
@given(events=st.lists(EVENTS, max_size=8), chunks=st.sets(st.integers(0, 400)), cuts=st.sets(st.integers(0, 600)))
def test_chunks_cut_anywhere(events, chunks, cuts):
    """Where the worker cuts its chunks and where reads cut those makes no difference either, also to what is taken out."""
    payload = b"".join(events)
    body = b"".join(map(chunk, cut(payload, chunks))) + last_chunk() if payload else last_chunk()
    events_filter = UsageFilter()
    kept = events_filter.feed(payload) + events_filter.finish()

    assert run(a_relay(), cut(body, cuts))[0] == payload
    assert run(a_relay(strips_usage=True), cut(body, cuts))[0] == kept


@BOTH
def test_ordinary_reads_go_on_untouched(strips_usage):
    """A read that is one chunk of whole events is the very object that is written."""
    relay = a_relay(strips_usage=strips_usage)
    read = chunk(TEXT)

    assert relay.feed(read, 1.0) is read
    assert relay.feed(read + read, 1.0) == read + read


def test_the_fast_and_the_slow_path_agree():
    """The same chunks, upper-case sizes or not, give the same payload and figures."""
    body = TEXT * 3
    fast, slow = a_relay(), a_relay()
    plain = [chunk(body), chunk(TEXT), last_chunk()]
    odd = [b"%X ;x\r\n%b\r\n" % (len(body), body), b"00%X\r\n%b\r\n" % (len(TEXT), TEXT), b"00\r\nTrailer: 1\r\n\r\n"]

    assert run(fast, plain) == run(slow, odd)


def test_usage_cut_over_chunks_of_one_read_is_found():
    """The usage event is taken out even when its name is cut by the worker's own chunks."""
    at = USAGE.index(b'age"')
    relay = a_relay(strips_usage=True)

    assert run(relay, [chunk(TEXT), chunk(USAGE[:at]) + chunk(USAGE[at:]), chunk(DONE), last_chunk()])[0] == TEXT + DONE


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_line_ends_of_the_stream_do_not_matter(end):
    """Usage is taken out and counted whichever line ends the worker uses, with one event a chunk or a byte a chunk."""
    events = [event.replace(b"\n", end) for event in (TEXT, TEXT, USAGE, DONE)]
    for pieces in (events, cut(b"".join(events), range(1000))):
        payload, found = run(a_relay(strips_usage=True), [*map(chunk, pieces), last_chunk()])

        assert payload == events[0] + events[1] + events[3]
        assert found.usage is not None
        assert (found.usage.completion_tokens, found.token_events) == (2, 2)


# Bodies with a length, and bodies that end with the connection


def test_a_length_is_kept():
    """A plain answer goes on with its own length, and bytes behind it belong to nobody."""
    relay = a_relay(a_head(b"Content-Length: 5", content_type=b"application/json"))

    assert relay.framing is Framing.LENGTH
    assert (relay.feed(b'{"a', 1.0), relay.has_ended) == (b'{"a', False)
    assert (relay.feed(b'"}HTTP', 1.0), relay.has_ended, relay.rest) == (b'"}', True, b"HTTP")


@BOTH
def test_an_empty_body_has_ended(strips_usage):
    """Nothing will come behind a length of 0, also where a stream was to be filtered."""
    relay = a_relay(a_head(b"Content-Length: 0"), strips_usage=strips_usage)

    assert (relay.has_ended, relay.framing) == (True, Framing.LENGTH)
    assert relay.feed(b"", 1.0) == b""


def test_a_stream_with_a_length_is_framed_anew_when_it_is_filtered():
    """Its length would be wrong, so it goes out in chunks."""
    body = TEXT + USAGE + DONE
    relay = a_relay(a_head(b"Content-Length: %d" % len(body)), strips_usage=True)

    assert run(relay, cut(body, range(0, 300, 7)))[0] == TEXT + DONE


@BOTH
@pytest.mark.parametrize("is_http11", [True, False])
def test_a_body_until_the_connection_closes(strips_usage, is_http11):
    """A clean end of the connection ends such a body, with what the filter still held."""
    relay = a_relay(a_head(), strips_usage=strips_usage, is_http11=is_http11)
    body = TEXT + DONE.rstrip(b"\n")

    out = relay.feed(body, 1.0) + relay.end_of_connection(is_clean=True)

    if is_http11:
        message = Message(is_request=False)
        message.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + out)
        assert message.is_complete
        out = bytes(message.body)
    assert (out, relay.has_ended) == (body, True)
    assert relay.finish(1.0).token_events == 1


@pytest.mark.parametrize(
    ("lines", "read", "is_clean"),
    [
        ([], TEXT, False),
        ([b"Transfer-Encoding: chunked"], chunk(TEXT), True),
        ([b"Content-Length: 900"], TEXT, True),
    ],
)
def test_a_cut_body_is_no_end(lines, read, is_clean):
    """A reset, a missing last chunk and missing bytes raise, so that the client can be told."""
    relay = a_relay(a_head(*lines))
    relay.feed(read, 1.0)

    with pytest.raises(FramingError):
        relay.end_of_connection(is_clean=is_clean)


@pytest.mark.parametrize("bad", [b"zz\r\n", b"3\r\nabcd\r\n", b"+1\r\na\r\n", b"1\na\n"])
@BOTH
def test_broken_chunks_raise(bad, strips_usage):
    """Framing without meaning raises, after good reads too."""
    relay = a_relay(strips_usage=strips_usage)
    relay.feed(chunk(TEXT), 1.0)

    with pytest.raises(FramingError):
        relay.feed(bad, 1.0)


def test_bytes_behind_the_last_chunk():
    """They end up in `rest` and never with the client."""
    relay = a_relay()

    assert relay.feed(chunk(TEXT) + last_chunk() + b"HTTP/1.1 200", 1.0) == chunk(TEXT) + last_chunk()
    assert (relay.has_ended, relay.rest) == (True, b"HTTP/1.1 200")


# Bytes of our own


@BOTH
@pytest.mark.parametrize("scans", [False, True])
def test_own_events_go_between_whole_ones(strips_usage, scans):
    """An event of the gateway's own can follow whole events, and half a one only where the filter holds it back."""
    relay = a_relay(strips_usage=strips_usage)
    can = [relay.can_insert]
    for read in (chunk(TEXT), chunk(TEXT[:9]), chunk(TEXT[9:])):
        relay.feed(read, 1.0)
        if scans:
            relay.scan()
        can.append(relay.can_insert)

    assert can == [True, True, strips_usage, True]
    assert relay.insert(b"data: x\n\n") == b"9\r\ndata: x\n\n\r\n"


def test_own_bytes_do_not_fit_a_length():
    """Nothing can be put into a body whose length has been told, or that ends with the connection."""
    assert not a_relay(a_head(b"Content-Length: 9")).can_insert
    assert not a_relay(is_http11=False).can_insert


# The meter


@pytest.mark.parametrize(
    ("lines", "content_type", "kind"),
    [
        ([], b"text/event-stream; charset=utf-8", StreamMeter),
        ([], b"application/json", PlainMeter),
        ([], b"text/html", NoMeter),
        ([b"Content-Encoding: gzip"], b"text/event-stream", NoMeter),
        ([b"Content-Encoding: gzip"], b"application/json", NoMeter),
    ],
)
def test_the_meter_fits_the_answer(lines, content_type, kind):
    """Streams and JSON have meters of their own; what cannot be read has one that says so."""
    assert type(make_meter(a_head(*lines, content_type=content_type), 1)) is kind


def test_the_first_token_has_the_arrival_of_its_read():
    """Reads are metered later, with the instant at which each arrived."""
    relay = a_relay()
    for at, read in enumerate([b": ping\n\n", b'data: {"choices":[{"delta":{"content":""}}]}\n\n', TEXT, TEXT, TEXT, DONE]):
        relay.feed(chunk(read), float(at))
    assert repr(relay) == "<Relay chunked, <StreamMeter 0 events, 0 with tokens>>"

    found = relay.finish(9.0)

    assert (found.first_token_at, found.last_token_at, found.token_events) == (2.0, 4.0, 3)
