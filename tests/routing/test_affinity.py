"""Hashes of what requests begin with."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.affinity import LEADING_CHARACTERS, affinity_of, session_of

SYSTEM = {"role": "system", "content": "Du hilfst. 你帮忙。 " * 30}
QUESTION = {"role": "user", "content": 'What is "中"? 😀'}
ANSWER = {"role": "assistant", "content": 'A "user" } { said: "role": "user", so'}
MORE = {"role": "user", "content": "And then?"}


def raw(value: Any, **style: Any) -> bytes:
    return json.dumps(value, **style).encode()


def turned(message: dict[str, str]) -> dict[str, str]:
    return dict(reversed(message.items()))


@pytest.mark.parametrize("turn", [lambda message: message, turned])
def test_all_turns_of_a_conversation_are_alike(turn):
    """What follows the first message of the user does not count, in either order of keys."""
    first = affinity_of(raw([turn(SYSTEM), turn(QUESTION)]))

    assert first == affinity_of(raw([turn(SYSTEM), turn(QUESTION), turn(ANSWER)]))
    assert first == affinity_of(raw([turn(SYSTEM), turn(QUESTION), turn(ANSWER), turn(MORE)]))
    assert first != affinity_of(raw([turn(SYSTEM), turn(MORE)]))
    assert first != affinity_of(raw([turn(QUESTION)]))


def test_the_way_of_writing_does_not_count():
    """Escapes, blanks, order of keys and a text as a list of parts: one beginning, one hash."""
    messages = [SYSTEM, QUESTION]
    parts = [{"role": one["role"], "content": [{"type": "text", "text": one["content"]}]} for one in messages]
    written = [
        raw(messages),
        raw(messages, ensure_ascii=False),
        raw(messages, separators=(",", ":")),
        raw(messages, indent=2),
        raw(messages).replace(b"\\u4e2d", b"\\u4E2D"),
        raw([turned(one) for one in messages]),
        raw(parts),
    ]

    assert len({affinity_of(one) for one in written}) == 1
    assert affinity_of(msgspec.Raw(written[0])) == affinity_of(written[0])


@given(text=st.text(min_size=1, max_size=1500), as_list=st.booleans())
def test_plain_texts_escaped_or_not(text, as_list):
    """A prompt has the same hash with and without escapes, alone or as the first of several."""
    value = [text, "another"] if as_list else text
    try:
        plain = json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    assert affinity_of(plain) == affinity_of(raw(value)) == affinity_of(raw(text))


@pytest.mark.parametrize("character", ["x", "ü", "中", "😀", "\n", '"', "\\"])
def test_only_the_beginning_of_a_text_counts(character):
    """512 characters decide, however many bytes they take, and what follows does not."""
    beginning = character * LEADING_CHARACTERS
    assert affinity_of(raw(beginning)) == affinity_of(raw(f"{beginning}a" * 40))
    assert affinity_of(raw(beginning)) == affinity_of(raw(f"{beginning}a" * 40, ensure_ascii=False))
    assert affinity_of(raw(beginning)) != affinity_of(raw(f"{beginning[:-1]}a"))


def test_documents_before_a_question():
    """A long first message counts by its beginning: questions about the same document are at home together."""
    document = "Article 1. " * 200
    assert affinity_of(raw([{"role": "user", "content": f"{document} Who?"}])) == affinity_of(
        raw([{"role": "user", "content": f"{document} When?"}])
    )


def test_a_long_system_prompt_does_not_hide_the_conversation():
    """Behind 100 kB of instructions the first message still tells conversations apart, and so do the instructions."""
    long = {"role": "system", "content": "word " * 20_000}
    other = {"role": "system", "content": "word " * 20_001}
    first = affinity_of(raw([long, QUESTION, ANSWER]))
    assert first == affinity_of(raw([long, QUESTION]))
    assert first not in (affinity_of(raw([long, MORE])), affinity_of(raw([other, QUESTION])))


def test_token_ids():
    """Ids count by their first bytes, blanks left out."""
    assert affinity_of(b"[1, 2, 3]") == affinity_of(b"[1,2,3]") != affinity_of(b"[1,2,4]")
    assert affinity_of(raw(list(range(5000)))) == affinity_of(raw(list(range(6000))))


def test_a_system_prompt_beside_the_messages():
    """It counts with them, as text or as parts, and stands for itself where nothing else is given."""
    messages = raw([QUESTION])
    assert affinity_of(messages, raw("Be kind.")) == affinity_of(messages, raw([{"type": "text", "text": "Be kind."}]))
    assert affinity_of(messages, raw("Be kind.")) not in (affinity_of(messages), affinity_of(messages, raw("Be rude.")))
    assert affinity_of(b"", raw("Be kind.")) is not None
    assert affinity_of(messages, msgspec.Raw(raw(7))) == affinity_of(messages, raw(7))


def test_nothing_has_no_hash():
    """No prompt, no hash."""
    assert affinity_of(b"") is None
    assert affinity_of(msgspec.Raw(b"")) is None


@pytest.mark.parametrize(
    "odd",
    [
        b"null",
        b"{}",
        b"[]",
        b"[{}]",
        b'[{"role":"user"}]',
        b'[{"role":"user","content":{"a":1}},{"role":"assistant"}]',
        b'[{"role":"user","content":7}]',
        b'[{"role":"user","content":null}]',
        b'[{"role":"assistant","content":"only"}]',
        b'[{"name":"user","content":"x"},{"name":"user"},{"role":"system","content":"y"}]',
        b'["user" , "user", "user"]',
        b'[{"role":"user","content":"\xff"}]',
        b'"\\ud800 half"',
        b'"\\q"',
        raw([{"name": "user"}] * 20),
        b"[[1,2],[3]]",
    ],
)
def test_odd_prompts_have_a_hash(odd):
    """Whatever a client sends where a prompt should be, it has one hash, the same each time."""
    assert affinity_of(odd) == affinity_of(odd) is not None


def test_a_cut_that_no_message_survives_is_still_the_same_every_turn():
    """Messages of mixed key order fall back to the bytes of the beginning."""
    talk = [{"role": "user", "content": "x" * 3000}, {"content": "} odd", "role": "assistant"}]
    assert affinity_of(raw(talk)) == affinity_of(raw([*talk, MORE]))


def test_sessions():
    """A name has one hash, which is not that of a prompt with the same text."""
    assert session_of(b"a") == session_of(b"a") != session_of(b"b")
    assert 0 <= session_of(b"a") < 2**64
