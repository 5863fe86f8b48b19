"""What most parsers read as JSON becomes readable to the strict one, and nothing else changes."""

from __future__ import annotations

from time import process_time

import pytest

from telemetry.events import read_event
from telemetry.json_text import readable_json


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b'{"a":NaN}', b'{"a":{}}'),
        (b'{"a":[Infinity, -Infinity,1]}', b'{"a":[{}, {},1]}'),
        (b'{"NaN":"NaN, -Infinity","b":NaN}', b'{"NaN":"NaN, -Infinity","b":{}}'),
        (rb'{"a":"\" NaN","b":NaN}', rb'{"a":"\" NaN","b":{}}'),
        (rb'{"a":"\\","b":NaN}', rb'{"a":"\\","b":{}}'),
        (rb'{"a":"\ud83d"}', rb'{"a":"\ufffd"}'),
        (b'{"a":NaNa}', b'{"a":NaNa}'),
        (b'{"a":"NaN', b'{"a":"NaN'),
        (b'{"a":null}', b'{"a":null}'),
        (b"", b""),
    ],
)
def test_what_is_made_readable(given, expected):
    """Numbers that are none and half surrogate pairs outside, and inside, of strings respectively."""
    assert readable_json(given) == expected


def test_a_number_that_is_none_does_not_hide_the_text_beside_it():
    """An event whose logprobs hold one is read for its token, and nothing of interest was wrong."""
    event, faults = read_event(
        b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"logprob":-Infinity}]}}]}'
    )

    assert faults == 0
    assert event.choices is not None
    assert event.choices[0].has_token


@pytest.mark.parametrize("tail", [b'"' + rb"\"" * 300_000, b'"' + b"\\" * 299_999, b'""' * 200_000, b"-" * 500_000])
def test_a_hostile_document_takes_no_longer(tail):
    """Strings that never end, escapes without end: the time grows with the length and no faster."""
    began = process_time()
    readable_json(b'{"a":NaN,' + tail)

    assert process_time() - began < 1.0
