"""The reader of event streams, however they are cut, against a reading of the whole buffer."""

from __future__ import annotations

from collections.abc import Callable

from telemetry.sse import SseReader, last_event_end, split_events
from tests.fuzz.inputs import cut_alike, in_several_ways, take_apart
from tests.fuzz.streams import captured, read_whole, without_inner_marks

WORDS = (b"data: ", b"data:", b"\n\n", b"\r\n\r\n", b"\r\r", b"\r\n", b"event: ", b": ", b"data\n", b"[DONE]", b"\xef\xbb\xbf")
LONGEST = 256
_EDGE_BYTES = 5  # a line end that may count for the event before or the one behind, and a byte order mark


def check(data: bytes, make: Callable[..., SseReader] = SseReader) -> None:
    """The same events, each with the piece that completes it, and what is left at the end; nothing is lost in splitting.

    Choices above 0 are a bound on what may be held: then only events that are larger may be missing.
    """
    choices, pieces = take_apart(data)
    stream = without_inner_marks(b"".join(pieces))
    expected, rest = read_whole(stream)
    pieces = cut_alike(stream, pieces)
    if choices:
        _check_bounded(stream, pieces, choices, make(choices))
        return

    reader = make()
    found: list[tuple[bytes, int]] = []
    position = 0
    for piece in pieces:
        position += len(piece)
        found += [(event, position) for event in reader.feed(piece)]
    last = list(reader.finish())

    assert found == [(event.data, _end_of_piece(pieces, event.end)) for event in expected]
    assert last == ([] if rest is None else [rest])
    assert reader.oversized == 0
    assert b"".join(split_events(stream)) == stream
    end = last_event_end(stream)
    assert not expected or end >= expected[-1].end


def _check_bounded(stream: bytes, pieces: list[bytes], most: int, reader: SseReader) -> None:
    found: list[bytes] = []
    for piece in pieces:
        found += reader.feed(piece)
        assert len(reader._held) <= max(most, 3)
    found += reader.finish()
    whole, last = read_whole(stream)
    small = [event.data for event in whole if event.end - event.start <= most - _EDGE_BYTES]
    everything = [event.data for event in whole] + ([] if last is None else [last])
    assert _is_within(small, found)
    assert _is_within(found, everything)
    assert len(whole) - len(found) <= reader.oversized


def _is_within(some: list[bytes], others: list[bytes]) -> bool:
    """Whether these are among the others, in the same order."""
    left = iter(others)
    return all(one in left for one in some)


def _end_of_piece(pieces: list[bytes], offset: int) -> int:
    at = 0
    for piece in pieces:
        at += len(piece)
        if at >= offset:
            return at
    raise AssertionError("an event ends behind the stream")


def seeds() -> list[bytes]:
    """Captured streams and odd spellings, cut in several ways."""
    odd = [
        b"data: a\r\n\r\ndata:b\r\rdata\n\n: c\n\ndata: d\ndata: e\n\nevent: x\ndata: {}\n\ndata: [DONE]\n\ndata: f",
        b"\xef\xbb\xbfdata: a\n\n\n\n\r\n\rdata:  b\n\n",
        b"event: message\r\ndata: {}\r\n\r\n" * 5,
    ]
    return in_several_ways([*odd, *(each[:250] for each in captured()[:10])], (0, 40, 120))
