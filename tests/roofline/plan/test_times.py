"""Prefill and decode of a plan, by hand and as the sum of their parts."""

from __future__ import annotations

import pytest

from roofline.capacity.workload import Workload
from roofline.plan.plan import make_plan
from roofline.plan.times import decode_times, prefill_times
from tests.roofline.plans import VLLM, a_deployment, a_plan_at, a_question, the_plan

LAYER_PARAMETERS = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336  # Llama-3.1-8B
READ_BYTES = 2 * (32 * (LAYER_PARAMETERS + 2 * 4096) + 4096 + 128256 * 4096)  # all weights but the embedding
PEAK, BANDWIDTH = 989.4e12, 3.35e12  # H100


def test_prefill_by_hand():
    """2 x parameters x tokens, causal pairs x layers x 4 x heads x head size, and the head once."""
    prefill = the_plan().prefill

    assert prefill.linear_flop == 2 * 32 * LAYER_PARAMETERS * 2000
    assert prefill.attention_flop == 2000 * 2001 / 2 * 32 * 4 * 32 * 128
    assert prefill.head_flop == 2 * 128256 * 4096
    assert prefill.limit.flop == prefill.linear_flop + prefill.attention_flop + prefill.head_flop
    assert prefill.limit.floor_seconds == pytest.approx(prefill.limit.flop / PEAK)
    assert prefill.limit.expected_seconds == pytest.approx(prefill.limit.flop / PEAK / 0.46 + 32 * 48.2e-6)


def test_decode_by_hand():
    """All weights but the embedding, and the cache half way through the answer, over the bandwidth."""
    decode = the_plan().decode
    moved = READ_BYTES + 2250 * 131_072

    assert decode.least_weight_bytes == READ_BYTES
    assert decode.least_cache_bytes == pytest.approx(2250 * 131_072)
    assert decode.alone.floor_seconds == pytest.approx(moved / BANDWIDTH)
    assert decode.alone.expected_seconds == pytest.approx(moved / BANDWIDTH / 0.70 + 32 * 48.2e-6)


def test_a_batch_reads_weights_once():
    """32 requests read the weights once and the cache of each."""
    decode = a_plan_at(32).decode

    assert decode.weight_bytes == READ_BYTES
    assert decode.cache_bytes == pytest.approx(32 * 2251 * 131_072)  # read 2250 tokens, written one
    assert decode.batch.reference_seconds == pytest.approx((READ_BYTES + 32 * 2250 * 131_072) / BANDWIDTH, rel=1e-3)
    assert decode.intensity_flop_per_byte == decode.flop / (decode.weight_bytes + decode.cache_bytes)
    assert decode.binds == "memory"


def test_the_batch_at_the_ridge_is_the_ridge_of_two_byte_weights():
    """With 16-bit weights one token does one FLOP a byte, so that the batch at the ridge is the ridge itself."""
    plan = the_plan()

    assert plan.decode.ridge_batch == pytest.approx(plan.deployment.ridge_flop_per_byte, rel=1e-3)
    assert plan.deployment.ridge_flop_per_byte == pytest.approx(PEAK / BANDWIDTH)


@pytest.mark.parametrize("cached", [0, 1, 1000, 1999, 2000])
def test_parts_add_up(cached):
    """Whatever is cached, FLOP by class sum up to the floor's, and one token at least is computed."""
    workload = Workload(prompt_tokens=2000, completion_tokens=500, cached_tokens=cached)
    for deployment in (a_deployment(), a_deployment("deepseek-v3", "h200-sxm", tensor=8), a_deployment("gpt-oss-120b")):
        times = prefill_times(deployment, VLLM, workload, 8192)
        assert times.new_tokens == max(1, 2000 - cached)
        total = times.linear_flop + times.attention_flop + times.head_flop
        assert total == pytest.approx(times.limit.flop) == pytest.approx(times.least.flop)
        expected = times.expected.seconds + VLLM.request_overhead_seconds
        assert expected == pytest.approx(times.limit.expected_seconds)


@pytest.mark.parametrize(("batched", "steps"), [(8192, 1), (2000, 1), (1999, 2), (512, 4)])
def test_prompts_are_cut_into_the_steps_of_the_engine(batched, steps):
    """A prompt takes as many steps as the tokens in a step ask for; the reference is never below the floor."""
    workload = Workload(prompt_tokens=2000, completion_tokens=500)
    times = prefill_times(a_deployment(), VLLM, workload, batched)

    assert times.steps == steps
    assert times.limit.floor_seconds <= times.limit.reference_seconds <= times.limit.expected_seconds


def test_experts_make_the_batch_read_more():
    """A request alone reads its chosen experts, a batch nearly all; of the floor only the chosen count."""
    plan = make_plan(a_deployment("qwen3-30b-a3b"), a_question(concurrency=40))

    assert plan.decode.least_weight_bytes < 0.15 * plan.deployment.weight_bytes
    assert 0.9 * plan.deployment.weight_bytes < plan.decode.weight_bytes < plan.deployment.weight_bytes


def test_an_answer_of_one_token_is_timed_as_two():
    """TPOT needs a token after the first; that of an answer without one is told as if there were one."""
    workload = Workload(prompt_tokens=100, completion_tokens=1)
    assert decode_times(a_deployment(), VLLM, workload, 1.0).alone.expected_seconds > 0
