"""Server-sent events from bytes that are cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.sse import MAX_EVENT_BYTES, SseReader, event_data, last_event_end, split_events

BOUNDED = settings(deadline=None, max_examples=200)
LINES = ["data: {}", "data: [DONE]", "data:x", "data", "data: a", ": ping", "event: e", "id: 1", "", "retry", " data: no"]


def read(*pieces: bytes) -> list[bytes]:
    reader = SseReader()
    return [data for piece in pieces for data in reader.feed(piece)] + list(reader.finish())


def reference(text: str) -> list[str]:
    """What the standard says of a whole stream, with the one liberty that a last event needs no blank line."""
    events: list[str] = []
    data: list[str] | None = None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for line in [*text.split("\n"), ""]:
        if not line:
            events += [] if data is None else ["\n".join(data)]
            data = None
            continue
        name, _, value = line.partition(":")
        if name == "data":
            data = [*(data or []), value.removeprefix(" ")]
    return events


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_line_ends(end):
    """All three line ends separate lines and events, and a cut after every byte changes nothing."""
    stream = end.join([b"data: a", b"", b": c", b"", b"data: b", b"data:  c", b"", b"event: x", b"data", b"", b""])

    assert read(stream) == [b"a", b"b\n c", b""]
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == [b"a", b"b\n c", b""]


@BOUNDED
@given(
    lines=st.lists(st.sampled_from(LINES), max_size=12),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=12, max_size=12),
    cuts=st.sets(st.integers(0, 200)),
)
def test_reading_agrees_with_the_standard(lines, ends, cuts):
    """Any lines with any ends, cut anywhere, give the events that the standard's line-wise reading gives."""
    text = "".join(line + end for line, end in zip(lines, ends, strict=False))
    data = text.encode()
    at = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    found = read(*(data[low:high] for low, high in pairwise(at)))

    assert [event.decode() for event in found] == reference(text)


@BOUNDED
@given(parts=st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\n\n", b"\r\n\r\n"]), max_size=10))
def test_splitting_loses_nothing(parts):
    """The events of a piece joined are the piece, and only the last one may lack its blank line."""
    data = b"".join(parts)
    events = split_events(data)

    assert b"".join(events) == data
    assert last_event_end(data) >= len(data) - len(events[-1]) if events else not data


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data: x", b"x"),
        (b"data: x\n", b"x"),
        (b"data: x\n:", b"x"),
        (b"data: x\ny", b"x"),
        (b"data: x\r\n\r\n", b"x"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"\xef\xbb\xbfdata: x\n\n", b"x"),
        (b"\n\ndata: x\n\n", b"x"),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b"datax: 1\n\n", None),
        (b": comment\n\n", None),
        (b"event: e\n\n", None),
        (b"", None),
    ],
)
def test_data_of_one_event(event, data):
    """Only one space goes, lines are joined, comments and other fields are no data."""
    assert event_data(event) == data


@pytest.mark.parametrize("follower", [b"", b"data: b", b"data: b\n\n", b"data: b\n\ndata: c"])
def test_an_oversized_event_is_passed_over(follower):
    """An event over the cap is counted and skipped; what follows in the same piece is read from its first byte."""
    reader = SseReader()
    pieces = [b"data: ", *[b"x" * 65_536] * (MAX_EVENT_BYTES // 65_536 + 1), b"yz\n", b"\n" + follower]
    found = [data for piece in pieces for data in reader.feed(piece)] + list(reader.finish())

    assert found == [data for data in (b"b", b"c") if data in follower]
    assert reader.oversized == 1


def test_a_line_without_end_keeps_memory_flat():
    """However much of one line arrives, no more than the cap is held, and it counts as one."""
    reader = SseReader()
    held = 0
    for _ in range(3 * MAX_EVENT_BYTES // 65_536):
        assert list(reader.feed(b"x" * 65_536)) == []
        held = max(held, int(repr(reader).split()[1]))

    assert held <= MAX_EVENT_BYTES
    assert (reader.oversized, repr(reader)) == (1, "<SseReader 3 bytes held>")
    assert not reader.is_between_events


def test_an_event_of_many_lines_is_not_searched_again_and_again():
    """Lines that come one by one without a blank line are joined once, not at every line."""
    reader = SseReader()
    line = b"data: " + b"x" * 250 + b"\n"
    for _ in range(12_000):  # 3 MB; copied for every line this would be 18 GB
        assert list(reader.feed(line)) == []

    assert len(list(reader.feed(b"\n"))) == 1
