"""Where throughput stops rising almost in proportion."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.capacity.decode_parts import decode_parts
from roofline.capacity.knee import knee, knees
from roofline.deployment import Deployment
from roofline.expected import DEFAULT_LOSSES
from roofline.shape import Recurrence
from tests.roofline.shapes import a_gpu, a_shape
from tests.roofline.workers import NO_LOSSES, a_worker, eta

VLLM = DEFAULT_LOSSES["vllm"]
LLAMA = a_worker("Llama-3.1-8B", "h100-sxm")
SMALL = Deployment(a_shape(), a_gpu())
CONTEXTS = (128, 2_048, 8_192, 32_768, 131_072)


def test_closed_form_by_hand() -> None:
    """42,000 B of weights against 160 B per token of context and 42,000 + 320 x context FLOP per sequence."""
    found = knee(SMALL, NO_LOSSES, 99)
    shared, cache, compute = 42_000 / 1e12, 100 * 160 / 1e12, (42_000 + 100 * 320) / 100e12

    assert found.batch == pytest.approx(shared / (cache + compute))
    assert found.cache_batch == pytest.approx(shared / cache)
    assert found.compute_batch == pytest.approx(shared / compute)
    assert 1 / found.batch == pytest.approx(1 / (shared / cache) + 1 / (shared / compute))
    assert found.ridge_batch is None  # memory stays the slower one at this context
    assert found.binds == "cache"


def test_halves_are_equal_at_the_knee() -> None:
    """What sequences share takes as long as what they add, experts or not."""
    for deployment in (LLAMA, a_worker("Qwen3-30B-A3B", "h100-sxm"), a_worker("gpt-oss-120b", "h100-sxm")):
        for found in knees(deployment, VLLM, (2_048, 8_192)):
            assert found.parts.shared_seconds == pytest.approx(found.batch * found.parts.own_seconds, rel=1e-6)


def test_marginal_throughput_at_the_knee_is_a_quarter() -> None:
    """Without overlap, one more sequence at the knee brings a quarter of what the first one brought (numerically)."""
    found = knee(LLAMA, VLLM, 4_096)
    shared, own = found.parts.shared_seconds, found.parts.own_seconds

    def throughput(batch: float) -> float:
        return batch / (shared + own * batch)

    step = 1e-4
    first = throughput(step) / step
    at_knee = (throughput(found.batch + step) - throughput(found.batch - step)) / (2 * step)
    assert at_knee / first == pytest.approx(0.25, rel=1e-3)
    assert throughput(found.batch) == pytest.approx(0.5 / own)


def test_real_throughput_flattens_behind_the_knee() -> None:
    """With overlap, as expected: doubling the batch below the knee brings over 60 percent, beyond it under 50."""
    found = knee(LLAMA, VLLM, 4_096)

    def gain(batch: float) -> float:
        once, twice = (decode_parts(LLAMA, VLLM, batch=size, context_tokens=4_096) for size in (batch, 2 * batch))
        return twice.tokens_per_second / once.tokens_per_second - 1

    assert gain(found.batch / 4) > 0.6
    assert gain(found.batch) < 0.5
    assert gain(found.batch * 4) < 0.2


def test_short_contexts_bend_at_the_ridge() -> None:
    """Where the cache is next to nothing, the knee is where arithmetic takes as long as reading weights."""
    found = knee(LLAMA, eta(1.0), 1)

    assert found.binds == "compute"
    assert found.ridge_batch == pytest.approx(found.compute_batch, rel=0.02)
    assert found.batch == pytest.approx(found.ridge_batch, rel=0.02)
    # 989.4 TFLOP/s and 3.35 TB/s: 295 FLOP per byte, two bytes a weight and two FLOP: a batch of about 295
    assert found.batch == pytest.approx(295, rel=0.02)


def test_arithmetic_and_memory_are_equal_at_the_ridge() -> None:
    """At the ridge batch a step's arithmetic takes as long as reading weights and cache."""
    found = knee(LLAMA, VLLM, 500)
    assert found.ridge_batch is not None

    at_ridge = decode_parts(LLAMA, VLLM, batch=found.ridge_batch, context_tokens=500)

    assert at_ridge.compute_seconds == pytest.approx(at_ridge.weights_seconds + at_ridge.cache_seconds)


def test_four_times_the_context_at_most_quarters_the_knee() -> None:
    """From 2K to 8K of context on the same card the knee falls, to between a quarter and the whole of it."""
    short, long = knees(LLAMA, VLLM, (2_048, 8_192))

    assert 0.25 * short.batch <= long.batch < short.batch


def test_the_knee_is_at_least_one_sequence() -> None:
    """A context whose cache takes longer than the weights bends at once."""
    assert knee(a_worker("Llama-2-7b", "a100-sxm4-80gb"), VLLM, 131_072).batch == 1.0


def test_states_of_fixed_size_bend_at_the_same_batch_everywhere() -> None:
    """Without a cache that grows the context does not matter."""
    shape = a_shape(mixer=Recurrence(state_elements=1_000, convolution_elements=0, flop_per_token=2_000.0))
    short, long = knees(Deployment(shape, a_gpu()), NO_LOSSES, (100, 100_000))

    assert short.batch == long.batch


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3-30B-A3B", "gpt-oss-20b"])
def test_table_falls_with_the_context(model: str) -> None:
    """A ceiling for the batch is a function of the context."""
    batches = [found.batch for found in knees(a_worker(model, "h100-sxm"), VLLM, CONTEXTS)]

    assert batches == sorted(batches, reverse=True)
    assert batches[0] > 10 * batches[-1]


@given(context=st.integers(1, 100_000), more=st.integers(1, 100_000))
def test_knee_never_rises_with_the_context(context: int, more: int) -> None:
    """Longer sequences never make a larger batch worth while."""
    assert knee(LLAMA, VLLM, context + more).batch <= knee(LLAMA, VLLM, context).batch
