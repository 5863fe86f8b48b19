"""Ordinary events are recognised by what surrounds their text, and measured as if they had been parsed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.meter import StreamMeter
from tests.telemetry.streams import BOUNDS, DONE, ROLE, STOP, ParsingMeter, event, measure, same, text, usage

CONTENT = st.text(st.sampled_from('ab "\\{}[]:,/\n\t\u00e9\u4e2d\U0001f600\ud83d'), max_size=6)
PLAIN = st.sampled_from(["a", "b ", "", "data: ", "}", '"', "\\", "\\\\", '\\"', '"}', '"},"finish_reason":"stop"', "\n\n"])


@st.composite
def pieces_of_streams(draw: st.DrawFn) -> list[tuple[float, bytes]]:
    """Events of one shape, as vLLM, or as others write them, with all sorts of text and now and then something else."""
    compact, ascii_only, is_chat = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    after = draw(st.sampled_from([{}, {"finish_reason": None}, {"logprobs": None, "finish_reason": None}]))
    more = draw(st.sampled_from([{}, {"usage": None}, {"error": None, "system_fingerprint": "f"}]))
    extra = draw(st.sampled_from([{}, {"role": "assistant"}, {"reasoning": None}, {"tool_calls": None}]))
    separators = (",", ":") if compact else (", ", ": ")

    def dump(document: object) -> bytes:
        out = json.dumps(document, separators=separators, ensure_ascii=ascii_only)
        return b"data: " + out.encode("utf-8", "replace") + b"\n\n"

    def ordinary(content: str) -> bytes:
        carried = {"delta": {"content": content, **extra}} if is_chat else {"text": content}
        return dump({"id": "x", "choices": [{"index": 0, **carried, **after}], **more})

    odd = st.sampled_from(
        [
            ROLE,
            STOP,
            DONE,
            usage(9),
            b": ping\n\n",
            event({"reasoning": "r"}),
            text(),
            event({"tool_calls": [{"id": "t"}]}),
            b"\n",
        ]
    )
    contents = draw(st.lists(CONTENT | PLAIN, min_size=3, max_size=12))
    made = [
        ordinary("a"),
        ordinary("b"),
        *(piece for content in contents for piece in (ordinary(content), draw(odd | st.none()))),
    ]
    glued = ordinary("a") + ordinary(contents[0]) if draw(st.booleans()) else b""
    pieces = [piece for piece in (*made, glued) if piece]
    gaps = draw(st.lists(st.sampled_from([0.0, 0.004, 0.015, 0.3]), min_size=len(pieces), max_size=len(pieces)))
    at = 1.0
    timed = []
    for gap, piece in zip(gaps, pieces, strict=True):
        at += gap
        timed.append((at, piece))
    return timed


@settings(deadline=None, max_examples=400)
@given(timed=pieces_of_streams(), batch=st.integers(1, 5))
def test_recognised_events_are_measured_as_parsed_ones(timed, batch):
    """Recognising an event by what surrounds its text gives the very figures that parsing it gives."""
    meter = StreamMeter(1, BOUNDS)
    for start in range(0, len(timed), batch):
        some = timed[start : start + batch]
        meter.feed([at for at, _ in some], [piece for _, piece in some])
    parsing = ParsingMeter(1, BOUNDS)
    parsed = measure(*timed, meter=parsing)

    assert (meter.events, meter.last_event_at) == (parsing.events, parsing.last_event_at)
    assert same(meter.finish(99.0), parsed)


@pytest.mark.parametrize(
    "odd",
    [
        text("a", finish="stop"),
        text("a", usage={"completion_tokens": 4}),
        text("a", error={"message": "m"}),
        text(""),
        text('"'),
        text("\\"),
        text(r"\""),
        text("a")[:-2],
        event({"content": "a", "x": "y"}),
        event({"content": None}),
    ],
)
def test_events_that_differ_are_not_taken_for_ordinary_ones(odd):
    """Behind ordinary events of the same beginning each of these is read for what it says."""
    before = [text()] * 4
    meter, parsing = StreamMeter(1, BOUNDS), ParsingMeter(1, BOUNDS)

    found, parsed = (
        measure(*((1.0, piece) for piece in [*before, odd, text(), DONE]), meter=each) for each in (meter, parsing)
    )

    assert found == parsed


def test_ordinary_events_are_recognised():
    """After a few parsed events the others only add their gaps: their text is not read as JSON any more."""
    meter = StreamMeter(1, BOUNDS)
    broken = text("a").replace(b'"a"', b'"\xff"')
    meter.feed([0.1 * at for at in range(10)], [text()] * 4 + [broken] * 6)

    assert meter.found.token_events == 10
    assert meter.finish(9.0).faults == 0


def test_nothing_is_ordinary_before_the_shape_is_known():
    """Bytes that a worker made up, none of them an event, are never counted as tokens."""
    meter = StreamMeter(1, BOUNDS)
    meter.feed([100.0, 101.0], [b"\0\0\0", b"\0 \0"])
    found = meter.finish(102.0)

    assert (found.token_events, found.gap_counts, found.gap_sum_seconds, found.last_token_at) == (0, None, 0.0, None)
