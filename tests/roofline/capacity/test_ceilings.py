"""How many requests a worker should serve at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.capacity.ceilings import HARD_RATIO, RECOMMENDED_RATIO, Capacity, CapacityLimit, capacity, phase_ratio
from roofline.capacity.knee import knee
from roofline.capacity.memory import MemorySettings, memory_budget
from roofline.capacity.workload import Workload
from roofline.deployment import Deployment
from roofline.expected import DEFAULT_LOSSES
from roofline.models.known import find_shape
from tests.roofline.shapes import a_gpu
from tests.roofline.workers import a_worker, eta

VLLM = DEFAULT_LOSSES["vllm"]
CHAT = Workload(prompt_tokens=3_000, completion_tokens=500, max_completion_tokens=1_000)
BUDGET = memory_budget(a_worker("Llama-3.1-8B", "h100-sxm"))


def limits(found: Capacity) -> dict[CapacityLimit, float]:
    return {ceiling.limit: ceiling.sequences for ceiling in found.ceilings}


def test_every_ceiling_is_told_and_the_lowest_binds() -> None:
    """Cache, target, knee and the engine's own limit each have a number; the least of them is the capacity."""
    found = capacity(BUDGET, VLLM, CHAT, tpot_seconds=0.05)

    assert limits(found) == {
        CapacityLimit.KV_CACHE: BUDGET.sequences(4_000),
        CapacityLimit.TPOT_TARGET: found.service.largest_concurrency(0.05),
        CapacityLimit.KNEE: knee(BUDGET.deployment, VLLM, 3_250).batch,
        CapacityLimit.MAX_SEQUENCES: 1_024,
    }
    assert found.binds is CapacityLimit.KNEE
    assert found.theoretical_sequences == min(limits(found).values())
    assert found.ceiling(CapacityLimit.KNEE) == found.knee.batch


def test_ceilings_leave_headroom() -> None:
    """80 percent of the theoretical capacity at most, 70 percent recommended, or as asked for."""
    found = capacity(BUDGET, VLLM, CHAT, stops_at_knee=False)
    tighter = replace(found, hard_ratio=0.5, recommended_ratio=0.25)

    assert (HARD_RATIO, RECOMMENDED_RATIO) == (0.8, 0.7)
    assert found.binds is CapacityLimit.KV_CACHE
    assert found.theoretical_sequences == 112
    assert (found.max_concurrency, found.recommended_concurrency) == (89, 78)
    assert (tighter.max_concurrency, tighter.recommended_concurrency) == (56, 28)
    assert found.ceiling(CapacityLimit.KNEE) is None


def test_shares_are_not_lost_to_rounding() -> None:
    """70 percent of 90 is 63, although the product of the floats is a little less."""
    workload = Workload(prompt_tokens=3_000, completion_tokens=2_000)
    found = capacity(
        memory_budget(BUDGET.deployment, MemorySettings(kv_cache_bytes=90 * 131_072 * 5_008.0)),
        VLLM,
        workload,
        stops_at_knee=False,
    )

    assert found.theoretical_sequences == 90
    assert found.recommended_concurrency == 63


def test_memory_is_kept_for_the_longest_completion() -> None:
    """Twice the longest completion leaves room for fewer, though no request takes longer on average."""
    longer = replace(CHAT, max_completion_tokens=4_000)

    assert (
        capacity(BUDGET, VLLM, longer, stops_at_knee=False).max_concurrency
        < capacity(BUDGET, VLLM, CHAT, stops_at_knee=False).max_concurrency
    )


def test_a_shared_prefix_makes_room() -> None:
    """A prefix that all share is kept once, so more fit."""
    alike = capacity(BUDGET, VLLM, CHAT, stops_at_knee=False, shared_tokens=2_000)

    assert alike.ceiling(CapacityLimit.KV_CACHE) == BUDGET.sequences(4_000, 2_000) > BUDGET.sequences(4_000)


def test_the_engines_own_limit_counts() -> None:
    """--max-num-seqs binds where it is lower than everything else."""
    budget = memory_budget(BUDGET.deployment, MemorySettings(max_sequences=4))
    found = capacity(budget, VLLM, CHAT)

    assert (found.binds, found.max_concurrency, found.recommended_concurrency) == (CapacityLimit.MAX_SEQUENCES, 3, 2)


