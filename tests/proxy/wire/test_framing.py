"""Heads of answers and chunked bodies: what has one meaning is read, everything else is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.framing import (
    MAX_HEAD_BYTES,
    MAX_SIZE_LINE_BYTES,
    MAX_TRAILER_BYTES,
    SIZE_LINES,
    AnswerHead,
    ChunkDecoder,
    FramingError,
    parse_answer_head,
    split_plain_chunks,
    take_answer_head,
)
from tests import captures
from tests.http1 import chunk

BOUNDED = settings(deadline=None, max_examples=150)


def an_answer(*lines: bytes, status: bytes = b"HTTP/1.1 200 OK") -> AnswerHead:
    return parse_answer_head(b"\r\n".join((status, *lines, b"", b"")))


def decode(*pieces: bytes) -> tuple[bytes, ChunkDecoder]:
    decoder = ChunkDecoder()
    return b"".join([decoder.feed(piece) for piece in pieces]), decoder


# Heads of answers


@pytest.mark.parametrize("name", [name for name in captures.names() if captures.load(name).response])
def test_heads_of_real_workers_are_read(name):
    """Each captured head gives its status and one framing, and passes on its type but nothing of its connection."""
    capture = captures.load(name)

    head = parse_answer_head(capture.response_head)

    assert head.status == int(capture.response_head.split(b" ")[1])
    assert head.is_chunked != (head.content_length is not None)
    assert b"content-type: " in head.passed
    assert b"transfer-encoding" not in head.passed
    assert b"content-length" not in head.passed
    assert head.is_event_stream == capture.payload.startswith((b"data:", b":", b"event:"))


def test_an_event_stream_asks_proxies_in_front_not_to_collect_it():
    """A stream gets the two headers that keep others from buffering; a worker's own cache-control stays alone."""
    assert an_answer(b"Content-Type: text/event-stream").passed == (
        b"content-type: text/event-stream\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
    )
    assert an_answer(b"Content-Type: text/event-stream; charset=utf-8", b"Cache-Control: private").passed == (
        b"content-type: text/event-stream; charset=utf-8\r\ncache-control: private\r\nx-accel-buffering: no\r\n"
    )


def test_headers_of_the_connection_and_cookies_are_not_passed():
    """Hop-by-hop fields, those that Connection names, cookies, and those the gateway writes itself stay behind.

    So do those that speak for everything at the address that clients use, which is not the worker's.
    """
    head = an_answer(
        b"X-Mine: 1",
        b"Connection: X-Named, keep-alive",
        b"X-Named: 2",
        b"Keep-Alive: timeout=5",
        b"Set-Cookie: a=b",
        b"X-Request-Id: theirs",
        b"Server-Timing: theirs",
        b"X-Ridgeline-Worker: theirs",
        b'Alt-Svc: h2="elsewhere:443"',
        b"Strict-Transport-Security: max-age=31536000",
        b'Clear-Site-Data: "*"',
        b"Content-Length: 0",
        b"X-Other: 3",
    )

    assert head.passed == b"x-mine: 1\r\nx-other: 3\r\n"


@pytest.mark.parametrize(
    ("version", "lines", "keeps"),
    [
        (b"1.1", [b"Content-Length: 3"], True),
        (b"1.1", [b"Transfer-Encoding: chunked"], True),
        (b"1.1", [], False),
        (b"1.1", [b"Content-Length: 3", b"Connection: close"], False),
        (b"1.1", [b"Content-Length: 3", b"Connection: Keep-Alive, Close"], False),
        (b"1.1", [b"Content-Length: 3", b"Connection: close", b"Connection: keep-alive"], False),
        (b"1.0", [b"Content-Length: 3"], False),
        (b"1.0", [b"Content-Length: 3", b"Connection: keep-alive"], True),
    ],
)
def test_whether_the_connection_can_be_used_again(version, lines, keeps):
    """Only a body with an end of its own, on a connection that nobody said would close, leaves a usable connection."""
    assert an_answer(*lines, status=b"HTTP/%b 200 OK" % version).keeps_alive is keeps


@pytest.mark.parametrize(("line", "is_chunked"), [(b"Content-Length: 3", False), (b"Transfer-Encoding: chunked", True)])
def test_an_answer_that_should_have_no_body_ends_where_it_says(line, is_chunked):
    """A 205 must not carry any, but one that does has a body for everybody who reads it (RFC 9112, section 6.3)."""
    head = an_answer(line, status=b"HTTP/1.1 205 -")

    assert (head.is_chunked, head.content_length) == (is_chunked, None if is_chunked else 3)


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body(status):
    """These have none, whatever their headers say."""
    head = an_answer(b"Content-Type: text/plain", status=b"HTTP/1.1 %d -" % status)

    assert (head.content_length, head.is_chunked) == (0, False)


