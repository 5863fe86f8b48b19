"""The tokens of a simulated model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.prefix import count_tokens
from simulator.text import Wish, write_output
from simulator.vocabulary import (
    SPACED_WORDS,
    WORDS,
    ids_of_text,
    is_known,
    text_of_ids,
    tokens_of,
    tokens_of_ids,
    without_space,
)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_ids_turn_back_into_their_text(text):
    """Whatever a text is, its ids say it, if there are no zeros in it."""
    assert text_of_ids(ids_of_text(text)) == text


@given(st.text())
def test_a_text_has_as_many_ids_as_the_engine_counts(text):
    """Both ways of counting a prompt agree."""
    assert len(ids_of_text(text)) == count_tokens(text)


def test_ids_of_an_answer_turn_into_its_text():
    """What the model says can be read from its ids, the end token by its name."""
    output = write_output(b"prompt", Wish(limit_tokens=40, ignores_end=True))

    assert text_of_ids([token.identifier for token in output.tokens]) == output.text()


def test_the_first_word_of_a_text_has_no_space():
    """The same word is another token there."""
    token = SPACED_WORDS[3]

    assert (token.text, without_space(token).text) == (f" {WORDS[3]}", WORDS[3])
    assert token.identifier != without_space(token).identifier


def test_there_is_room_for_all_words():
    """Words with and without space have ids of their own."""
    ids = [each.identifier for token in SPACED_WORDS for each in (token, without_space(token))]

    assert len(ids) == len(set(ids)) == 2 * len(WORDS)


@given(st.text())
def test_a_given_text_is_the_texts_of_its_tokens(text):
    """Cut into tokens a text is the same text."""
    assert "".join(token.text for token in tokens_of(text)) == text


def test_tokens_of_ids_are_spelled():
    """Each token of a prompt can be read by itself."""
    assert [token.spelling for token in tokens_of_ids(ids_of_text("Tell me"))] == ["Tell", " me"]


@pytest.mark.parametrize("number", [-1, 1 << 32])
def test_ids_outside_the_vocabulary_are_refused(number):
    """There is no text for them."""
    assert not is_known(number)
    with pytest.raises(ValueError, match=f"Token id {number} is out of vocabulary"):
        text_of_ids([number])
