"""The figures of a situation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roofline.capacity.ceilings import capacity
from roofline.capacity.memory import memory_budget
from roofline.capacity.standing import Situation, standing
from roofline.capacity.workload import Workload
from roofline.expected import DEFAULT_LOSSES
from tests.roofline.workers import a_worker

VLLM = DEFAULT_LOSSES["vllm"]
CHAT = Workload(prompt_tokens=3_000, completion_tokens=500, max_completion_tokens=1_000)
HERE = Situation(deployment=a_worker("Llama-3.1-8B", "h100-sxm"), losses=VLLM, workload=CHAT)


def test_figures_are_those_of_budget_and_capacity() -> None:
    """Without a concurrency the worker is taken as full as it may be."""
    budget = memory_budget(HERE.deployment)
    found = capacity(budget, VLLM, CHAT, stops_at_knee=False)
    full = found.steady()
    assert full is not None

    here = standing(HERE)

    assert (here.weight_bytes, here.gpu_weight_bytes) == (HERE.deployment.weight_bytes, budget.weight_bytes)
    assert here.kv_capacity_tokens == budget.tokens()
    assert here.max_concurrency == here.batch == found.max_concurrency
    assert (here.ttft_seconds, here.tpot_seconds, here.tokens_per_second) == (
        full.ttft_seconds,
        full.tpot_seconds,
        full.tokens_per_second,
    )
    assert (here.gpus, here.missing_bytes) == (1, 0.0)


@pytest.mark.parametrize(("asked", "batch"), [(8.0, 8.0), (1e6, 89.0)])
def test_a_concurrency_counts_as_far_as_there_is_room(asked: float, batch: float) -> None:
    """What is asked for is served, but not more than may be."""
    assert standing(replace(HERE, concurrency=asked)).batch == batch


def test_what_does_not_fit_has_no_latency() -> None:
    """A model that does not fit has weights, and nothing else."""
    here = standing(replace(HERE, deployment=a_worker("Llama-3.1-70B", "h100-sxm")))

    assert here.missing_bytes > 0
    assert (here.kv_capacity_tokens, here.max_concurrency, here.batch) == (0, 0, None)
    assert (here.ttft_seconds, here.tpot_seconds, here.tokens_per_second) == (None, None, None)


def test_steps_that_take_longer() -> None:
    """A tenth of a second more in each step is in TTFT, in TPOT, and in throughput."""
    plain, slow = standing(replace(HERE, concurrency=4.0)), standing(replace(HERE, concurrency=4.0), added_step_seconds=0.1)

    assert slow.ttft_seconds == pytest.approx((plain.ttft_seconds or 0.0) + 0.1)
    assert slow.tpot_seconds == pytest.approx((plain.tpot_seconds or 0.0) + 0.1)
    assert slow.tokens_per_second == pytest.approx(4 * 500 / ((slow.ttft_seconds or 0) + 499 * (slow.tpot_seconds or 0)))
