"""Takes the usage event that the gateway asked for out of a stream whose client did not ask.

What remains is byte for byte the stream that the worker would have sent without the question.
"""

from __future__ import annotations

from telemetry.events import read_event
from telemetry.sse import event_data, last_event_end, split_events

MAX_HELD_BYTES = 8 * 1024
"""More of an unfinished event is never held back: a usage event is far smaller."""


class UsageFilter:
    """Call `feed` for each piece of the body and `finish` once at its end; what they give back goes to the client.

    Only the bytes behind the last blank line are held back: an unfinished event, which nobody can act on yet.
    """

    __slots__ = ("_forced", "_held", "_released")

    def __init__(self) -> None:
        self._held = b""
        self._released = False  # the beginning of the event that is arriving has been given back
        self._forced = False  # the worker sends usage to everybody, so the last one belongs to the stream

    def __repr__(self) -> str:
        return f"<UsageFilter {len(self._held)} bytes held>"

    @property
    def is_between_events(self) -> bool:
        """Whether the next byte begins an event, so that whole events may go round the filter."""
        return not self._held and not self._released

    @property
    def gives_whole_events(self) -> bool:
        """Whether what has been given back ends with a whole event."""
        return not self._released

    def feed(self, piece: bytes) -> bytes:
        """Give back what may go on of ``piece`` and of what was held before it."""
        data = self._held + piece if self._held else piece
        end = last_event_end(data)
        whole, rest = data[:end], data[end:]
        self._held = b""
        if whole and b'"usage"' in whole:
            first, *others = split_events(whole)
            if not self._released:
                first = self._unless_asked(first)
            whole = first + b"".join([self._unless_asked(event) for event in others])
        if end:
            self._released = False
        if not rest:
            return whole
        if self._released or len(rest) > MAX_HELD_BYTES:
            self._released = True
            return whole + rest
        self._held = rest
        return whole

    def finish(self) -> bytes:
        """Give back what is still held, at the end of the body."""
        held, self._held = self._held, b""
        return self._unless_asked(held) if b'"usage"' in held else held

    def _unless_asked(self, event: bytes) -> bytes:
        if b'"usage"' not in event:
            return event
        data = event_data(event)
        if data is None:
            return event
        read, _ = read_event(data)
        if read.usage is None:
            return event
        if read.choices:
            self._forced = True
            return event
        is_answer = read.choices is not None and not self._forced
        return b"" if is_answer else event
