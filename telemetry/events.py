"""What one JSON answer or stream event of a worker says, as values; bad fields are counted, never raised.

Covers chat completions and completions, streamed and not. Everything that is not asked for here is ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec

from telemetry.json_text import readable_json

_MAX_TOKENS = 2**40  # more than any context; larger figures are faults
_MAX_SECONDS = 1e6  # longer than any request
_NOTHING = msgspec.Raw(b"")


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts as the worker reported them; ``None`` for what it did not report or reported wrongly."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    has_details: bool = False  # prompt_tokens_details was there, so the worker does report hits


class WorkerTimes(msgspec.Struct, frozen=True, gc=False):
    """What the worker's own clocks say about one request, in seconds; ``None`` for what it did not say or said wrongly."""

    ttft_seconds: float | None = None  # scheduled -> first token; the time in its queue is not in it
    queue_seconds: float | None = None
    generation_seconds: float | None = None  # first token -> last token
    itl_seconds: float | None = None  # mean gap between tokens


class Delta(msgspec.Struct, gc=False):
    """What a choice carries: the same fields in a streamed ``delta`` and a plain ``message``."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # the older name; some versions send both with the same text
    refusal: str | None = None
    tool_calls: msgspec.Raw = _NOTHING

    @property
    def has_text(self) -> bool:
        """Whether there is visible text."""
        return bool(self.content or self.refusal)

    @property
    def has_token(self) -> bool:
        """Whether there is anything generated: text, reasoning, or a piece of a tool call."""
        return bool(self.content or self.reasoning or self.reasoning_content or self.refusal) or _is_filled(self.tool_calls)


class Choice(msgspec.Struct, gc=False):
    """One choice of an event or answer."""

    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        """Whether visible text is there, in whichever field this endpoint uses."""
        carried = self.delta or self.message
        return bool(self.text) if carried is None else carried.has_text

    @property
    def has_token(self) -> bool:
        """Whether anything generated is there, in whichever field this endpoint uses."""
        carried = self.delta or self.message
        return bool(self.text) if carried is None else carried.has_token


class PromptDetails(msgspec.Struct, gc=False):
    """What is said of a prompt beside its length."""

    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct, gc=False):
    """What is said of a completion beside its length."""

    reasoning_tokens: int | None = None


class ReportedUsage(msgspec.Struct, gc=False):
    """The ``usage`` object as it came; `checked` turns it into figures that can be relied on."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None

    def checked(self) -> tuple[Usage, int]:
        """The figures that are possible, and how many were not: below 0, absurd, or more cached than prompted."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        details = self.prompt_tokens_details
        cached = None if details is None else details.cached_tokens
        reasoning = None if self.completion_tokens_details is None else self.completion_tokens_details.reasoning_tokens
        faults = 0
        if prompt is not None and not 0 <= prompt <= _MAX_TOKENS:
            prompt, faults = None, faults + 1
        if completion is not None and not 0 <= completion <= _MAX_TOKENS:
            completion, faults = None, faults + 1
        if cached is not None and (cached < 0 or prompt is None or cached > prompt):
            cached, faults = None, faults + 1
        if reasoning is not None and not 0 <= reasoning <= _MAX_TOKENS:
            reasoning, faults = None, faults + 1
        return Usage(prompt, completion, cached, reasoning, details is not None), faults


class Event(msgspec.Struct, gc=False):
    """One event of a stream, or a whole plain answer."""

    choices: list[Choice] | None = None
    usage: ReportedUsage | None = None
    error: msgspec.Raw = _NOTHING
    object: str | None = None
    system_fingerprint: str | None = None
    metrics: msgspec.Raw = _NOTHING  # the worker's own times; `read_times` reads them

    @property
    def is_error(self) -> bool:
        """Whether the event reports a failure. ``"error": null`` beside content does not."""
        return _is_given(self.error) or self.object == "error"


def _is_given(raw: msgspec.Raw) -> bool:
    return bool(raw) and bytes(raw) != b"null"


def _is_filled(raw: msgspec.Raw) -> bool:
    return len(raw) > 2 and bytes(raw) != b"null"


_decode = msgspec.json.Decoder(Event).decode
_decode_anything = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def read_event(data: bytes | memoryview) -> tuple[Event, int]:
    """Read one event's data or one plain answer; with it the number of fields that could not be understood.

    Never raises: what is no JSON object is an empty event with one fault.
    """
    try:
        return _decode(data), 0
    except msgspec.ValidationError:
        return _read_loosely(data)
    except RecursionError:
        return Event(), 1
    except msgspec.DecodeError:
        readable = readable_json(data)  # without what is JSON to most parsers and not to this one
        return read_event(readable) if readable != data else (Event(), 1)


def _read_loosely(data: bytes | memoryview) -> tuple[Event, int]:
    """The same for an object in which some field has a type nobody agreed on: keep what is sound, count the rest."""
    try:
        given = _decode_anything(data)
    except RecursionError:
        return Event(), 1
    except msgspec.DecodeError:
        readable = readable_json(data)
        return _read_loosely(readable) if readable != data else (Event(), 1)
    if not isinstance(given, dict):
        return Event(), 1
    faults = 0
    event = Event(object=_text(given.get("object")), system_fingerprint=_text(given.get("system_fingerprint")))
    choices = given.get("choices")
    if isinstance(choices, list):
        event.choices = [_loose_choice(each) for each in choices if isinstance(each, dict)]
        faults += len(choices) - len(event.choices)
    else:
        faults += choices is not None
    usage = given.get("usage")
    if isinstance(usage, dict):
        event.usage, dropped = _loose_usage(usage)
        faults += dropped
    else:
        faults += usage is not None
    if given.get("error") is not None:
        event.error = msgspec.Raw(b"{}")
    if isinstance(given.get("metrics"), dict):
        event.metrics = msgspec.Raw(_encode(given["metrics"]))
    return event, max(1, faults)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _loose_choice(choice: dict[str, Any]) -> Choice:
    index = choice.get("index")
    delta = choice.get("delta") or choice.get("message")
    return Choice(
        index=index if type(index) is int else 0,
        delta=_loose_delta(delta) if isinstance(delta, dict) else None,
        text=_text(choice.get("text")),
        finish_reason=_text(choice.get("finish_reason")),
    )


def _loose_delta(delta: dict[str, Any]) -> Delta:
    calls = delta.get("tool_calls")
    return Delta(
        content=_text(delta.get("content")),
        reasoning=_text(delta.get("reasoning")),
        reasoning_content=_text(delta.get("reasoning_content")),
        refusal=_text(delta.get("refusal")),
        tool_calls=msgspec.Raw(b"[{}]") if isinstance(calls, list) and calls else _NOTHING,
    )


class Counts:
    """Whole numbers out of an object whose fields may have any type; what is no number is counted in `faults`."""

    def __init__(self) -> None:
        self.faults = 0

    def count(self, holder: dict[str, Any], name: str) -> int | None:
        """The number of this name; ``None`` when it is absent, null or of another type."""
        value = holder.get(name)
        if value is None or type(value) is int:
            return value
        self.faults += 1
        return None


def _loose_usage(usage: dict[str, Any]) -> tuple[ReportedUsage, int]:
    counts = Counts()
    count = counts.count

    prompt_details = usage.get("prompt_tokens_details")
    completion_details = usage.get("completion_tokens_details")
    for details in (prompt_details, completion_details):
        counts.faults += details is not None and not isinstance(details, dict)
    reported = ReportedUsage(
        count(usage, "prompt_tokens"),
        count(usage, "completion_tokens"),
        PromptDetails(count(prompt_details, "cached_tokens")) if isinstance(prompt_details, dict) else None,
        CompletionDetails(count(completion_details, "reasoning_tokens")) if isinstance(completion_details, dict) else None,
    )
    return reported, counts.faults


def read_times(raw: msgspec.Raw | bytes) -> tuple[WorkerTimes | None, int]:
    """Read the ``metrics`` object of an answer, in milliseconds there; with it the number of figures that cannot be.

    ``None`` when there is none: it is null for several choices, and the worker has to be told to send it.
    """
    if not raw or bytes(raw) == b"null":
        return None, 0
    try:
        given = _decode_anything(raw)
    except (msgspec.DecodeError, RecursionError):
        return None, 1
    if not isinstance(given, dict):
        return None, 1
    found: list[float | None] = []
    faults = 0
    for name in ("time_to_first_token_ms", "queue_time_ms", "generation_time_ms", "mean_itl_ms"):
        value = given.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MAX_SECONDS * 1000:
            found.append(value / 1000)
        else:
            faults += value is not None
            found.append(None)
    return WorkerTimes(*found), faults
