"""What drafts bring."""

from __future__ import annotations

import pytest

from roofline.speculation import most_tokens_per_step, speculative_tpot_seconds, tokens_per_step


@pytest.mark.parametrize(("drafts", "acceptance", "tokens"), [(0, 0.9, 1), (3, 0.0, 1), (3, 1.0, 4), (2, 0.5, 1.75)])
def test_tokens_are_kept_up_to_the_first_refusal(drafts: int, acceptance: float, tokens: float) -> None:
    """The i-th draft counts only if all before it were accepted."""
    assert tokens_per_step(drafts, acceptance) == tokens


def test_a_token_costs_its_share_of_verifying_and_drafting() -> None:
    """With 1.75 tokens a step, 10 ms of verifying and 4 ms of drafting are 8 ms a token."""
    assert speculative_tpot_seconds(0.010, 0.004, 2, 0.5) == pytest.approx(0.008)


def test_no_step_brings_more_than_its_drafts_and_one() -> None:
    """The bound that a floor under speculation uses."""
    assert most_tokens_per_step(3) == 4 >= tokens_per_step(3, 0.99)


@pytest.mark.parametrize(("drafts", "acceptance"), [(-1, 0.5), (2, 1.01), (2, -0.1), (2, float("nan"))])
def test_impossible_drafts_are_refused(drafts: int, acceptance: float) -> None:
    """Counts are not negative, chances lie between 0 and 1."""
    with pytest.raises(ValueError, match="drafts"):
        tokens_per_step(drafts, acceptance)
