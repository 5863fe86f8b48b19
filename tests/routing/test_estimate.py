"""Prompt tokens before anybody counted them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.estimate import PRIORS, UNLEARNED, Prompt, TokenEstimate, estimate, estimate_by_size
from routing.estimate_prompt import read_prompt
from routing.estimate_text import FEATURES, NOTHING, Mix


def test_token_ids_are_exact():
    """A prompt given as ids has just so many tokens, and no template around it."""
    assert estimate(Prompt(NOTHING, has_text=False, token_ids=700), UNLEARNED) == TokenEstimate(700, 700, 700)


def test_every_feature_has_a_prior_within_its_bounds():
    """Nothing starts where it may not be."""
    assert set(PRIORS) == set(FEATURES)
    assert all(least <= likely <= most and unsure > 0 for likely, unsure, least, most in PRIORS.values())


def test_images_count_as_configured_and_widen_the_interval_upwards():
    """What an image takes depends on its size: at least nothing, likely the allowance, at most twice that."""
    prompt = Prompt(read_prompt(b'"hello"').counts, images=2, audios=1)
    without = estimate(prompt, UNLEARNED)

    found = estimate(prompt, UNLEARNED, image_tokens=1000, audio_tokens=300)

    assert (found.tokens, found.least, found.most) == (without.tokens + 2300, without.least, without.most + 4600)


COUNTS = st.tuples(*(st.floats(0, 1e9) for _ in FEATURES))


@given(counts=COUNTS, mix=st.sampled_from(Mix), ids=st.integers(0, 2**20))
def test_the_interval_holds_the_estimate(counts, mix, ids):
    """The least is never above the likely number, nor that above the most, and none is negative."""
    found = estimate(Prompt(counts, mix, token_ids=ids), UNLEARNED)

    assert ids <= found.least <= found.tokens <= found.most


@pytest.mark.parametrize(("is_ascii", "tokens"), [(True, 921), (False, 1201)])
def test_by_size_alone(is_ascii, tokens):
    """Where nothing hangs on it a ratio will do; no text has more tokens than bytes."""
    assert estimate_by_size(4000, UNLEARNED, is_ascii=is_ascii) == TokenEstimate(tokens, 0, 4030)
