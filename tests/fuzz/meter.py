"""The meter of streams: how bytes are cut and batched changes no figure, and the figures are those of a plain reading."""

from __future__ import annotations

import json
from typing import Any

from telemetry.dialects import CHAT, MESSAGES, RESPONSES
from telemetry.measurements import Measurements
from telemetry.meter import StreamMeter
from telemetry.recorder import GAP_BOUNDS
from tests import plain_reading
from tests.fuzz.inputs import cut_alike, in_several_ways, take_apart
from tests.fuzz.streams import PlainEvent, captured, parsed, read_whole, without_inner_marks

WORDS = (
    *(
        b'"choices":[',
        b'"index":',
        b'"delta":{',
        b'"content":"',
        b'"finish_reason":"stop"',
        b'"usage":{',
        b'"error":{',
        b"null",
    ),
    *(b'"prompt_tokens":', b'"completion_tokens":', b'"cached_tokens":', b'"prompt_tokens_details":{', b'"tool_calls":[{}]'),
    *(b'"text":"', b'"reasoning":"', b'"type":"', b"content_block_delta", b"message_delta", b"message_start", b"response."),
    *(b"data: ", b"\n\n", b"data: [DONE]\n\n", b"event: ", b"\r\n\r\n", b"\r\r", b"\\u", b"NaN"),
)
LONGEST = 1024
_DIALECTS = (CHAT, MESSAGES, RESPONSES)


class Unlearning(StreamMeter):
    """A meter that parses every event."""

    __slots__ = ()

    @property
    def _may_learn(self) -> bool:
        return False


def check(data: bytes, make: type[StreamMeter] = StreamMeter) -> None:
    """Fed in pieces and batches as cut, and event by event with nothing learned, each at the instant of its last byte."""
    choices, pieces = take_apart(data)
    stream = without_inner_marks(b"".join(pieces))
    dialect = _DIALECTS[choices % 3]
    count, echoes, batch = 1 + (choices >> 2 & 1), bool(choices & 8), 1 + (choices >> 4)
    events, rest = read_whole(stream)
    texts = [event.data for event in events] + ([] if rest is None else [rest])
    values = _values(texts)
    if values is None:  # an event that is like others and yet no JSON is only known for what it is if it is parsed
        make = Unlearning

    found = _measure(make(count, GAP_BOUNDS, dialect, echoes=echoes), *_arrivals(stream, pieces), batch)
    arrivals, slices = _one_by_one(stream, pieces, events)
    plain = _measure(Unlearning(count, GAP_BOUNDS, dialect, echoes=echoes), arrivals, slices, 1)

    assert found == plain
    _check_sense(found)
    if values is not None and not found.faults and dialect is CHAT and not echoes:
        _check_figures(found, values, count)


def _measure(meter: StreamMeter, arrivals: list[float], pieces: list[bytes], batch: int) -> Measurements:
    for at in range(0, len(pieces), batch):
        meter.feed(arrivals[at : at + batch], pieces[at : at + batch])
    return meter.finish(arrivals[-1] if arrivals else 0.0)


def _arrivals(stream: bytes, pieces: list[bytes]) -> tuple[list[float], list[bytes]]:
    """Each piece with its instant: whole seconds, so that sums are exact."""
    cut = cut_alike(stream, pieces)
    return [float(second * second) for second in range(1, len(cut) + 1)], cut


def _one_by_one(stream: bytes, pieces: list[bytes], events: list[PlainEvent]) -> tuple[list[float], list[bytes]]:
    """Each event as a piece of its own, at the instant at which its last byte arrived."""
    instants, cut = _arrivals(stream, pieces)
    arrivals, slices = [], []
    start, piece, end_of_piece = 0, 0, len(cut[0]) if cut else 0
    for event in events:
        while end_of_piece < event.end:
            piece += 1
            end_of_piece += len(cut[piece])
        arrivals.append(instants[piece])
        slices.append(stream[start : event.end])
        start = event.end
    if start < len(stream):
        arrivals.append(instants[-1])
        slices.append(stream[start:])
    return arrivals, slices