def test_one_request_that_fits_is_served() -> None:
    """Headroom does not take away the only one there is room for; without any room nothing is served."""
    one = memory_budget(BUDGET.deployment, MemorySettings(kv_cache_bytes=131_072 * 4_000.0))
    none = memory_budget(a_worker("Llama-3.1-70B", "h100-sxm"))

    assert capacity(one, VLLM, CHAT).max_concurrency == 1
    found = capacity(none, VLLM, CHAT)
    assert (found.max_concurrency, found.steady(), found.at_rate(1.0)) == (0, None, None)


def test_twenty_requests_do_not_fit_a_24_gb_card() -> None:
    """8B in 16 bit with 20 sequences of 4,096 tokens takes more than a card of 24 GB has, before any headroom."""
    budget = memory_budget(a_worker("Llama-3.1-8B", "rtx-4090"))
    needed = budget.weight_bytes + 20 * budget.sequence_bytes(4_096)

    assert needed / 24e9 > 1.03
    assert capacity(budget, VLLM, Workload(prompt_tokens=3_596, completion_tokens=500)).max_concurrency < 20


def test_steady_states_at_the_limit_and_at_a_rate() -> None:
    """What the limit serves is the most that may come."""
    found = capacity(BUDGET, VLLM, CHAT, tpot_seconds=0.05)
    at_limit = found.steady()
    assert at_limit is not None
    assert at_limit.concurrency == found.max_concurrency
    assert at_limit.tpot_seconds is not None
    assert at_limit.tpot_seconds < 0.05

    below, above = (found.at_rate(at_limit.rate_per_second * share) for share in (0.9, 1.1))
    assert below is not None
    assert above is not None
    assert below.steady is not None
    assert below.load_ratio == pytest.approx(0.9)
    assert above.steady is None


def test_decoding_elsewhere_frees_the_target() -> None:
    """Without prefills in between more may decode at once before TPOT misses its target."""
    here, elsewhere = (
        capacity(BUDGET, VLLM, CHAT, tpot_seconds=0.03, prefills_elsewhere=away).ceiling(CapacityLimit.TPOT_TARGET) or 0.0
        for away in (False, True)
    )

    assert elsewhere > 1.2 * here


@pytest.mark.parametrize("ratios", [(0.7, 0.8), (1.1, 0.5), (0.8, 0.0)])
def test_ceilings_that_are_none_are_refused(ratios: tuple[float, float]) -> None:
    """Recommended is at most the hard one, and both are shares."""
    with pytest.raises(ValueError, match="0 < recommended <= hard <= 1"):
        capacity(BUDGET, VLLM, CHAT, hard_ratio=ratios[0], recommended_ratio=ratios[1])


@pytest.mark.parametrize(("batch", "ratio", "tolerance"), [(4, 2.39, 0.02), (16, 0.7, 0.05), (32, 0.4, 0.05)])
def test_prefill_and_decode_instances(batch: int, ratio: float, tolerance: float) -> None:
    """2,000 tokens in, 200 out, 8B at 40 percent of 300 TFLOP/s and 70 percent of 2 TB/s: 1:2.39 at batch 4, 1:0.4 at 32."""
    worker = Deployment(find_shape("Llama-3.1-8B"), a_gpu(flop_per_second=300e12, bytes_per_second=2e12))
    workload = Workload(prompt_tokens=2_000, completion_tokens=200)

    found = phase_ratio(worker, eta(0.7, compute_ratio=0.4), workload, decode_batch=batch)

    assert found.decode_per_prefill_ratio == pytest.approx(ratio, abs=tolerance)


@settings(max_examples=50)
@given(prompt=st.integers(1, 50_000), more=st.integers(0, 50_000))
def test_capacity_never_grows_with_the_context(prompt: int, more: int) -> None:
    """Longer prompts never let more be served at once."""
    short, long = (
        capacity(BUDGET, VLLM, Workload(prompt_tokens=tokens, completion_tokens=300), tpot_seconds=0.05)
        for tokens in (prompt, prompt + more)
    )

    assert long.theoretical_sequences <= short.theoretical_sequences * (1 + 1e-9)
    assert long.max_concurrency <= short.max_concurrency
