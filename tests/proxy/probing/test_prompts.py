"""Prompts of about so many tokens."""

from __future__ import annotations

import pytest

from proxy.probing.prompts import PromptMaker, learned, words_text


def test_two_counts_tell_the_template_and_the_words() -> None:
    """What words cost and what comes on top follows from two texts."""
    maker = learned([(64, 100), (512, 660)])

    assert maker.tokens_per_word == pytest.approx(1.25)
    assert maker.overhead_tokens == pytest.approx(20)
    assert len(maker.text(1020, "salt").split()) == 1 + 800


@pytest.mark.parametrize("measured", [[], [(64, 80)], [(64, 80), (64, 80)], [(64, 80), (512, 70)]])
def test_without_two_sensible_counts_a_word_is_a_token(measured: list[tuple[int, int]]) -> None:
    """Nothing is made up of what makes no sense."""
    assert learned(measured) == PromptMaker()


def test_texts_differ_from_the_first_word_on() -> None:
    """No prefix cache can hold one for another, and the same salt gives the same text."""
    one, other = words_text(50, "a1"), words_text(50, "b2")

    assert one.split()[0] != other.split()[0]
    assert one == words_text(50, "a1")
    assert len(PromptMaker().text(0, "x").split()) == 2
