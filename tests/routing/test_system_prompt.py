"""Finding the system prompt in raw JSON, whatever a client's writer did to it."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.system_prompt import LEAST_BYTES, may_have_system_prompt, system_prompt_of

TEXT = 'You are "Ada".\n\tAnswer in 中文, ünd \\ nicht anders. ' * 12


def raw(value: object, **how: object) -> bytes:
    return json.dumps(value, **how).encode()  # type: ignore[arg-type]


def messages(content: object = TEXT, role: str = "system") -> list[dict[str, object]]:
    return [{"role": role, "content": content}, {"role": "user", "content": "Why?"}]


@pytest.mark.parametrize("how", [{}, {"ensure_ascii": False}, {"separators": (",", ":")}, {"indent": 2}])
@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("content", [TEXT, [{"type": "text", "text": TEXT}, {"type": "text", "text": "More."}]])
def test_it_is_the_same_text_however_it_is_written(how, role, content):
    """Escaped or not, with blanks or without, as a text or as the first of several parts."""
    assert system_prompt_of(raw(messages(content, role), **how)) == TEXT.encode()
    assert may_have_system_prompt(msgspec.Raw(raw(messages(content, role), **how)))


def test_keys_may_come_the_other_way_round():
    """Content first and its role behind it; of the user it is none."""
    for role, expected in (("system", TEXT.encode()), ("user", None)):
        assert system_prompt_of(raw([{"content": TEXT, "role": role}])) == expected
        assert may_have_system_prompt(raw([{"content": TEXT, "role": role}]))
        assert system_prompt_of(raw([{"content": [{"type": "text", "text": TEXT}], "role": role}])) == expected


@pytest.mark.parametrize("how", [{}, {"separators": (",", ":")}, {"indent": 2}])
def test_messages_that_begin_with_the_users_are_not_looked_at_any_further(how):
    """Which is cheaper than looking for a text; a system prompt behind it is none that the prompt begins with."""
    leading = raw([{"role": "user", "content": TEXT}, *messages()], **how)

    assert not may_have_system_prompt(msgspec.Raw(leading))
    assert system_prompt_of(leading) is None


def test_a_system_prompt_beside_the_messages():
    """As Anthropic's API has it, as a text or in parts."""
    for value in (TEXT, [{"type": "text", "text": TEXT, "cache_control": {"type": "ephemeral"}}]):
        assert system_prompt_of(raw(messages(role="user")), raw(value)) == TEXT.encode()


@pytest.mark.parametrize(
    "leading",
    [
        b"",
        b"[]",
        b"null",
        b'"a plain prompt"',
        b"[1,2,3]",
        raw(messages(role="user")),
        raw(messages("short")),
        raw(messages(None)),
        raw(messages([{"type": "image_url", "image_url": {"url": "x"}}])),
        raw(messages())[:300],
        raw(messages("\ud800" * LEAST_BYTES))[:-40],
        b'[{"role":"system","content":"' + b"\\" * 1000,
        b'[{"role":"system","content":"' + b'\\"' * 1000,
        b'[{"role":"system","content":"' + b"\xff" * 1000 + b'\\n"}]',
        b'[{"role":"system","content":"' + b"\\x" * 1000 + b'"}]',
    ],
)
def test_where_there_is_none_nothing_is_found(leading):
    """No messages, none of the system, a short one, one that is cut or cannot be read."""
    assert system_prompt_of(leading) is None


def test_half_of_a_pair_is_kept_as_it_is():
    """A lone surrogate is no fault of ours."""
    found = system_prompt_of(raw(messages("\ud800" * LEAST_BYTES)))
    assert found is None or found.decode("utf-8", "surrogatepass") == "\ud800" * LEAST_BYTES


@given(st.text(min_size=LEAST_BYTES, max_size=600), st.booleans())
def test_any_text_is_found_as_it_was(text, ascii_only):
    """Quotes, backslashes, line ends and anything else."""
    try:
        expected = text.encode()
    except UnicodeEncodeError:
        return
    assert system_prompt_of(raw(messages(text), ensure_ascii=ascii_only)) == expected


@given(st.binary(max_size=2000))
def test_nothing_is_ever_raised(data):
    """Bytes that are no JSON at all."""
    system_prompt_of(data)
    system_prompt_of(b'[{"role":"system","content":"' + data)
    system_prompt_of(b"", data)