def _values(texts: list[bytes]) -> list[Any] | None:
    """What the events say, the end marker as its text; None if one of them is no JSON."""
    try:
        return ["[DONE]" if text.strip() == b"[DONE]" else parsed(text) for text in texts]
    except ValueError:
        return None


def _check_sense(found: Measurements) -> None:
    """What no answer can be."""
    if found.first_token_at is not None:
        assert found.last_token_at is not None
        assert found.first_token_at <= found.last_token_at
        assert found.token_events > 0
    if found.first_visible_at is not None:
        assert found.first_token_at is not None
        assert found.first_visible_at >= found.first_token_at
    usage = found.usage
    if usage is not None:
        figures = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)
        assert all(figure is None or 0 <= figure < 2**50 for figure in figures)
    assert found.gap_sum_seconds >= 0
    tpot = found.tpot_seconds()
    assert tpot is None or tpot > 0
    assert found.stall_ratio is None or found.stall_ratio >= 1


def _check_figures(found: Measurements, values: list[Any], count: int) -> None:
    """What a plain reading of the same events finds, as far as it can make sense of them."""
    try:
        is_error = any(
            isinstance(value, dict) and (value.get("error") is not None or value.get("object") == "error") for value in values
        )
        if is_error or any(
            isinstance(value, dict) and {"type", "delta", "stop_reason", "response"} & {*value} for value in values
        ):
            return
        tokens = sum(plain_reading.carries_token(value) for value in values)
        reasons = plain_reading.finish_reasons(values)
    except (AttributeError, TypeError, KeyError):
        return
    assert found.token_events == tokens
    assert list(found.finish_reasons) == reasons
    assert found.is_complete is ("[DONE]" in values or len(reasons) >= count)


def _event(**fields: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(fields, separators=(",", ":")).encode()


def _small() -> list[bytes]:
    """Short streams of each dialect, long enough for the meter to learn their shape."""
    words = ("", "a", "b", "c", "d", "e")
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    chat = [_event(choices=[{"index": 0, "delta": {"content": word}}]) for word in words]
    counted = [
        _event(choices=[{"index": 0, "text": word}], usage={"prompt_tokens": 1, "completion_tokens": 2}) for word in words
    ]
    end = _event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]) + _event(choices=[], usage=usage)
    other = _event(choices=[{"index": 1, "delta": {"reasoning": "x"}, "finish_reason": "length"}])
    calls = _event(choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}])
    wrong = _event(error={"message": "x", "code": 500}, metrics={"queue_time_ms": 1})
    typed = [_event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": word}) for word in words]
    start = _event(type="message_start", message={"id": "m", "usage": {"input_tokens": 3, "output_tokens": 0}})
    stop = _event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 5}) + _event(
        type="message_stop"
    )
    parts = [_event(type="response.output_text.delta", delta=word) for word in words]
    done = _event(type="response.completed", response={"id": "r", "status": "completed", "usage": {"input_tokens": 3}})
    odd = [
        _event(
            choices=[
                {"index": "0", "delta": {"content": 5, "tool_calls": [{}], "reasoning": []}},
                7,
                {"delta": "x", "text": "y"},
            ]
        ),
        _event(choices="x", usage={"prompt_tokens": "9", "completion_tokens": -5, "prompt_tokens_details": 3}, error=None),
        _event(
            choices=[], usage={"prompt_tokens": 2**60, "completion_tokens_details": {"reasoning_tokens": 2.5}}, metrics={"x": 1}
        ),
        _event(choices=[], usage=7, metrics={"time_to_first_token_ms": 5, "queue_time_ms": "x"}, object="error"),
    ]
    return [
        b"".join((*odd, end)),
        b"".join((*chat, end, b"data: [DONE]\n\n")),
        b"".join((*counted, other, end)),
        b"".join((calls, calls, other, b": ping\n\n", wrong)),
        b"".join((start, *typed, stop)),
        b"".join((*parts, done)),
    ]


def seeds() -> list[bytes]:
    """Short streams, and captured ones, in the dialect they may have, cut in several ways."""
    return in_several_ways(_small(), (0, 1, 2, 8 | 4, 0x30)) + in_several_ways(
        [stream for stream in captured() if len(stream) < LONGEST][:20], (0, 1, 2)
    )
