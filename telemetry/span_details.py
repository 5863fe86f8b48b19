"""What only spans tell of a request and its answer; read for sampled requests alone, so the others do not pay for it.

Numbers and names: no text of a prompt or of an answer. Stop sequences are the client's own text, and are left out for that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from telemetry.record import Asked, Told
from telemetry.sse import event_data, split_events

_MOST_ANSWER_BYTES = 64 * 1024
"""An answer that is longer in one piece is not read for its name; the first event of a stream is far smaller."""
_DATA_LINE = re.compile(rb"(?:\A|[\r\n])data:")  # no JSON has one: it writes line ends in texts as escapes
_NOTHING = msgspec.Raw(b"")


class _Request(msgspec.Struct, gc=False):
    temperature: msgspec.Raw = _NOTHING
    top_p: msgspec.Raw = _NOTHING
    top_k: msgspec.Raw = _NOTHING
    seed: msgspec.Raw = _NOTHING
    frequency_penalty: msgspec.Raw = _NOTHING
    presence_penalty: msgspec.Raw = _NOTHING
    n: msgspec.Raw = _NOTHING
    previous_response_id: msgspec.Raw = _NOTHING


class _Named(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None


class _Answer(_Named, gc=False):
    response: _Named | None = None  # in the events of /v1/responses
    message: _Named | None = None  # in the first event of /v1/messages


_read_request = msgspec.json.Decoder(_Request).decode
_read_answer = msgspec.json.Decoder(_Answer).decode
_read_number = msgspec.json.Decoder(float).decode
_read_count = msgspec.json.Decoder(int).decode
_read_text = msgspec.json.Decoder(str).decode
_MOST_COUNT = 2**63  # what a span can hold


def asked_in(body: bytes) -> Asked:
    """The sampling that a request asks for; a field that is absent or of another type is ``None``, and so is each of a form."""
    try:
        given = _read_request(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Asked()
    return Asked(
        temperature=_as(_read_number, given.temperature),
        top_p=_as(_read_number, given.top_p),
        top_k=_count(given.top_k),
        seed=_count(given.seed),
        frequency_penalty=_as(_read_number, given.frequency_penalty),
        presence_penalty=_as(_read_number, given.presence_penalty),
        choices=_count(given.n),
        previous_id=_as(_read_text, given.previous_response_id),
    )


def told_in(beginning: bytes) -> Told:
    """How an answer calls itself and its model, from the first bytes that go to the client.

    That is a whole plain answer, or one event of a stream at least. Chunk sizes may stand around either, not within.
    """
    if len(beginning) > _MOST_ANSWER_BYTES:
        return Told()
    data: bytes | None
    if _DATA_LINE.search(beginning):
        data = next((found for event in split_events(beginning) if (found := event_data(event)) is not None), None)
    else:
        data = beginning[beginning.find(b"{") : beginning.rfind(b"}") + 1]
    try:
        answer = _read_answer(data or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Told()
    named = answer.response or answer.message or answer
    return Told(answer_id=named.id, model=named.model)


def _count(raw: msgspec.Raw) -> int | None:
    value = _as(_read_count, raw)
    return value if value is not None and abs(value) < _MOST_COUNT else None


def _as(read: Callable[[msgspec.Raw], Any], raw: msgspec.Raw) -> Any:
    if not raw:
        return None
    try:
        return read(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
