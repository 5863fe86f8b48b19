"""Where a worker stands: a situation to plan for, and the figures that it comes to."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.capacity.ceilings import Capacity, capacity
from roofline.capacity.memory import DEFAULT_SETTINGS, MemorySettings, memory_budget
from roofline.capacity.workload import Workload
from roofline.deployment import Deployment
from roofline.expected import Losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A worker, what it is asked for, and the rules of planning."""

    deployment: Deployment
    losses: Losses
    workload: Workload
    settings: MemorySettings = DEFAULT_SETTINGS
    concurrency: float | None = None  # requests at once; None: as many as may be
    tpot_seconds: float | None = None  # the target to keep, if any
    stops_at_knee: bool = False
    shared_tokens: int = 0  # at the start of all prompts alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The figures of one situation. Latencies are ``None`` where the model does not fit or not one request does."""

    situation: Situation
    weight_bytes: float  # all GPUs
    gpu_weight_bytes: float  # on the fullest GPU
    missing_bytes: float  # per GPU; 0 if it fits
    kv_capacity_tokens: int
    max_concurrency: int
    batch: float | None  # requests at once for which the following hold
    ttft_seconds: float | None
    tpot_seconds: float | None
    tokens_per_second: float | None

    @property
    def gpus(self) -> int:
        """GPUs of the worker."""
        return self.situation.deployment.parallelism.gpus


def standing(situation: Situation, *, added_step_seconds: float = 0.0) -> Standing:
    """The figures of a situation; ``added_step_seconds`` is what every step takes longer than theory has it."""
    budget = memory_budget(situation.deployment, situation.settings)
    found = capacity(
        budget,
        situation.losses,
        situation.workload,
        tpot_seconds=situation.tpot_seconds,
        stops_at_knee=situation.stops_at_knee,
        shared_tokens=situation.shared_tokens,
    )
    batch = _batch(situation, found)
    steady = found.service.at_concurrency(batch) if batch else None
    tpot = steady.tpot_seconds if steady else None
    ttft = steady.ttft_seconds if steady else None
    rate = steady.tokens_per_second if steady else None
    if added_step_seconds and steady and tpot is not None and ttft is not None:
        tpot += added_step_seconds
        ttft += added_step_seconds
        completion = situation.workload.completion_tokens
        rate = steady.concurrency * completion / (ttft + (completion - 1) * tpot)
    return Standing(
        situation=situation,
        weight_bytes=situation.deployment.weight_bytes,
        gpu_weight_bytes=budget.weight_bytes,
        missing_bytes=budget.missing_bytes,
        kv_capacity_tokens=budget.tokens(situation.workload.total_tokens),
        max_concurrency=found.max_concurrency,
        batch=batch,
        ttft_seconds=ttft,
        tpot_seconds=tpot,
        tokens_per_second=rate,
    )


def _batch(situation: Situation, found: Capacity) -> float | None:
    if not found.max_concurrency:
        return None
    return min(situation.concurrency or found.max_concurrency, float(found.max_concurrency))
