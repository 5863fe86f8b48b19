"""Load and latency of a plan for programs."""

from __future__ import annotations

from roofline.capacity.queueing import Steady
from roofline.plan.load import Load
from roofline.plan.plan import Plan

Json = dict[str, object]


def latency_of(plan: Plan) -> Json:
    """What one request sees; all but ``alone_e2e_seconds`` is null if not one fits."""
    found = plan.latency
    return {
        "alone_e2e_seconds": plan.alone_e2e_seconds,
        "concurrency": found.running if found else None,
        "ttft_seconds": found.ttft_seconds if found else None,
        "ttft_wait_seconds": found.wait_seconds if found else None,
        "tpot_seconds": found.tpot_seconds if found else None,
        "tpot_interference_seconds": found.interference_seconds if found else None,
        "e2e_seconds": found.e2e_seconds if found else None,
        "user_tokens_per_second": found.user_tokens_per_second if found else None,
        "tokens_per_second": found.tokens_per_second if found else None,
        "requests_per_second": found.requests_per_second if found else None,
    }


def capacity_of(plan: Plan, load: Load) -> Json:
    """How much the worker serves."""
    found = load.capacity
    at_rate = load.at_rate
    return {
        "binds": found.binds.value,
        "theoretical_concurrency": found.theoretical_sequences,
        "hard_concurrency": found.max_concurrency,
        "recommended_concurrency": found.recommended_concurrency,
        "ceilings": [{"limit": ceiling.limit.value, "concurrency": ceiling.sequences} for ceiling in found.ceilings],
        "recommended": steady_of(load.planned),
        "saturation": steady_of(load.saturation),
        "warm_saturation": steady_of(load.warm_saturation),
        "at_rate": steady_of(at_rate.steady if at_rate else None),
        "load_ratio": None if at_rate is None else at_rate.load_ratio,
        "workers_needed": load.workers_needed,
        "gpus_needed": None if load.workers_needed is None else load.workers_needed * plan.deployment.parallelism.gpus,
    }


def steady_of(steady: Steady | None) -> Json | None:
    """A worker that serves so many requests at once, all the time."""
    if steady is None:
        return None
    return {
        "concurrency": steady.concurrency,
        "requests_per_second": steady.rate_per_second,
        "tokens_per_second": steady.tokens_per_second,
        "ttft_seconds": steady.ttft_seconds,
        "tpot_seconds": steady.tpot_seconds,
        "e2e_seconds": steady.e2e_seconds,
        "prefill_busy_ratio": steady.prefill_busy_ratio,
    }
