"""How slow a worker usually is."""

from __future__ import annotations

import pytest

from routing.pace import LEAST_PROMPT_TOKENS, NEEDED, LowestUsual, WorkerPace


def test_nothing_is_said_of_few_samples() -> None:
    """A handful of requests is no habit."""
    lowest = LowestUsual()
    for _ in range(NEEDED - 1):
        lowest.add(100.0)
    assert lowest.known is None

    lowest.add(100.0)

    assert lowest.known == 100.0


def test_a_slow_one_counts_at_once_and_is_forgotten_slowly() -> None:
    """One long wait lowers what is usual; a hundred quick ones later it is what it was."""
    lowest = LowestUsual()
    for _ in range(50):
        lowest.add(100.0)
    lowest.add(20.0)
    assert lowest.known == 20.0

    lowest.add(100.0)
    assert lowest.known == 20.0
    for _ in range(100):
        lowest.add(100.0)
    assert lowest.known == 100.0


@pytest.mark.parametrize("sample", [0.0, -1.0])
def test_what_is_no_pace_is_no_sample(sample: float) -> None:
    """Nought would stay for ever."""
    lowest = LowestUsual()
    for _ in range(NEEDED):
        lowest.add(sample)

    assert lowest.known is None


def test_the_pace_of_a_worker() -> None:
    """Prompt tokens that were computed over the time to first token; the inverse of the time per token."""
    pace = WorkerPace()
    for _ in range(NEEDED):
        pace.take(12_000, 2_000, 2.0, 0.02)

    assert (pace.prefill.known, pace.decode.known) == (5000.0, 50.0)


@pytest.mark.parametrize(
    ("prompt", "cached", "ttft", "tpot"),
    [(None, None, 1.0, None), (LEAST_PROMPT_TOKENS - 1, 0, 1.0, None), (10_000, 9_900, 0.1, None), (10_000, 0, None, None)],
)
def test_what_says_nothing_of_the_pace(prompt: int | None, cached: int | None, ttft: float | None, tpot: float | None) -> None:
    """Short prompts, warm ones, and streams without tokens."""
    pace = WorkerPace()
    for _ in range(NEEDED):
        pace.take(prompt, cached, ttft, tpot)

    assert (pace.prefill.known, pace.decode.known) == (None, None)
