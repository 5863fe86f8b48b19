"""Plain answers have counts and an end; answers that cannot be read have not even those."""

from __future__ import annotations

import json

import pytest

from telemetry.measurements import Measurements
from telemetry.plain_meter import MAX_PLAIN_BYTES, NoMeter, PlainMeter
from tests import captures
from tests.telemetry.streams import cut


@pytest.mark.parametrize("name", ["chat_nonstream", "chat_nonstream_n2", "completion_nonstream_batch3", "tool_auto_nonstream"])
def test_captured_plain_answers(name):
    """A plain answer gives usage and finish reasons and no first token, in one piece or many."""
    payload = captures.load(name).payload
    for pieces in ([payload], cut(payload, range(0, len(payload), 7))):
        meter = PlainMeter()
        meter.feed([1.0] * len(pieces), pieces)
        found = meter.finish(2.0)
        answer = json.loads(payload)

        assert found.usage is not None
        assert found.usage.completion_tokens == answer["usage"]["completion_tokens"]
        assert list(found.finish_reasons) == [choice["finish_reason"] for choice in answer["choices"]]
        assert found.token_events == len(answer["choices"])
        assert (found.first_token_at, found.is_complete, found.is_error, found.faults) == (None, True, False, 0)


@pytest.mark.parametrize(
    ("body", "is_error", "faults"),
    [
        (b'{"error":{"message":"m"}}', True, 0),
        (b'{"object":"error","message":"m"}', True, 0),
        (b'{"error":null,"choices":[]}', False, 0),
        (b'{"choices":null}', False, 0),
        (b'{"choices":[null]}', False, 1),
        (b'{"usage":{"prompt_tokens":-1}}', False, 1),
        (b"Internal Server Error", False, 1),
        (b"", False, 1),
    ],
)
def test_odd_plain_answers(body, is_error, faults):
    """What cannot be read is a fault and no more."""
    meter = PlainMeter()
    meter.feed([1.0], [body])
    found = meter.finish(2.0)

    assert (found.is_error, found.faults, found.is_complete) == (is_error, faults, True)


def test_a_plain_answer_over_the_cap_is_not_kept():
    """Nothing is known of it but that it came to its end."""
    meter = PlainMeter()
    for _ in range(MAX_PLAIN_BYTES // 1_000_000 + 1):
        meter.feed([1.0], [b"x" * 1_000_000])
    found = meter.finish(2.0)

    assert (found.is_unmetered, found.is_complete, found.faults, found.usage) == (True, True, 0, None)


def test_answers_that_cannot_be_read():
    """The meter for them only counts pieces."""
    meter = NoMeter()
    meter.feed([1.0, 2.0], [b"\x1f\x8b", b"x"])

    assert meter.events == 2
    assert meter.finish(3.0) == Measurements(is_unmetered=True, is_complete=True)
