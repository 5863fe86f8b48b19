"""Server-sent events from bytes that may be cut anywhere.

Lines end in LF, CR LF or CR; an event ends at a blank line; the space after ``data:`` is optional and only one is dropped.
Sans-IO and without a clock: the instant at which bytes arrived travels beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""Larger events are passed over by the reader (and counted), never kept."""

CR, LF = b"\r\n"
"""As numbers, since ``number in bytes`` is the cheapest of all searches."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n|\Z)|\r\Z)")
_BOM = b"\xef\xbb\xbf"


def last_event_end(data: bytes) -> int:
    """The offset behind the last blank line in ``data``: what lies before it is whole events; 0 when there is none."""
    if CR not in data:
        return data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
    end = 0
    for match in _BLANK.finditer(data):
        end = match.end()
    return end


def split_events(data: bytes) -> list[bytes]:
    """Cut whole events apart, each with its own terminating blank line; a rest without one comes last."""
    if CR not in data:
        parts = data.split(b"\n\n")
        rest = parts.pop()
        events = [part + b"\n\n" for part in parts]
    else:
        events, start = [], 0
        for match in _BLANK.finditer(data):
            events.append(data[start : match.end()])
            start = match.end()
        rest = data[start:]
    if rest:
        events.append(rest)
    return events


def event_data(event: bytes) -> bytes | None:
    """The data of one event, its ``data`` lines joined by LF; ``None`` if it has none (comments, ``event:`` alone)."""
    start = event.find(b"\n") + 1 if event.startswith(b"event: ") else 0
    if event.startswith(b"data: ", start) and CR not in event:
        end = event.find(b"\n", start)
        if end < 0 or (end == len(event) - 2 and event.endswith(b"\n\n")):
            return event[start + 6 :] if end < 0 else event[start + 6 : end]
    lines: list[bytes] | None = None
    for line in _LINE_END.split(event.removeprefix(_BOM)):
        if line.startswith(b"data:"):
            value = line[6:] if line.startswith(b"data: ") else line[5:]
            lines = [value] if lines is None else [*lines, value]
        elif line == b"data":
            lines = [b""] if lines is None else [*lines, b""]
    return None if lines is None else b"\n".join(lines)


class SseReader:
    """Gives back the data of each event as soon as its blank line has arrived.

    Call `feed` for each piece, and `finish` once when no more will come: a last event without its blank line counts then.
    """

    __slots__ = ("_held", "_most_bytes", "_skips", "oversized")

    def __init__(self, most_bytes: int = MAX_EVENT_BYTES) -> None:
        self._most_bytes = most_bytes  # of an unfinished event
        self._held = bytearray()
        self._skips = False  # inside an event that passed the cap
        self.oversized = 0  # events passed over for their size

    def __repr__(self) -> str:
        return f"<SseReader {len(self._held)} bytes held>"

    @property
    def is_between_events(self) -> bool:
        """Whether nothing of an unfinished event is held."""
        return not self._held and not self._skips

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Take ``piece`` in and give back the data of the events that it completes."""
        if self._held:
            if not last_event_end(bytes(self._held[-3:]) + piece):  # nothing ends here: do not look at the whole again
                self._hold(piece)
                return
            self._held += piece
            data = bytes(self._held)
            self._held.clear()
        else:
            data = piece
        end = last_event_end(data)
        if not end:
            self._hold(data)
            return
        events = split_events(data[:end])
        if self._skips:
            self._skips = False
            del events[0]
        self._hold(data[end:])
        for event in events:
            found = event_data(event)
            if found is not None:
                yield found

    def finish(self) -> Iterator[bytes]:
        """Give back the data of what is held, if it is an event that only lacks its blank line."""
        held = bytes(self._held)
        self._held.clear()
        if held and not self._skips:
            found = event_data(held)
            if found is not None:
                yield found

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > self._most_bytes or (self._skips and len(self._held) > 3):
            if not self._skips:
                self.oversized += 1
            self._skips = True
            del self._held[:-3]  # the blank line may be cut: its first half has to stay
