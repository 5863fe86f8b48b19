"""Events and plain answers of ``/v1/responses`` and ``/v1/messages``, read into the same values as those of chat completions.

Both name the type of each event in its JSON; the ``event:`` line says it again and is not looked at. Nothing raises: a part of
a type that nobody agreed on is counted and left out.

What is a token: a piece of text, a refusal, reasoning, arguments of a call, and the item or block that names a call, since
the name was generated. What is none: the start of a response, message, item, block or part, a signature, a ping, every
``done`` and ``stop``.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from telemetry.events import Choice, CompletionDetails, Counts, Delta, Event, PromptDetails, ReportedUsage
from telemetry.json_text import readable_json

_NOTHING = msgspec.Raw(b"")
_CALLS = msgspec.Raw(b"[{}]")
_T = TypeVar("_T")


class TypedEvent(Event, gc=False):
    """An event with what only these two endpoints say."""

    ends: bool = False  # nothing of the stream follows
    usage_is_final: bool = False
    answer_id: str | None = None


class _Parts(msgspec.Struct, gc=False):
    """Top level of either kind of event, and of either plain answer; each part is read on its own."""

    type: str | None = None
    id: msgspec.Raw = _NOTHING
    delta: msgspec.Raw = _NOTHING
    error: msgspec.Raw = _NOTHING
    usage: msgspec.Raw = _NOTHING
    metrics: msgspec.Raw = _NOTHING
    item: msgspec.Raw = _NOTHING  # responses
    response: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING
    incomplete_details: msgspec.Raw = _NOTHING
    output: msgspec.Raw = _NOTHING
    message: msgspec.Raw = _NOTHING  # messages
    content_block: msgspec.Raw = _NOTHING
    content: msgspec.Raw = _NOTHING
    stop_reason: msgspec.Raw = _NOTHING


class _Block(msgspec.Struct, gc=False):
    """A content block of a message, an item of a response, or the delta of either."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Reason(msgspec.Struct, gc=False):
    reason: str | None = None


_read_parts = msgspec.json.Decoder(_Parts).decode


class _Reader:
    """Reads the parts of one event and counts those that could not be."""

    __slots__ = ("faults",)

    def __init__(self) -> None:
        self.faults = 0

    def parts(self, data: bytes) -> _Parts:
        try:
            return _read_parts(data)
        except (msgspec.ValidationError, RecursionError):
            self.faults += 1
        except msgspec.DecodeError:
            readable = readable_json(data)
            if readable != data:
                return self.parts(readable)
            self.faults += 1
        return _Parts()

    def value(self, raw: msgspec.Raw, kind: type[_T]) -> _T | None:
        """The part as this type; ``None`` when it is absent, null or something else."""
        if not raw or bytes(raw) == b"null":
            return None
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.faults += 1
            return None


def read_messages_event(data: bytes) -> tuple[Event, int]:
    """Read one event of a message stream or one plain message; with it the number of parts that could not be understood."""
    reader = _Reader()
    parts = reader.parts(data)
    event = TypedEvent(metrics=parts.metrics)
    kind = parts.type
    if kind == "content_block_delta":
        event.choices = [_carrying(reader.value(parts.delta, _Block))]
    elif kind == "content_block_start":
        event.choices = [_opening(reader.value(parts.content_block, _Block))]
    elif kind == "message_start":
        message = reader.value(parts.message, _Parts)
        if message is not None:
            event.choices = []
            event.usage = _messages_usage(reader, message.usage)
    elif kind == "message_delta":
        delta = reader.value(parts.delta, _Block)
        event.choices = [Choice(finish_reason=None if delta is None else delta.stop_reason)]
        event.usage, event.usage_is_final = _messages_usage(reader, parts.usage), True
    elif kind == "message_stop":
        event.ends = True
    elif kind == "error" or _is_given(parts.error):
        event.error = parts.error if _is_given(parts.error) else msgspec.Raw(b"{}")
    elif kind == "message":
        blocks = reader.value(parts.content, list[_Block]) or ()
        carried = [_opening(block) for block in blocks]
        event.choices = [
            Choice(
                delta=next((choice.delta for choice in carried if choice.has_token), None),
                finish_reason=reader.value(parts.stop_reason, str),
            )
        ]
        event.usage, event.usage_is_final = _messages_usage(reader, parts.usage), True
    return event, reader.faults


