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

    __slots__ = ("_drops_line_feed", "_forced", "_held", "_released")

    def __init__(self) -> None:
        self._held = b""
        self._released = b""  # the last bytes of what has been given back of an event that is still arriving
        self._drops_line_feed = False  # what was taken out ended in a CR whose LF may be the next byte
        self._forced = False  # the worker sends usage to everybody, so the last one belongs to the stream

    def __repr__(self) -> str:
        return f"<UsageFilter {len(self._held)} bytes held>"

    @property
    def is_between_events(self) -> bool:
        """Whether the next byte begins an event, so that whole events may go round the filter."""
        return not (self._held or self._released or self._drops_line_feed)

    @property
    def gives_whole_events(self) -> bool:
        """Whether what has been given back ends with a whole event."""
        return not self._released

    def feed(self, piece: bytes) -> bytes:
        """Give back what may go on of ``piece`` and of what was held before it."""
        if self._drops_line_feed and piece:
            self._drops_line_feed = False
            piece = piece.removeprefix(b"\n")
        given = len(self._released)  # bytes at the start of `data` that have gone out: a blank line may begin there
        data = self._released + self._held + piece if given or self._held else piece
        self._held = b""
        end = last_event_end(data)
        whole, rest = data[:end], data[end:]
        if end:
            if b'"usage"' in whole:
                first, *others = split_events(whole)
                kept = [first if given else self._unless_asked(first), *map(self._unless_asked, others)]
                whole = b"".join(kept)
                self._drops_line_feed = not rest and data.endswith(b"\r") and not kept[-1].endswith(b"\r")
            whole = whole[given:]
            self._released = b""
            given = 0
        if given or len(rest) > MAX_HELD_BYTES:
            self._released = rest[-3:]
            return whole + rest[given:]
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
        # Line ends in front belong to what came before: the LF of a CR LF that was cut, or a blank line too many.
        return event[: -len(event.lstrip(b"\r\n"))] if is_answer else event