@pytest.mark.parametrize(
    ("encoding", "is_encoded"), [(b"gzip", True), (b"identity", False), (b" Identity ", False), (b"", False), (b"br", True)]
)
def test_encoded_answers_are_told_apart(encoding, is_encoded):
    """A compressed body cannot be read; the header itself goes on."""
    head = an_answer(b"Content-Type: text/event-stream", b"Content-Encoding: " + encoding)

    assert head.is_encoded is is_encoded
    assert head.is_event_stream is not is_encoded
    assert b"content-encoding: " in head.passed


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1234567890123456789\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
        b"HTTP/1.1 200 OK\nX: a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/0.9 200 OK\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 2OO OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ],
)
def test_heads_that_can_be_read_in_two_ways_are_refused(head):
    """Contradicting lengths, odd codings, folds and whatever is no HTTP/1 raise instead of being guessed at."""
    with pytest.raises(FramingError):
        parse_answer_head(head)


def test_interim_heads_are_passed_over():
    """1xx answers before the final one are skipped, and what lies behind the final head comes back."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    data = interim + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"

    head, rest = take_answer_head(data)

    assert head is not None
    assert (head.status, rest) == (200, b"hi")


@pytest.mark.parametrize("start", [b"\r\n\r\n", b"HTTP/1.1 099 -\r\n\r\n", b"HTTP/1.1 000 -\r\n\r\n"])
def test_what_has_no_status_is_no_interim_head(start):
    """Empty lines and impossible numbers in front of an answer are refused, as other readers do."""
    with pytest.raises(FramingError):
        take_answer_head(start + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")


@pytest.mark.parametrize("cut", range(1, 38))
def test_an_unfinished_head_waits(cut):
    """A head without its blank line gives nothing, and back what has to be kept, without interim heads."""
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"[:cut]
    head, rest = take_answer_head(data)

    assert head is None or cut == 38
    assert data.endswith(rest)


def test_a_head_without_end_is_refused():
    """More than the limit without a blank line is an error, not a growing buffer."""
    with pytest.raises(FramingError):
        take_answer_head(b"HTTP/1.1 200 OK\r\nX: " + b"a" * MAX_HEAD_BYTES)


@pytest.mark.parametrize("status", [300, 301, 302, 304, 307, 308])
def test_redirects_are_refused(status):
    """A redirect is never followed, and would name the worker."""
    with pytest.raises(FramingError, match="redirect"):
        take_answer_head(b"HTTP/1.1 %d -\r\nLocation: http://w/\r\n\r\n" % status)


# Chunks


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b"3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"3;a=b\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b'3; a="b c"\r\nabc\r\n0;x\r\n\r\n', b"abc"),
        (b"3 ;a\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
        (b"a\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
        (b"0003\r\nabc\r\n000\r\n\r\n", b"abc"),
        (b"000000000000003\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"3\r\na\r\n\r\n0\r\n\r\n", b"a\r\n"),
        (b"0\r\nX-Trailer: 1\r\nY: 2\r\n\r\n", b""),
    ],
)
def test_chunked_bodies(body, payload):
    """Sizes in either case, with leading zeros, extensions and trailer fields give the payload alone, however they are cut."""
    for pieces in ([body], [body[at : at + 1] for at in range(len(body))]):
        found, decoder = decode(*pieces)
        assert (found, decoder.ended, decoder.rest) == (payload, True, b"")


@pytest.mark.parametrize(
    "body",
    [
        b"0x3\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b"-3\r\nabc\r\n",
        b"1_0\r\nabc\r\n",
        b" 3\r\nabc\r\n",
        b"\t3\r\nabc\r\n",
        b"\r\nabc\r\n",
        b";x\r\nabc\r\n",
        b"3 4\r\nabc\r\n",
        b"g\r\nabc\r\n",
        b"\xd9\xa3\r\nabc\r\n",  # a digit of another script
        b"0000000000000003\r\nabc\r\n",  # 16 digits
        b"ffffffffffffffff\r\n",
        b"3\nabc\n0\n\n",
        b"3\r\nabc\n0\r\n\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"3\r\nab\r\n0\r\n\r\n",
        b"3\r\nabc0\r\n\r\n",
        b"3;a\nb\r\nabc\r\n",
        b"3;a\0\r\nabc\r\n",
        b"3;a\rb\r\nabc\r\n",
        b"0\r\nX: 1\n\r\n",
        b"0\r\nX 1\r\n\r\n",
        b"0\r\n\rX: 1\r\n\r\n",
        b"0\r\nX : 1\r\n\r\n",
        b"0\r\nX: 1\r\n 2\r\n\r\n",
        b"0\r\nX: \0\r\n\r\n",
        b"0\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"3;" + b"x" * MAX_SIZE_LINE_BYTES + b"\r\nabc\r\n",
        b"3;" + b"x" * MAX_SIZE_LINE_BYTES,
        b"0\r\nContent-Length: 5\r\n\r\n",
        b"0\r\nX: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"0\r\nX: " + b"x" * MAX_TRAILER_BYTES,
        b"0\r\n" + b"X: 0123456789\r\n" * (MAX_TRAILER_BYTES // 10),
    ],
)
def test_chunks_that_can_be_read_in_two_ways_are_refused(body):
    """Odd numbers, bare line feeds, sizes that do not fit and lines without end raise, in one piece and byte by byte."""
    for pieces in ([body], [body[at : at + 1] for at in range(len(body))]):
        with pytest.raises(FramingError):
            decode(*pieces)


def test_what_lies_behind_the_end_is_kept_apart():
    """Bytes behind the last chunk are nobody's payload, whether they come with it or later."""
    payload, decoder = decode(b"1\r\na\r\n0\r\n\r\nHTTP/1.1 2", b"00 OK")

    assert (payload, decoder.ended, decoder.rest) == (b"a", True, b"HTTP/1.1 200 OK")


