"""How long a worker may say nothing."""

from __future__ import annotations

import pytest

from routing.patience import MOST_CONTEXT_TOKENS, expected_silence_seconds, first_byte_limit_seconds, held_tokens


def test_long_prompts_take_their_time() -> None:
    """A prompt of 100,000 tokens may be silent for minutes where nothing is known, and for as long as it takes where it is."""
    assert expected_silence_seconds(100_000, 0) == pytest.approx(200.0)
    assert expected_silence_seconds(100_000, 0, prefill_tokens_per_second=10_000) == pytest.approx(10.0)


def test_an_answer_in_one_piece_takes_its_time() -> None:
    """Its tokens are generated before anything comes."""
    assert expected_silence_seconds(0, 1000) == pytest.approx(200.0)
    assert expected_silence_seconds(500, 1000, decode_tokens_per_second=50) == pytest.approx(21.0)


@pytest.mark.parametrize(("expected", "limit"), [(None, 60.0), (5.0, 60.0), (100.0, 300.0)])
def test_the_limit_grows_with_what_is_expected(expected: float | None, limit: float) -> None:
    """It is never below what is configured, and stays so where nothing is known."""
    assert first_byte_limit_seconds(60.0, expected) == limit


@pytest.mark.parametrize(("max_model_len", "held"), [(32_768, 32_768), (None, MOST_CONTEXT_TOKENS)])
def test_no_more_is_waited_for_than_a_worker_can_hold(max_model_len: int | None, held: int) -> None:
    """A body of 64 MB is not worth hours: a worker refuses at once what it cannot hold. What fits counts as it is."""
    assert held_tokens(16_000_000, max_model_len) == held
    assert held_tokens(5_000, max_model_len) == 5_000
