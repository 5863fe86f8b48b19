"""What a capacity plan is: one worker, the requests that are to come, and every figure that follows, in the order of a sheet.

Weights, cache of one request, times concurrency, TPOT from bandwidth, TTFT from compute, the whole answer, capacity. Nothing is
computed here that another module knows; what this one adds is which figures belong together. Derivations: docs/theory.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from roofline.capacity.ceilings import PhaseRatio, phase_ratio
from roofline.capacity.chunking import ChunkAdvice, recommend_chunk
from roofline.capacity.knee import Knee, knee, knees
from roofline.capacity.memory import MemoryBudget, memory_budget, smallest_fit
from roofline.capacity.queueing import Service
from roofline.capacity.remedies import RemedyTable, remedies
from roofline.capacity.standing import Situation
from roofline.capacity.targets import JITTER_RATIO
from roofline.deployment import Deployment
from roofline.kv_cache import KvBytes, kv_bytes_per_token
from roofline.limits import e2e_seconds
from roofline.plan.load import Latency, Load, latency_of, load_of, most_at_once
from roofline.plan.question import Origin, Question
from roofline.plan.times import DecodeTimes, PrefillTimes, decode_times, prefill_times

KNEE_CONTEXTS = (1024, 4096, 16384, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything about one worker. ``load`` and `latency` are ``None`` if not one request fits."""

    question: Question
    deployment: Deployment
    budget: MemoryBudget
    smallest: MemoryBudget | None  # the fewest GPUs that would hold it, if these do not
    kv: KvBytes  # one copy, all GPUs that share it
    concurrency: float
    origin: Origin
    running: float  # of these, as many as the cache and --max-num-seqs let run at once
    prefill: PrefillTimes  # on top of what is cached
    prefill_cold: PrefillTimes | None  # None: nothing is cached, `prefill` is cold
    decode: DecodeTimes
    knee: Knee
    knees: tuple[Knee, ...]
    latency: Latency | None
    load: Load | None
    phases: PhaseRatio
    chunk: ChunkAdvice

    @property
    def alone_e2e_seconds(self) -> float:
        """A whole answer when nothing else runs."""
        tokens = self.question.workload.completion_tokens
        return e2e_seconds(self.prefill.limit.expected_seconds, self.decode.alone.expected_seconds, tokens)

    @property
    def exceeds_context(self) -> bool:
        """Whether a request is longer than the model allows."""
        longest = self.deployment.shape.max_context_tokens
        return longest is not None and self.question.workload.total_tokens > longest

    @property
    def works(self) -> bool:
        """Whether one such request can be served at all."""
        return self.load is not None and not self.exceeds_context

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the cache of the worker holds, for sequences of this length; 0 if the model does not fit."""
        return self.budget.tokens(self.question.workload.total_tokens) if self.budget.fits else 0

    @property
    def max_concurrency(self) -> int:
        """Requests with their longest completions that the cache holds at once."""
        return self.budget.sequences(self.question.workload.total_tokens) if self.budget.fits else 0


def make_plan(deployment: Deployment, question: Question) -> Plan:
    """The plan for one worker. ``ValueError`` where its memory is not known or its GPUs cannot share the model."""
    workload, losses = question.workload, question.losses
    budget = memory_budget(deployment, question.settings)
    load = load_of(budget, question)
    concurrency, origin = _concurrency(question, load)
    running = max(1.0, concurrency if load is None else min(concurrency, most_at_once(load.capacity)))
    batched = budget.reserve.limits.batched_tokens
    prefill = prefill_times(deployment, losses, workload, batched)
    decode = decode_times(deployment, losses, workload, running)
    service = Service(deployment=deployment, losses=losses, workload=workload, chunk_tokens=batched)
    recommended = load.capacity.recommended_concurrency if load else 0
    at_rate = load.at_rate.steady if load and load.at_rate and origin is Origin.RATE else None
    batch = running if origin is not Origin.ASSUMED else max(1.0, recommended)
    smallest = None
    if load is None:
        smallest = smallest_fit(deployment, sequence_tokens=workload.total_tokens, settings=question.settings)
    return Plan(
        question=question,
        deployment=deployment,
        budget=budget,
        smallest=smallest,
        kv=kv_bytes_per_token(deployment.shape, deployment.kv),
        concurrency=concurrency,
        origin=origin,
        running=running,
        prefill=prefill,
        prefill_cold=prefill_times(deployment, losses, question.cold_workload, batched) if workload.cached_tokens else None,
        decode=decode,
        knee=knee(deployment, losses, workload.mean_context_tokens),
        knees=knees(deployment, losses, KNEE_CONTEXTS),
        latency=latency_of(service, running, prefill, decode, at_rate) if load else None,
        load=load,
        phases=phase_ratio(deployment, losses, question.cold_workload, decode_batch=batch),
        chunk=recommend_chunk(
            deployment,
            losses,
            workload,
            batch=batch,
            tpot_seconds=question.targets.tpot_seconds,
            jitter_ratio=question.targets.jitter_ratio or JITTER_RATIO,
        ),
    )


def _concurrency(question: Question, load: Load | None) -> tuple[float, Origin]:
    if question.concurrency is not None:
        return question.concurrency, Origin.GIVEN
    if load is None or load.at_rate is None:
        return 1.0, Origin.ASSUMED
    steady = load.at_rate.steady
    return (steady.concurrency if steady else most_at_once(load.capacity)), Origin.RATE


def remedies_of(plan: Plan) -> RemedyTable:
    """What each change would give here: at the concurrency asked for, or at the most that may be if none was."""
    question = plan.question
    return remedies(
        Situation(
            deployment=plan.deployment,
            losses=question.losses,
            workload=question.workload,
            settings=question.settings,
            concurrency=None if plan.origin is Origin.ASSUMED else plan.running,
            tpot_seconds=question.targets.tpot_seconds,
        )
    )
