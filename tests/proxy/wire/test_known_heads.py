"""Heads that came before: what is remembered of one is never anything else than parsing would have given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.errors import ClientFault
from proxy.wire.framing import FramingError, parse_answer_head
from proxy.wire.known_heads import MOST_BYTES, MOST_KNOWN, KnownHeads
from proxy.wire.request_head import parse_request_head

LINES = (
    b"Content-Length: 5",
    b"Content-Length: 12",
    b"Content-Length: 0",
    b"Content-Length: 0012",
    b"content-length: 5",
    b"content-length: 12",
    b"CONTENT-LENGTH: 7",
    b"Content-Length:  5",
    b"Content-Length: 5 ",
    b"Content-Length: ",
    b"Content-Length: x",
    b"Content-Length: 1234567890123456789",
    b"Content-Length:5",
    b"X: Content-Length: 5",
    b"X: Content-Length: 12",
    b"X:",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: content-length",
    b"Authorization: Bearer a",
    b"Authorization: Bearer b",
    b"Content-Type: text/event-stream",
    b"Date: Mon, 30 Nov 2026 10:00:00 GMT",
)
FIRST_LINES = {
    parse_request_head: (b"POST /a HTTP/1.1", b"POST /b HTTP/1.1", b"GET /a HTTP/1.0", b"FAULTY"),
    parse_answer_head: (b"HTTP/1.1 200 OK", b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 Not Modified", b"HTTP/1.0 500 Oh"),
}


def a_head(first: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join((first, b"Host: h", *lines, b"", b""))


def outcome(read: Callable[[bytes], Any], data: bytes) -> object:
    try:
        return msgspec.structs.asdict(read(data))
    except (ClientFault, FramingError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("parse", FIRST_LINES)
@settings(deadline=None, max_examples=400)
@given(st.data())
def test_whatever_came_before_a_head_is_read_as_it_is_parsed(parse, data):
    """Lengths in any spelling, missing, doubled and meaningless ones, in any order after each other."""
    known = KnownHeads(parse)
    lines = st.lists(st.sampled_from(LINES), max_size=4)
    heads = st.builds(lambda first, lines: a_head(first, *lines), st.sampled_from(FIRST_LINES[parse]), lines)

    for head in data.draw(st.lists(heads, min_size=2, max_size=12)):
        assert outcome(known.read, head) == outcome(parse, head)


@pytest.mark.parametrize(
    ("parse", "first", "line", "others"),
    [
        (parse_request_head, b"POST /a HTTP/1.1", b"Content-Length: %d", (7, 0, 1_000_000)),
        (parse_request_head, b"POST /a HTTP/1.1", b"content-length: %d", (7, 0, 1_000_000)),
        (parse_answer_head, b"HTTP/1.1 200 OK", b"content-length: %d", (7, 0, 1_000_000)),
        (parse_answer_head, b"HTTP/1.1 204 No Content", b"content-length: %d", (0, 7)),
        (parse_answer_head, b"HTTP/1.1 304 Not Modified", b"content-length: %d", (7, 0)),
    ],
)
def test_the_same_head_with_another_length_has_that_length(parse, first, line, others):
    """The length of each one is its own; where it means nothing, it goes on meaning nothing."""
    known = KnownHeads(parse)

    for length in (5, *others, 5):
        head = a_head(first, line % length)
        assert outcome(known.read, head) == outcome(parse, head)


def test_a_head_that_came_before_is_not_parsed_again():
    """Only its length may differ."""
    parsed: list[bytes] = []

    def parse(data: bytes) -> Any:
        parsed.append(data)
        return parse_request_head(data)

    known = KnownHeads(parse)
    for lines in ((b"Content-Length: 5",), (b"Content-Length: 12",), (), (), (b"Content-Length: 5", b"X: a")):
        known.read(a_head(b"POST /a HTTP/1.1", *lines))

    assert len(parsed) == 3


def test_who_changes_a_head_changes_nobody_elses():
    """Each caller has its own."""
    known = KnownHeads(parse_request_head)
    data = a_head(b"POST /a HTTP/1.1", b"Content-Length: 5", b"X: a")

    for _ in range(3):
        head = known.read(data)
        assert head.forwarded == b"X: a\r\n"
        head.forwarded += b"traceparent: 00\r\n"


def test_what_is_kept_is_bounded():
    """Neither many heads nor large ones stay."""
    known = KnownHeads(parse_request_head)

    for number in range(3 * MOST_KNOWN):
        known.read(a_head(b"POST /a HTTP/1.1", b"X-Request-Id: %d" % number))
    known.read(a_head(b"POST /a HTTP/1.1", b"X: " + b"a" * MOST_BYTES))

    assert len(known._known) <= MOST_KNOWN
    assert max(map(len, known._known)) <= MOST_BYTES
