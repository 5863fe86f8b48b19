"""Streams of events: read from a whole buffer in the plainest way, and pieces of captured ones to begin with."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests import captures

BOM = b"\xef\xbb\xbf"
_MOST_BYTES = 3000


class PlainEvent(NamedTuple):
    """An event that has data."""

    data: bytes
    start: int  # behind the blank line before it
    end: int  # the offset behind the first byte of the line end that makes its blank line


def read_whole(stream: bytes) -> tuple[list[PlainEvent], bytes | None]:
    """The events of a stream, line by line as the standard for event streams says, and the data of an unfinished one.

    Like the gateway's reader, and unlike the standard, a last event without its blank line is one.
    """
    events: list[PlainEvent] = []
    lines: list[bytes] = []
    position = len(BOM) if stream.startswith(BOM) else 0
    start = 0
    while True:
        ends = [at for at in (stream.find(b"\r", position), stream.find(b"\n", position)) if at >= 0]
        line = stream[position : min(ends)] if ends else stream[position:]
        if ends and not line:
            if lines:
                events.append(PlainEvent(b"\n".join(lines), start, min(ends) + 1))
            lines = []
            start = min(ends) + 1
        elif line == b"data":
            lines.append(b"")
        elif line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        if not ends:
            return events, b"\n".join(lines) if lines else None
        position = min(ends) + (2 if stream.startswith(b"\r\n", min(ends)) else 1)


def without_inner_marks(stream: bytes) -> bytes:
    """The same with a byte order mark at most at its beginning: the gateway's reader passes over one before any event."""
    head = BOM if stream.startswith(BOM) else b""
    while BOM in stream:
        stream = stream.replace(BOM, b"")
    return head + stream


def parsed(data: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for what is none to the last byte."""
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def captured() -> list[bytes]:
    """Beginnings and ends of what real workers streamed, in all three dialects."""
    found = []
    for name in captures.names():
        payload = captures.load(name).payload
        if b"data: " not in payload[:200]:
            continue
        events = payload.split(b"\n\n")
        found.append(payload if len(payload) <= _MOST_BYTES else b"\n\n".join((*events[:4], *events[-4:])))
    return sorted(
        {payload for payload in found if len(payload) <= 2 * _MOST_BYTES}, key=lambda payload: (len(payload), payload)
    )
