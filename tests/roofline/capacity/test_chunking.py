"""How large a chunk of a prompt may be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.capacity.chunking import (
    FIRST_CHUNK_TOKENS,
    LARGEST_CHUNK_TOKENS,
    SMALLEST_CHUNK_TOKENS,
    ChunkLimit,
    Direction,
    chunk_direction,
    recommend_chunk,
)
from roofline.capacity.workload import Workload
from roofline.expected import DEFAULT_LOSSES, expected
from roofline.work import Span
from tests.roofline.workers import a_worker

VLLM = DEFAULT_LOSSES["vllm"]
LLAMA = a_worker("Llama-3.1-8B", "h100-sxm")
LONG = Workload(prompt_tokens=8_000, completion_tokens=300)


def test_the_usual_range() -> None:
    """512 to 2,048 tokens, starting from 1,024."""
    assert SMALLEST_CHUNK_TOKENS == 512
    assert LARGEST_CHUNK_TOKENS == 2_048
    assert SMALLEST_CHUNK_TOKENS < FIRST_CHUNK_TOKENS < LARGEST_CHUNK_TOKENS


def test_a_tpot_target_leaves_room_for_the_largest() -> None:
    """With 60 ms a token an H100 computes 2,048 tokens of an 8B model beside 16 sequences within 90 ms."""
    found = recommend_chunk(LLAMA, VLLM, LONG, batch=16, tpot_seconds=0.06)

    assert (found.chunk_tokens, found.limited_by) == (2_048, ChunkLimit.LARGEST)
    assert found.limit_seconds == pytest.approx(0.09)
    assert found.step_seconds < found.limit_seconds
    assert found.budget_tokens == 2_048 + 16
    assert found.steps_per_prompt == 4
    assert found.prefill_seconds == pytest.approx(4 * found.step_seconds)


def test_jitter_limits_the_chunk() -> None:
    """In between, the chunk is the largest multiple of 64 whose step keeps the limit."""
    found = recommend_chunk(LLAMA, VLLM, LONG, batch=16, tpot_seconds=0.03)
    beyond = recommend_chunk(LLAMA, VLLM, LONG, batch=16, tpot_seconds=0.03, smallest_tokens=found.chunk_tokens + 64)

    assert found.limited_by is ChunkLimit.JITTER
    assert 512 < found.chunk_tokens < 2_048
    assert found.chunk_tokens % 64 == 0
    assert found.step_seconds <= found.limit_seconds
    assert beyond.limited_by is ChunkLimit.SMALLEST
    assert beyond.step_seconds > beyond.limit_seconds


def test_too_slow_a_card_keeps_the_smallest() -> None:
    """Where even 512 tokens take too long, the smallest is told, and that it is too much."""
    found = recommend_chunk(a_worker("Llama-3.1-8B", "l4"), VLLM, LONG, batch=4)

    assert (found.chunk_tokens, found.limited_by) == (512, ChunkLimit.SMALLEST)
    assert found.step_seconds > found.limit_seconds


def test_without_a_target_the_usual_step_is_the_measure() -> None:
    """One and a half times a step without a chunk."""
    found = recommend_chunk(LLAMA, VLLM, LONG, batch=16)
    usual = expected(LLAMA, (Span(8_150, 1, 16),), VLLM).seconds

    assert found.decode_step_seconds == pytest.approx(usual)
    assert found.limit_seconds == pytest.approx(1.5 * usual)


def test_a_short_prompt_is_one_chunk() -> None:
    """Prompts shorter than the chunk take one step, cached tokens none."""
    short = Workload(prompt_tokens=300, completion_tokens=300)
    cached = replace(LONG, cached_tokens=7_900)

    assert recommend_chunk(LLAMA, VLLM, short, batch=8, tpot_seconds=0.05).steps_per_prompt == 1
    assert recommend_chunk(LLAMA, VLLM, cached, batch=8, tpot_seconds=0.05).steps_per_prompt == 1


@pytest.mark.parametrize(
    ("is_ttft_missed", "is_jitter_high", "direction"),
    [
        (True, False, Direction.LARGER),
        (False, True, Direction.SMALLER),
        (False, False, Direction.KEEP),
        (True, True, Direction.NEITHER),
    ],
)
def test_which_way_to_move(is_ttft_missed: bool, is_jitter_high: bool, direction: Direction) -> None:
    """A missed TTFT wants larger chunks, jitter smaller ones; both together neither."""
    assert chunk_direction(is_ttft_missed=is_ttft_missed, is_jitter_high=is_jitter_high) is direction


@pytest.mark.parametrize("wrong", [{"batch": 0.5}, {"smallest_tokens": 0}, {"smallest_tokens": 2_000, "largest_tokens": 1_000}])
def test_no_range_no_answer(wrong: dict[str, float]) -> None:
    """An empty range or no sequence beside it is refused."""
    with pytest.raises(ValueError, match="make no range"):
        recommend_chunk(LLAMA, VLLM, LONG, **{"batch": 4, **wrong})  # type: ignore[arg-type]


@given(tpot=st.floats(0.005, 0.2), more=st.floats(0.0, 0.2))
def test_more_patience_never_shrinks_the_chunk(tpot: float, more: float) -> None:
    """A looser target allows at least as large a chunk."""
    tight, loose = (recommend_chunk(LLAMA, VLLM, LONG, batch=16, tpot_seconds=seconds) for seconds in (tpot, tpot + more))

    assert loose.chunk_tokens >= tight.chunk_tokens
