"""How many requests a worker should serve at once, and what sets that limit.

Three things may: room in the cache (for prompt and longest completion), the batch beyond which TPOT misses its target, and the
knee beyond which more requests bring little. The least of them is the theoretical capacity, of which 70-80 % are planned with:
lengths vary, prefills come in bursts, and a cache that is full preempts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import floor

from roofline.capacity.decode_parts import decode_parts
from roofline.capacity.knee import Knee, knee
from roofline.capacity.memory import MemoryBudget
from roofline.capacity.queueing import Equilibrium, Service, Steady, rank_prefill_seconds
from roofline.capacity.workload import Workload
from roofline.deployment import Deployment
from roofline.expected import Losses

HARD_RATIO = 0.8  # of the theoretical capacity: never plan with more
RECOMMENDED_RATIO = 0.7


class CapacityLimit(StrEnum):
    """What keeps a worker from serving more at once."""

    KV_CACHE = "kv_cache"
    TPOT_TARGET = "tpot_target"
    KNEE = "knee"
    MAX_SEQUENCES = "max_sequences"  # --max-num-seqs


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """One limit and the number of sequences at which it is reached; not rounded."""

    limit: CapacityLimit
    sequences: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many sequences a worker can and should serve at once."""

    budget: MemoryBudget
    service: Service
    ceilings: tuple[Ceiling, ...]  # lowest first
    knee: Knee
    hard_ratio: float
    recommended_ratio: float

    @property
    def binds(self) -> CapacityLimit:
        """What limits first."""
        return self.ceilings[0].limit

    @property
    def theoretical_sequences(self) -> float:
        """The lowest ceiling."""
        return self.ceilings[0].sequences

    @property
    def max_concurrency(self) -> int:
        """Never plan with more; 0 if not one request can be served within the limits."""
        return _share(self.theoretical_sequences, self.hard_ratio)

    @property
    def recommended_concurrency(self) -> int:
        """Plan with this many."""
        return _share(self.theoretical_sequences, self.recommended_ratio)

    def ceiling(self, limit: CapacityLimit) -> float | None:
        """The number of sequences of one limit; ``None`` if it was not asked for."""
        return next((ceiling.sequences for ceiling in self.ceilings if ceiling.limit is limit), None)

    def steady(self) -> Steady | None:
        """What serving `max_concurrency` comes to: rate, TTFT, TPOT. ``None`` if that is 0."""
        return self.service.at_concurrency(self.max_concurrency) if self.max_concurrency else None

    def at_rate(self, rate_per_second: float) -> Equilibrium | None:
        """What a rate of requests leads to within `max_concurrency`; ``None`` if that is 0."""
        if not self.max_concurrency:
            return None
        return self.service.at_rate(rate_per_second, most_concurrency=self.max_concurrency)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRatio:
    """GPU time that one request takes for each phase, alone for its prefill and in a batch for its decoding."""

    decode_batch: float
    prefill_seconds: float
    decode_seconds: float

    @property
    def decode_per_prefill_ratio(self) -> float:
        """Instances that decode per instance that does prefills, if the phases run on instances of their own."""
        return self.decode_seconds / self.prefill_seconds


def capacity(
    budget: MemoryBudget,
    losses: Losses,
    workload: Workload,
    *,
    tpot_seconds: float | None = None,
    stops_at_knee: bool = True,
    shared_tokens: int = 0,
    prefills_elsewhere: bool = False,
    hard_ratio: float = HARD_RATIO,
    recommended_ratio: float = RECOMMENDED_RATIO,
) -> Capacity:
    """How many requests of ``workload`` the worker of ``budget`` can and should serve at once.

    ``tpot_seconds`` is the target to keep, if any. ``stops_at_knee``: going beyond the knee, for little more throughput at much
    higher TPOT, counts as too much; without it the knee is told but limits nothing. The first ``shared_tokens`` of all prompts
    are alike and kept once. ``ValueError`` unless 0 < recommended <= hard <= 1.
    """
    if not 0.0 < recommended_ratio <= hard_ratio <= 1.0:
        raise ValueError(
            f"ceilings are shares of the capacity, 0 < recommended <= hard <= 1, not {recommended_ratio}, {hard_ratio}"
        )
    deployment = budget.deployment
    service = Service(
        deployment=deployment,
        losses=losses,
        workload=workload,
        chunk_tokens=budget.reserve.limits.batched_tokens,
        prefills_elsewhere=prefills_elsewhere,
    )
    bend = knee(deployment, losses, workload.mean_context_tokens)
    ceilings = [
        Ceiling(limit=CapacityLimit.KV_CACHE, sequences=float(budget.sequences(workload.total_tokens, shared_tokens))),
        Ceiling(
            limit=CapacityLimit.MAX_SEQUENCES,
            sequences=float(budget.reserve.limits.sequences * deployment.parallelism.data),
        ),
    ]
    if stops_at_knee:
        ceilings.append(Ceiling(limit=CapacityLimit.KNEE, sequences=bend.batch))
    if tpot_seconds is not None:
        ceilings.append(Ceiling(limit=CapacityLimit.TPOT_TARGET, sequences=service.largest_concurrency(tpot_seconds)))
    return Capacity(
        budget=budget,
        service=service,
        ceilings=tuple(sorted(ceilings, key=lambda ceiling: ceiling.sequences)),
        knee=bend,
        hard_ratio=hard_ratio,
        recommended_ratio=recommended_ratio,
    )


def phase_ratio(deployment: Deployment, losses: Losses, workload: Workload, *, decode_batch: float) -> PhaseRatio:
    """How the GPU time of a request splits into prefill and decoding.

    It depends on the batch more than on the lengths, so no fixed ratio holds. ``ValueError`` for a batch below one.
    """
    prefill = rank_prefill_seconds(deployment, losses, workload) / deployment.parallelism.data  # ranks work side by side
    step = decode_parts(deployment, losses, batch=decode_batch, context_tokens=workload.mean_context_tokens).step_seconds
    return PhaseRatio(
        decode_batch=decode_batch,
        prefill_seconds=prefill,
        decode_seconds=(workload.completion_tokens - 1) * step / decode_batch,
    )


def _share(sequences: float, ratio: float) -> int:
    """So many of them in whole ones; a single one that fits is served whatever the ratio."""
    return max(floor(sequences * ratio + 1e-9), min(1, floor(sequences)))
