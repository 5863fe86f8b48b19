"""Streams of events for the tests of the meter, and ways to measure them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise

import msgspec
import pytest

from telemetry.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from telemetry.measurements import Measurements
from telemetry.meter import StreamMeter
from tests import captures

BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.06, 0.12, 0.5, 1.0, 2.0)
DONE = b"data: [DONE]\n\n"
STREAMS = {
    name: capture.payload
    for name in captures.names()
    if (capture := captures.load(name)).payload.startswith((b"data: ", b": ", b"event: "))
}


class ParsingMeter(StreamMeter):
    """The same without recognising ordinary events by what surrounds their text: every event is parsed."""

    def _learn(self, piece: bytes) -> None:
        """Learn nothing."""


def event(delta: object = None, *, finish: str | None = None, index: int = 0, **more: object) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "x", "choices": [choice], **more}, separators=(",", ":")).encode() + b"\n\n"


def text(content: str = "a", **more: object) -> bytes:
    return event({"content": content}, **more)  # type: ignore[arg-type]


def usage(completion: object = 5, *, prompt: object = 3, choices: object = (), **details: object) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **details}
    return b"data: " + json.dumps({"choices": choices, "usage": counts}).encode() + b"\n\n"


ROLE = event({"role": "assistant", "content": ""})
STOP = event({}, finish="stop")


def dialect_of(name: str) -> Dialect:
    """How the capture's answer is read."""
    path = captures.load(name).request.split(b" ")[1]
    return {b"/v1/messages": MESSAGES, b"/v1/responses": RESPONSES}.get(path, CHAT)


def measure(
    *timed: tuple[float, bytes], choices: int = 1, meter: StreamMeter | None = None, dialect: Dialect = CHAT
) -> Measurements:
    meter = meter or StreamMeter(choices, BOUNDS, dialect)
    for at, piece in timed:
        meter.feed([at], [piece])
    return meter.finish(99.0)


def each_second(*pieces: bytes, choices: int = 1, dialect: Dialect = CHAT) -> Measurements:
    return measure(*((float(at), piece) for at, piece in enumerate(pieces)), choices=choices, dialect=dialect)


def typed(kind: str, **fields: object) -> bytes:
    """An event of ``/v1/responses`` or ``/v1/messages``."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}, separators=(",", ":")).encode())


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut for cut in cuts if 0 < cut < len(data))})
    return [data[low:high] for low, high in pairwise(at)]


def choices_of(name: str) -> int:
    """How many finish reasons the capture's request asked for."""
    body = json.loads(captures.load(name).request.partition(b"\r\n\r\n")[2] or b"{}")
    prompt = body.get("prompt")
    batch = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return int(body.get("n") or 1) * batch


def same(one: Measurements, other: Measurements) -> bool:
    """Equal but for rounding in the sum of the gaps."""
    assert one.gap_sum_seconds == pytest.approx(other.gap_sum_seconds)
    return msgspec.structs.replace(one, gap_sum_seconds=0.0) == msgspec.structs.replace(other, gap_sum_seconds=0.0)
