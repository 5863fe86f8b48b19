"""What an event or a plain answer says, and what is made of fields that are wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.events import Usage, read_event


def usage_of(text: str) -> tuple[Usage | None, int]:
    """Usage and faults of an event with this usage, written as it stands."""
    event, faults = read_event(b'{"choices":[],"usage":' + text.encode() + b"}")
    if event.usage is None:
        return None, faults
    usage, more = event.usage.checked()
    return usage, faults + more


HUGE = "1" + "0" * 30


@pytest.mark.parametrize(
    ("text", "usage", "faults"),
    [
        ("null", None, 0),
        ('"12"', None, 1),
        ("[1]", None, 1),
        ("7", None, 1),
        ("true", None, 1),
        ("{}", Usage(), 0),
        ('{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}', Usage(3, 5), 0),
        ('{"prompt_tokens":0,"completion_tokens":0}', Usage(0, 0), 0),
        ('{"prompt_tokens":"3","completion_tokens":5}', Usage(None, 5), 1),
        ('{"prompt_tokens":3.5,"completion_tokens":5}', Usage(None, 5), 1),
        ('{"prompt_tokens":-1,"completion_tokens":5}', Usage(None, 5), 1),
        ('{"prompt_tokens":3,"completion_tokens":-5}', Usage(3), 1),
        ('{"prompt_tokens":null,"completion_tokens":5}', Usage(None, 5), 0),
        ('{"prompt_tokens":true,"completion_tokens":5}', Usage(None, 5), 1),
        ('{"prompt_tokens":NaN,"completion_tokens":5}', Usage(None, 5), 1),
        ('{"prompt_tokens":3,"completion_tokens":-Infinity}', Usage(3), 1),
        ('{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":NaN}}', Usage(3, has_details=True), 1),
        (f'{{"prompt_tokens":{HUGE},"completion_tokens":5}}', Usage(None, 5), 1),
        ('{"prompt_tokens":1e30,"completion_tokens":5}', Usage(None, 5), 1),
        ('{"prompt_tokens":3,"prompt_tokens_details":7,"completion_tokens":5}', Usage(3, 5), 1),
        ('{"prompt_tokens":3,"prompt_tokens_details":"x"}', Usage(3), 1),
        ('{"prompt_tokens":3,"prompt_tokens_details":null}', Usage(3), 0),
        ('{"prompt_tokens":3,"prompt_tokens_details":{}}', Usage(3, has_details=True), 0),
        ('{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":null}}', Usage(3, has_details=True), 0),
        ('{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":0}}', Usage(3, None, 0, has_details=True), 0),
        ('{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":3}}', Usage(3, None, 3, has_details=True), 0),
        ('{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}', Usage(3, has_details=True), 1),
        ('{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":-1}}', Usage(3, has_details=True), 1),
        ('{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":"1"}}', Usage(3, has_details=True), 1),
        ('{"prompt_tokens_details":{"cached_tokens":0}}', Usage(has_details=True), 1),
        ('{"completion_tokens":9,"completion_tokens_details":{"reasoning_tokens":4}}', Usage(None, 9, reasoning_tokens=4), 0),
        ('{"completion_tokens":9,"completion_tokens_details":{"reasoning_tokens":-4}}', Usage(None, 9), 1),
        ('{"completion_tokens":9,"completion_tokens_details":[]}', Usage(None, 9), 1),
    ],
)
def test_usage_values(text, usage, faults):
    """Sound figures are kept, impossible ones are unknown and counted; absent and null differ from 0."""
    assert usage_of(text) == (usage, faults)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"7", b'"x"', b"null", b"\xff", b"[" * 100_000, b'{"a":' * 100_000],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_object_is_an_empty_event(data):
    """Anything that cannot be read is one fault and says nothing."""
    event, faults = read_event(data)

    assert faults == 1
    assert (event.choices, event.usage, event.is_error) == (None, None, False)


@pytest.mark.parametrize(
    ("choices", "with_token", "faults"),
    [
        ("null", [], 0),
        ("[]", [], 0),
        ('"x"', [], 1),
        ("[null]", [], 1),
        ('[null,{"delta":{"content":"a"}}]', [True], 1),
        ("[{}]", [False], 0),
        ('[{"delta":null}]', [False], 0),
        ('[{"delta":{}}]', [False], 0),
        ('[{"delta":7}]', [False], 1),
        ('[{"delta":{"content":null}}]', [False], 0),
        ('[{"delta":{"content":""}}]', [False], 0),
        ('[{"delta":{"content":["a"]}}]', [False], 1),
        ('[{"delta":{"content":7,"reasoning":"r"}}]', [True], 1),
        ('[{"delta":{"reasoning":"r"}}]', [True], 0),
        ('[{"delta":{"reasoning_content":"r"}}]', [True], 0),
        ('[{"delta":{"refusal":"no"}}]', [True], 0),
        ('[{"delta":{"tool_calls":null}}]', [False], 0),
        ('[{"delta":{"tool_calls":[]}}]', [False], 0),
        ('[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":""}}]}}]', [True], 0),
        ('[{"delta":{"content":1,"tool_calls":[{}]}}]', [True], 1),
        ('[{"index":"0","delta":{"content":"a"}}]', [True], 1),
        ('[{"finish_reason":7,"delta":{"content":"a"}}]', [True], 1),
        ('[{"text":"a"},{"text":""}]', [True, False], 0),
        ('[{"message":{"content":"a"}}]', [True], 0),
        (r'[{"delta":{"content":"a\ud83d"}}]', [True], 0),
        ('[{"index":"0","delta":{"content":"a"},"logprobs":NaN}]', [True], 1),
        (r'[{"delta":{"content":"\udE00"}}]', [True], 0),
        (r'[{"delta":{"content":"\\ud83d \ud83d"}}]', [True], 0),
    ],
)
def test_choices(choices, with_token, faults):
    """Odd choices are counted and ignored, sound ones beside them are read; half a surrogate pair is text."""
    event, found = read_event(b'{"choices":' + choices.encode() + b"}")

    assert [choice.has_token for choice in event.choices or ()] == with_token
    assert bool(found) == bool(faults)


@pytest.mark.parametrize(
    ("data", "is_error"),
    [
        (b'{"error":{"message":"m","code":500}}', True),
        (b'{"error":"Unauthorized"}', True),
        (b'{"object":"error","message":"m"}', True),
        (b'{"error":null,"choices":[]}', False),
        (b'{"error": null ,"choices":[]}', False),
        (b'{"error":{"message":"m"},"choices":7}', True),
        (b'{"error":null,"choices":7}', False),
        (b'{"choices":[]}', False),
    ],
)
def test_errors_are_told_from_null(data, is_error):
    """An error of any shape is one; null beside content is none, also where another field is wrong."""
    assert read_event(data)[0].is_error is is_error


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "choices": JSON
        | st.lists(
            st.fixed_dictionaries(
                {}, optional={"index": JSON, "delta": JSON | st.fixed_dictionaries({"content": JSON}), "finish_reason": JSON}
            )
            | JSON
        ),
        "usage": JSON | st.fixed_dictionaries({"prompt_tokens": JSON, "prompt_tokens_details": JSON}),
        "error": JSON,
        "object": JSON,
    },
)


@settings(deadline=None, max_examples=200)
@given(document=FIELDS)
def test_no_document_raises(document):
    """Whatever types the fields have, an event comes back and its figures are in range."""
    event, faults = read_event(json.dumps(document).encode())

    assert faults >= 0
    if event.usage is not None:
        usage, _ = event.usage.checked()
        assert all(figure is None or 0 <= figure <= 2**40 for figure in (usage.prompt_tokens, usage.cached_tokens))
    for choice in event.choices or ():
        assert choice.has_token in {True, False}
        assert not choice.has_text or choice.has_token
