"""What is asked of latency."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roofline.capacity.targets import BATCH_JOB, CHAT, CUSTOMER_SERVICE, JITTER_RATIO, PRESETS, Targets, Verdict, targets_named


@pytest.mark.parametrize(
    ("targets", "seconds", "verdict"),
    [
        (CHAT, 0.5, Verdict.GOOD),
        (CHAT, 0.51, Verdict.ACCEPTABLE),
        (CHAT, 1.0, Verdict.ACCEPTABLE),
        (CHAT, 1.01, Verdict.MISSED),
        (CUSTOMER_SERVICE, 1.5, Verdict.ACCEPTABLE),
        (CUSTOMER_SERVICE, 1.51, Verdict.MISSED),
        (BATCH_JOB, 1_000.0, Verdict.NO_TARGET),
        (replace(BATCH_JOB, ttft_good_seconds=1.0), 2.0, Verdict.ACCEPTABLE),
        (replace(BATCH_JOB, ttft_seconds=1.0), 0.5, Verdict.GOOD),
    ],
)
def test_first_tokens(targets: Targets, seconds: float, verdict: Verdict) -> None:
    """Half a second is good, a chat doubts after one, customers wait for one and a half, a batch job does not care."""
    assert targets.ttft_verdict(seconds) is verdict


@pytest.mark.parametrize(
    ("targets", "seconds", "verdict"),
    [
        (CHAT, 0.024, Verdict.NO_GAIN),
        (CHAT, 0.025, Verdict.GOOD),
        (CHAT, 0.030, Verdict.GOOD),
        (CHAT, 0.050, Verdict.GOOD),
        (CHAT, 0.051, Verdict.MISSED),
        (BATCH_JOB, 10.0, Verdict.NO_TARGET),
    ],
)
def test_tokens_after_it(targets: Targets, seconds: float, verdict: Verdict) -> None:
    """30 to 50 ms read naturally, nobody notices what is below 25."""
    assert targets.tpot_verdict(seconds) is verdict


@pytest.mark.parametrize(("p99", "verdict"), [(0.060, Verdict.GOOD), (0.061, Verdict.MISSED)])
def test_evenness(p99: float, verdict: Verdict) -> None:
    """P99 above one and a half times the median is felt."""
    assert CHAT.jitter_verdict(p99, 0.040) is verdict
    assert BATCH_JOB.jitter_verdict(p99, 0.040) is Verdict.NO_TARGET
    assert JITTER_RATIO == 1.5
    with pytest.raises(ValueError, match="the median of TPOT is above 0"):
        CHAT.jitter_verdict(p99, 0.0)


def test_presets_have_names_and_sources() -> None:
    """Each can be asked for by name, however it is written, and says where its figures are from."""
    assert targets_named("Customer_Service") is CUSTOMER_SERVICE
    assert all(targets.source for targets in PRESETS.values())
    with pytest.raises(ValueError, match="there are chat, customer-service, batch"):
        targets_named("telepathy")


@pytest.mark.parametrize(
    "changes", [{"ttft_good_seconds": 2.0}, {"tpot_no_gain_seconds": 0.06}, {"tpot_seconds": 0.0}, {"ttft_seconds": -1.0}]
)
def test_ladders_that_fall_are_refused(changes: dict[str, float]) -> None:
    """Overridden thresholds must still rise from best to worst."""
    with pytest.raises(ValueError, match="targets of chat are positive and rise"):
        replace(CHAT, **changes)