def read_responses_event(data: bytes) -> tuple[Event, int]:
    """Read one event of a response stream or one plain response; with it the number of parts that could not be understood."""
    if data.endswith(b'.delta"}'):
        # The type is the last field: a quote in any text is escaped, and the last brace is the outermost. Of a delta nothing
        # else matters but whether it is empty, so most events need not be parsed.
        known = _DELTAS.get(data[data.rfind(b'"type":"') + 8 : -2])
        text = data.find(b'"delta":"') + 9
        if known is not None and text > 8:
            return (known if data[text : text + 1] != b'"' else _NO_DELTA), 0
    reader = _Reader()
    parts = reader.parts(data)
    event = TypedEvent()
    kind = parts.type or ""
    if kind.endswith(".delta"):
        if len(parts.delta) > 2 and bytes(parts.delta) != b"null":
            event.choices = [Choice(delta=_delta_of(kind))]
    elif kind == "response.output_item.added":
        item = reader.value(parts.item, _Block)
        if item is not None and item.type is not None and item.type.endswith("_call"):
            event.choices = [Choice(delta=Delta(tool_calls=_CALLS))]
    elif kind == "error":
        event.error = msgspec.Raw(b"{}")
    elif parts.response and kind.startswith("response."):
        _read_response(event, reader, reader.value(parts.response, _Parts), is_last=kind in _LAST)
        if kind == "response.failed":
            event.error = msgspec.Raw(b"{}")
    elif parts.output or parts.status:
        _read_response(event, reader, parts, is_last=True)
    elif _is_given(parts.error):
        event.error = parts.error
    return event, reader.faults


_LAST = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


_NO_DELTA = TypedEvent()


def _delta_of(kind: str) -> Delta:
    if kind in ("response.output_text.delta", "response.refusal.delta"):
        return Delta(content="a")
    return Delta(reasoning="a") if kind.startswith("response.reasoning") else Delta(tool_calls=_CALLS)


_DELTAS = {
    kind.encode(): TypedEvent(choices=[Choice(delta=_delta_of(kind))])
    for kind in (
        "response.output_text.delta",
        "response.reasoning_text.delta",
        "response.reasoning_summary_text.delta",
        "response.function_call_arguments.delta",
    )
}
"""Of the usual kinds, shared by all events: nobody changes them."""


def _read_response(event: TypedEvent, reader: _Reader, response: _Parts | None, *, is_last: bool) -> None:
    """What the object says that stands for the whole response, at its beginning and at its end."""
    if response is None:
        event.ends = is_last
        return
    event.answer_id = reader.value(response.id, str)
    if not is_last:
        return
    event.ends = True
    reason = reader.value(response.incomplete_details, _Reason)
    status = reader.value(response.status, str)
    finish = status if reason is None or reason.reason is None else reason.reason
    items = reader.value(response.output, list[_Block])
    event.choices = [Choice(message=Delta(tool_calls=_CALLS) if items else None, finish_reason=finish)]
    event.usage, event.usage_is_final = _responses_usage(reader, response.usage), True
    event.metrics = response.metrics
    if status == "failed" or _is_given(response.error):
        event.error = msgspec.Raw(b"{}")


def _carrying(delta: _Block | None) -> Choice:
    if delta is None:
        return Choice()
    return Choice(
        delta=Delta(content=delta.text, reasoning=delta.thinking, tool_calls=_CALLS if delta.partial_json else _NOTHING)
    )


def _opening(block: _Block | None) -> Choice:
    """A block as it begins, or the whole of it: one that names a call has been generated, an empty one has not."""
    if block is None:
        return Choice()
    is_call = block.type is not None and block.type.endswith("tool_use")
    return Choice(delta=Delta(content=block.text, reasoning=block.thinking, tool_calls=_CALLS if is_call else _NOTHING))


def _messages_usage(reader: _Reader, raw: msgspec.Raw) -> ReportedUsage | None:
    """Usage with the whole prompt: what was read from the cache, or written to it, is not among ``input_tokens``."""
    usage = reader.value(raw, dict[str, Any])
    if usage is None:
        return None
    counts = Counts()
    given, written, cached = (
        counts.count(usage, name) for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    )
    reported = ReportedUsage(
        None if given is None else given + (written or 0) + (cached or 0),
        counts.count(usage, "output_tokens"),
        PromptDetails(cached) if "cache_read_input_tokens" in usage else None,
    )
    if any(number is not None and number < 0 for number in (given, written, cached)):
        reported.prompt_tokens = -1  # a sum of such numbers may look sound
    reader.faults += counts.faults
    return reported


def _responses_usage(reader: _Reader, raw: msgspec.Raw) -> ReportedUsage | None:
    usage = reader.value(raw, dict[str, Any])
    if usage is None:
        return None
    counts = Counts()
    details, more = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    counts.faults += sum(each is not None and not isinstance(each, dict) for each in (details, more))
    reported = ReportedUsage(
        counts.count(usage, "input_tokens"),
        counts.count(usage, "output_tokens"),
        PromptDetails(counts.count(details, "cached_tokens")) if isinstance(details, dict) else None,
        CompletionDetails(counts.count(more, "reasoning_tokens")) if isinstance(more, dict) else None,
    )
    reader.faults += counts.faults
    return reported


def _is_given(raw: msgspec.Raw) -> bool:
    return bool(raw) and bytes(raw) != b"null"
