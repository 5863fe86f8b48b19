"""How the answers of an endpoint are read: one dialect per shape of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from telemetry.events import Event, read_event
from telemetry.typed_events import read_messages_event, read_responses_event


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One shape of events and plain answers."""

    read: Callable[[bytes], tuple[Event, int]]  # never raises; with the number of parts that could not be understood
    end_marker: str  # what a stream ends with, as the record names it when it is missing
    text_fields: tuple[bytes, ...]  # where the text stands in events that differ in nothing else; none if they always differ


CHAT = Dialect(read=read_event, end_marker="done", text_fields=(b'"content":"', b'"text":"'))
"""Chat completions, completions, and every plain answer with ``usage`` in the same words."""

MESSAGES = Dialect(read=read_messages_event, end_marker="message_stop", text_fields=(b'"text":"',))
RESPONSES = Dialect(read=read_responses_event, end_marker="response.completed", text_fields=())