def test_edges_are_known():
    """Only before a size line is the decoder at an edge."""
    decoder = ChunkDecoder()
    edges = [decoder.is_at_edge]
    for piece in (b"2\r", b"\n", b"a", b"b", b"\r", b"\n", b"0\r\n", b"\r\n"):
        decoder.feed(piece)
        edges.append(decoder.is_at_edge)

    assert edges == [True, False, False, False, False, False, True, False, False]
    assert repr(decoder) == "<ChunkDecoder ended, 0 bytes left>"


def test_size_lines_against_brute_force():
    """The table has, for each length of a read, the only lower-case size line of a single chunk that fills it."""
    by_total: dict[int, list[bytes]] = {}
    for length in range(1, len(SIZE_LINES)):
        line = b"%x\r\n" % length
        by_total.setdefault(len(line) + length + 2, []).append(line)

    for total, line in enumerate(SIZE_LINES):
        assert [line] == by_total.get(total, [b"\0"])


CHUNKS = st.lists(st.binary(max_size=40), max_size=6)


@BOUNDED
@given(chunks=CHUNKS, ends=st.booleans())
def test_plain_chunks_are_split_as_they_were_made(chunks, ends):
    """Whole plain chunks come apart into their payloads, and the last chunk is seen."""
    data = b"".join(map(chunk, filter(None, chunks))) + (b"0\r\n\r\n" if ends else b"")

    assert split_plain_chunks(data) == (list(filter(None, chunks)), ends)


@BOUNDED
@given(
    data=st.lists(
        st.sampled_from([b"\r\n", b"\n", b"0", b"1", b"2", b"3", b"A", b"a", b";x", b" ", b"0\r\n\r\n", b"3\r\nabc\r\n"]),
        max_size=9,
    ).map(b"".join)
)
def test_splitting_agrees_with_the_decoder(data):
    """What is split into plain chunks has exactly the decoder's payload and end; what the decoder refuses is never split."""
    split = split_plain_chunks(data)
    decoder = ChunkDecoder()
    try:
        payload = decoder.feed(data)
    except FramingError:
        assert split is None
        return

    if split is not None:
        assert (b"".join(split[0]), split[1]) == (payload, decoder.ended)
        assert decoder.ended or decoder.is_at_edge
        assert decoder.rest == b""


@BOUNDED
@given(chunks=CHUNKS, cuts=st.sets(st.integers(0, 300)), behind=st.binary(max_size=5))
def test_cuts_do_not_change_the_payload(chunks, cuts, behind):
    """A chunked body gives the same payload, end and rest wherever it is cut."""
    data = b"".join(map(chunk, filter(None, chunks))) + b"0\r\n\r\n" + behind
    at = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    payload, decoder = decode(*(data[low:high] for low, high in pairwise(at)))

    assert (payload, decoder.ended, decoder.rest) == (b"".join(chunks), True, behind)


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("Retry-After: 7", 7),
        ("retry-after:0", 0),
        ("Retry-After: Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("Retry-After: -1", None),
        ("Retry-After: 1.5", None),
        ("X-Retry-After: 7", None),
        ("Retry-After: 12345678", None),
    ],
)
def test_when_a_worker_wants_to_be_asked_again(line, seconds):
    """Whole seconds are understood; a date, or what is no number, is as good as nothing."""
    head = parse_answer_head(f"HTTP/1.1 503 Service Unavailable\r\n{line}\r\ncontent-length: 0\r\n\r\n".encode())

    assert head.retry_after_seconds == seconds
