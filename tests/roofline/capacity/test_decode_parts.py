"""A decode step by what its time goes to."""

from __future__ import annotations

import pytest

from roofline.capacity.decode_parts import decode_parts
from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES, expected
from roofline.work import Span
from tests.roofline.shapes import a_gpu, a_shape
from tests.roofline.workers import a_worker, eta

VLLM = DEFAULT_LOSSES["vllm"]
WORKERS = {
    "dense": a_worker("Llama-3.1-8B", "h100-sxm"),
    "more GPUs than key-value heads": a_worker("Llama-3.1-70B", "h100-sxm", tensor=16),
    "experts": a_worker("Qwen3-30B-A3B", "h100-sxm"),
    "latent": a_worker("DeepSeek-V3", "h200-sxm", weights="fp8-block", tensor=8),
    "data-parallel": a_worker("DeepSeek-V3", "h200-sxm", weights="fp8-block", data=8, expert=True),
    "windows": a_worker("gpt-oss-20b", "h100-sxm"),
    "states": a_worker("Qwen3-Next-80B-A3B-Instruct", "h200-sxm", tensor=2),
}


def test_parts_by_hand() -> None:
    """The small shape reads 42,000 B of weights, 160 B per cached token, and multiplies 21,000 weights a sequence."""
    parts = decode_parts(Deployment(a_shape(), a_gpu()), eta(0.5), batch=10, context_tokens=99)

    assert parts.weights_seconds == pytest.approx(42_000 / 0.5e12)
    assert parts.cache_seconds == pytest.approx(10 * 100 * 160 / 0.5e12)  # 99 read, one written
    assert parts.compute_seconds == pytest.approx(10 * (42_000 + 100 * 320) / 50e12)
    assert parts.shared_seconds == parts.weights_seconds
    assert parts.own_seconds == pytest.approx((parts.cache_seconds + parts.compute_seconds) / 10)
    assert parts.step_seconds == pytest.approx(parts.weights_seconds + parts.cache_seconds)
    assert parts.tokens_per_second == pytest.approx(10 / parts.step_seconds)


@pytest.mark.parametrize(("batch", "sequences"), [(1, 1), (2, 1), (10, 2.5)])
def test_data_parallel_ranks_read_weights_each(batch: int, sequences: float) -> None:
    """Each rank reads all weights, and the caches of its own sequences."""
    parts = decode_parts(
        Deployment(a_shape(), a_gpu(), parallelism=Parallelism(data=4)), eta(1.0), batch=batch, context_tokens=99
    )

    assert parts.weights_seconds == pytest.approx(42_000 / 1e12)
    assert parts.cache_seconds == pytest.approx(sequences * 100 * 160 / 1e12)


@pytest.mark.parametrize("name", WORKERS)
@pytest.mark.parametrize("batch", [1, 7.5, 64, 2_000])
@pytest.mark.parametrize("context", [1, 4_000, 100_000])
def test_parts_add_up_to_the_expected_step(name: str, batch: float, context: int) -> None:
    """However a model is built and split, the parts make the step that `expected` has."""
    parts = decode_parts(WORKERS[name], VLLM, batch=batch, context_tokens=context)

    assert parts.step_seconds == pytest.approx(expected(WORKERS[name], [Span(context, 1, batch)], VLLM).seconds, rel=1e-9)


@pytest.mark.parametrize(("batch", "context"), [(0.5, 10), (1, -1)])
def test_no_step_without_a_sequence(batch: float, context: int) -> None:
    """Less than one sequence, or a context below nothing, is refused."""
    with pytest.raises(ValueError, match="a step has a sequence"):
        decode_parts(WORKERS["dense"], VLLM, batch=batch, context_tokens=context)
