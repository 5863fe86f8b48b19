"""Prompt tokens before anybody counted them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.estimate import TokenEstimate, estimate_tokens


def test_token_ids_are_exact():
    """A prompt given as ids has just so many tokens, and no template around it."""
    assert estimate_tokens(0, 700, is_ascii=True) == TokenEstimate(700, 700, 700)
    assert estimate_tokens(0, 0, is_ascii=True) == TokenEstimate(0, 0, 0)


@pytest.mark.parametrize(("is_ascii", "tokens"), [(True, 1008), (False, 1341)])
def test_text_is_estimated_from_its_bytes(is_ascii, tokens):
    """Four bytes a token in plain English, three in other texts, and what the template adds."""
    assert estimate_tokens(4000, 0, is_ascii=is_ascii) == TokenEstimate(tokens, 250, 4008)


@given(text_bytes=st.integers(0, 2**40), token_ids=st.integers(0, 2**20), is_ascii=st.booleans())
def test_the_interval_holds_the_estimate(text_bytes, token_ids, is_ascii):
    """The least is never above the likely number, nor that above the most."""
    estimate = estimate_tokens(text_bytes, token_ids, is_ascii=is_ascii)

    assert token_ids <= estimate.least <= estimate.tokens <= estimate.most
