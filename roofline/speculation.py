"""Speculative decoding: how many tokens a step brings, and what one then costs.

A step verifies ``drafts`` proposed tokens and one more of its own; tokens are kept up to the first that is refused.
"""

from __future__ import annotations


def tokens_per_step(drafts: int, acceptance_ratio: float) -> float:
    """Mean tokens that a step keeps, at least 1 and at most ``drafts + 1``: the sum of a^i for i = 0..drafts.

    ``acceptance_ratio`` (0-1) is the chance that a draft is accepted after all before it were (vLLM's accepted over drafted
    tokens is lower, since drafts behind a refused one count there). ``ValueError`` outside its range.
    """
    if not 0.0 <= acceptance_ratio <= 1.0 or drafts < 0:
        raise ValueError(f"drafts are at least 0 and the acceptance lies in 0-1, not {drafts} and {acceptance_ratio}")
    return float(sum(acceptance_ratio**position for position in range(drafts + 1)))


def speculative_tpot_seconds(step_seconds: float, draft_seconds: float, drafts: int, acceptance_ratio: float) -> float:
    """Mean seconds a token: a verifying step (`Span` with ``new = logits = drafts + 1``) and the drafting before it.

    ``draft_seconds`` covers all drafts of one step: one pass of an MTP layer each, ``drafts`` steps of a small model, or 0 for
    lookup in the prompt.
    """
    return (step_seconds + draft_seconds) / tokens_per_step(drafts, acceptance_ratio)


def most_tokens_per_step(drafts: int) -> int:
    """Tokens a step brings if every draft is accepted: a floor for TPOT under speculation is the step's floor over this."""
    return drafts + 1
