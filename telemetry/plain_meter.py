"""Figures of answers that are no streams: one JSON document, or something that cannot be read at all."""

from __future__ import annotations

from collections.abc import Sequence

from telemetry.dialects import CHAT, Dialect
from telemetry.events import read_times
from telemetry.measurements import Measurements
from telemetry.typed_events import TypedEvent

MAX_PLAIN_BYTES = 8 * 1024 * 1024
"""Plain answers larger than this are passed on unread: no usage is known of them."""


def read_plain(body: bytes, dialect: Dialect = CHAT) -> Measurements:
    """What a whole plain answer says."""
    event, faults = dialect.read(body)
    found = Measurements(is_complete=True, faults=faults)
    if event.usage is not None:
        found.usage, faults = event.usage.checked()
        found.usage_is_final = True
        found.faults += faults
    if event.metrics:
        found.times, faults = read_times(event.metrics)
        found.faults += faults
    if isinstance(event, TypedEvent):
        found.answer_id = event.answer_id
    if event.is_error:
        found.is_error = True
        return found  # its text is the error's
    for choice in event.choices or ():
        if choice.finish_reason:
            found.finish_reasons = (*found.finish_reasons, choice.finish_reason)
        if choice.has_token:
            found.token_events += 1
    return found


NOTHING_READ = Measurements(is_unmetered=True, is_complete=True)
"""Of an answer that cannot be read: compressed, or of a kind that has no tokens."""


class PlainMeter:
    """Reads one JSON answer; it has no first token, since nobody saw one."""

    __slots__ = ("_dialect", "_pieces", "_size", "events", "found")

    def __init__(self, dialect: Dialect = CHAT) -> None:
        self._dialect = dialect
        self.found = Measurements()
        self.events = 0
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, arrivals: Sequence[float], pieces: Sequence[bytes]) -> None:
        """Take in pieces of the body; when they arrived is of no use here."""
        self.events += len(arrivals)
        for piece in pieces:
            self._size += len(piece)
            if self._size <= MAX_PLAIN_BYTES:
                self._pieces.append(piece)
            else:
                self._pieces.clear()

    def finish(self, at: float) -> Measurements:
        """The end of the body; call once."""
        found = self.found
        if self._size > MAX_PLAIN_BYTES:
            found.is_unmetered = True
            found.is_complete = True
            return found
        pieces = self._pieces
        self.found = read_plain(pieces[0] if len(pieces) == 1 else b"".join(pieces), self._dialect)
        return self.found


class NoMeter:
    """For answers that cannot be read: compressed, or of a kind that has no tokens."""

    __slots__ = ("events", "found")

    def __init__(self) -> None:
        self.found = Measurements(is_unmetered=True, is_complete=True)
        self.events = 0

    def feed(self, arrivals: Sequence[float], pieces: Sequence[bytes]) -> None:
        """Count the pieces and forget them."""
        self.events += len(arrivals)

    def finish(self, at: float) -> Measurements:
        """Nothing was measured."""
        return self.found
