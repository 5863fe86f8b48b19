"""Takes the usage event that the gateway asked for out of a stream whose client did not ask.

What remains is byte for byte the stream that the worker would have sent without the question. Some versions put a field on the
last event of a stream, whichever that is: when the usage event goes, the field goes back to the event before it, which has to
be held for that until its successor has come. That is the one that finishes the last choice, and no other.
"""

from __future__ import annotations

import msgspec

from telemetry.events import read_event
from telemetry.json_text import readable_json
from telemetry.sse import event_data, last_event_end, split_events

MAX_HELD_BYTES = 8 * 1024
"""More of an unfinished event is never held back: a usage event is far smaller."""


FINISHES = b'"finish_reason":"'
"""What an event holds that finishes a choice; one that does not says null."""


class UsageFilter:
    """Call `feed` for each piece of the body and `finish` once at its end; what they give back goes to the client.

    Only the bytes behind the last blank line are held back: an unfinished event, which nobody can act on yet.
    """

    __slots__ = (
        "_choices",
        "_drops_line_feed",
        "_finish",
        "_finished",
        "_forced",
        "_held",
        "_released",
        "_waited",
        "fingerprint",
    )

    def __init__(self, choices: int = 1, fingerprint: str | None = None) -> None:
        self._choices = choices  # that a whole answer has
        self.fingerprint = fingerprint  # what the worker puts on its last event: as told before, or as seen
        self._finished: set[int] = set()  # choices that have a finish reason
        self._finish = b""  # the event that finished the last one, until the next event has come
        self._waited = b""  # the same as it was at the last look for late ones
        self._held = b""
        self._released = b""  # the last bytes of what has been given back of an event that is still arriving
        self._drops_line_feed = False  # what was taken out ended in a CR whose LF may be the next byte
        self._forced = False  # the worker sends usage to everybody, so the last one belongs to the stream

    def __repr__(self) -> str:
        return f"<UsageFilter {len(self._held)} bytes held>"

    @property
    def is_between_events(self) -> bool:
        """Whether the next byte begins an event, so that whole events may go round the filter."""
        return not (self._held or self._finish or self._released or self._drops_line_feed)

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
            if self._finish or b'"usage"' in whole or FINISHES in whole:
                first, *others = split_events(whole)
                kept = [first if given else self._pass(first), *map(self._pass, others)]
                whole = b"".join(kept)
                self._drops_line_feed = not rest and data.endswith(b"\r") and not self._finish and not kept[-1].endswith(b"\r")
            whole = whole[given:]
            self._released = b""
            given = 0
        if given or len(rest) > MAX_HELD_BYTES:
            self._released = rest[-3:]
            return whole + self.release() + rest[given:]
        self._held = rest
        return whole

    def finish(self) -> bytes:
        """Give back what is still held, at the end of the body."""
        held, self._held = self._held, b""
        return (self._pass(held) if held else b"") + self.release()

    def release(self) -> bytes:
        """Give back the event that waits for its successor, if one does: the successor is late, or will not come."""
        finish, self._finish = self._finish, b""
        return finish

    def release_late(self, *, is_last: bool = False) -> bytes:
        """The same for an event that waited at the last call already, or at any rate if no more will come."""
        was_there, self._waited = self._waited, self._finish
        return self.release() if is_last or (was_there and was_there is self._finish) else b""

    def _pass(self, event: bytes) -> bytes:
        """Give back what goes on when this whole event has come: the one that waited, and this one or nothing of it."""
        before = self.release()
        data = event_data(event) if b'"usage"' in event or FINISHES in event else None
        if data is None:
            return before + event
        read, faults = read_event(data)
        is_usage = read.usage is not None and not read.choices and read.choices is not None
        if is_usage and faults:
            is_usage = _has_no_choices(data)  # a choice that is no object was dropped in reading
        if (is_usage or (read.usage is None and not read.choices and _is_strange_usage(data))) and not self._forced:
            # Line ends in front belong to what came before: the LF of a CR LF that was cut, or a blank line too many.
            self.fingerprint = read.system_fingerprint
            return _with_field(before, read.system_fingerprint) + event[: -len(event.lstrip(b"\r\n"))]
        self._forced = self._forced or (read.usage is not None and bool(read.choices))
        self._finished.update(choice.index for choice in read.choices or () if choice.finish_reason)
        if FINISHES in event and event.endswith(b"}\n\n"):
            if len(self._finished) >= self._choices:
                self._finish = event
                return before
            if not self._forced:  # each choice that ends has the field when usage is not asked for
                event = _with_field(event, self.fingerprint)
        return before + event


class _Strange(msgspec.Struct, gc=False):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


_read_strange = msgspec.json.Decoder(_Strange).decode


def _has_no_choices(data: bytes) -> bool:
    try:
        return _read_strange(readable_json(data)).choices == []
    except (msgspec.DecodeError, RecursionError):
        return False


def _is_strange_usage(data: bytes) -> bool:
    """Whether an event without choices has a usage that cannot be read. Null proves nothing: other such events have it too."""
    try:
        event = _read_strange(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return event.choices == [] and bytes(event.usage) not in (b"", b"null") and bytes(event.error) in (b"", b"null")


def _with_field(event: bytes, fingerprint: str | None) -> bytes:
    if fingerprint is None or not event or b'"system_fingerprint"' in event:
        return event
    return b'%b,"system_fingerprint":%b}\n\n' % (event.removesuffix(b"}\n\n"), msgspec.json.encode(fingerprint))
