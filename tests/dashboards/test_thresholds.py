"""Thresholds fit the histograms that they are read from, and each other."""

from __future__ import annotations

from itertools import pairwise

from dashboards import thresholds
from telemetry.buckets import ATTAINED_BOUNDS, FIRST_TOKEN_BOUNDS, TOKEN_GAP_BOUNDS


def test_objectives_are_bounds_of_their_histograms() -> None:
    """A share below an objective can be read off only where the objective is a bucket's bound."""
    ttft = {thresholds.TTFT_GOOD_SECONDS, thresholds.TTFT_SECONDS, thresholds.TTFT_FAR_OFF_SECONDS}
    attained = {thresholds.ATTAINED_GOOD_RATIO, thresholds.ATTAINED_RATIO, thresholds.ATTAINED_FAR_OFF_RATIO}

    assert ttft <= set(FIRST_TOKEN_BOUNDS)
    assert thresholds.TPOT_SECONDS in TOKEN_GAP_BOUNDS
    assert attained <= set(ATTAINED_BOUNDS)


def test_a_felt_stall_can_be_seen_between_bounds() -> None:
    """Where TPOT usually lies, two neighbouring bounds are nearer to each other than a stall is to the median."""
    usual = [bound for bound in TOKEN_GAP_BOUNDS if 0.004 <= bound <= 0.2]

    assert all(upper / lower <= 1.25 + 1e-9 for lower, upper in pairwise(usual))
    assert all(upper / lower < thresholds.TPOT_JITTER_RATIO for lower, upper in pairwise(usual))
