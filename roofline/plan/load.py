"""How a worker stands under load: how much it serves, and what one request sees of the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from roofline.capacity.ceilings import Capacity, capacity
from roofline.capacity.memory import MemoryBudget
from roofline.capacity.queueing import Equilibrium, Service, Steady
from roofline.limits import e2e_seconds
from roofline.plan.question import Question
from roofline.plan.times import DecodeTimes, PrefillTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """What one request sees while ``running`` requests share a worker, prefix cache as warm as asked. ``None``: no such figure.

    TTFT is own prefill + mean wait behind the prefills of others, TPOT is step + what those prefills add to it.
    """

    running: float
    prefill_seconds: float
    wait_seconds: float | None  # None: prefills alone take more than all the time
    step_seconds: float | None  # None: completions of one token
    interference_seconds: float | None
    e2e_seconds: float | None
    requests_per_second: float
    tokens_per_second: float  # completion tokens of all requests

    @property
    def ttft_seconds(self) -> float | None:
        """From the request received to its first token; ``None`` if the queue grows without end."""
        return None if self.wait_seconds is None else self.prefill_seconds + self.wait_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time of each token after the first."""
        return None if self.step_seconds is None else self.step_seconds + (self.interference_seconds or 0.0)

    @property
    def user_tokens_per_second(self) -> float | None:
        """What one user sees while the answer comes."""
        return 1.0 / self.tpot_seconds if self.tpot_seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much one worker serves. Planned cold but for ``at_rate``; rates are requests a second of one worker.

    ``planned`` is the recommended concurrency, ``None`` if targets or memory allow none; ``saturation`` is the most that the
    cache and --max-num-seqs let pass, whatever the latency.
    """

    capacity: Capacity
    saturation: Steady
    warm_saturation: Steady | None  # None: nothing is cached
    planned: Steady | None
    at_rate: Equilibrium | None  # with the prefix cache as warm as asked; None: no rate was given
    workers_needed: int | None  # at the recommended concurrency; None: no rate, or no number of workers keeps the targets


def load_of(budget: MemoryBudget, question: Question) -> Load | None:
    """How much the worker serves; ``None`` if not one request fits."""
    workload, tpot = question.cold_workload, question.targets.tpot_seconds
    if not budget.fits or budget.sequences(workload.total_tokens) < 1:
        return None
    found = capacity(budget, question.losses, workload, tpot_seconds=tpot, stops_at_knee=False)
    most = most_at_once(found)
    recommended = found.recommended_concurrency
    planned = found.service.at_concurrency(recommended) if recommended else None
    rate = question.rate_per_second
    asked = replace(found.service, workload=question.workload)
    return Load(
        capacity=found,
        saturation=_saturation(found.service, most),
        warm_saturation=_saturation(asked, most) if question.workload.cached_tokens else None,
        planned=planned,
        at_rate=asked.at_rate(rate / question.workers, most_concurrency=most) if rate else None,
        workers_needed=ceil(rate / planned.rate_per_second) if rate and planned else None,
    )


def most_at_once(found: Capacity) -> float:
    """Requests that can run at once, whatever the latency."""
    budget = found.budget
    sequences = budget.reserve.limits.sequences * budget.deployment.parallelism.data
    return float(min(budget.sequences(found.service.workload.total_tokens), sequences))


def latency_of(service: Service, running: float, prefill: PrefillTimes, decode: DecodeTimes, at_rate: Steady | None) -> Latency:
    """What one request sees beside ``running`` - 1 others; ``at_rate``: where a rate of requests has led to."""
    if at_rate is None and running <= 1.0:
        return _alone(service.workload.completion_tokens, prefill, decode)
    steady = at_rate or service.at_concurrency(running)
    wait = steady.prefill_wait_seconds
    return Latency(
        running=steady.concurrency,
        prefill_seconds=steady.ttft_seconds,
        wait_seconds=wait,
        step_seconds=steady.step_seconds,
        interference_seconds=steady.interference_seconds,
        e2e_seconds=None if wait is None else steady.e2e_seconds + wait,
        requests_per_second=steady.rate_per_second,
        tokens_per_second=steady.tokens_per_second,
    )


def _alone(completion_tokens: int, prefill: PrefillTimes, decode: DecodeTimes) -> Latency:
    """One request after the other: nothing to wait for, nothing in between."""
    ttft = prefill.limit.expected_seconds
    tpot = decode.alone.expected_seconds if completion_tokens > 1 else None
    e2e = e2e_seconds(ttft, tpot, completion_tokens)
    return Latency(
        running=1.0,
        prefill_seconds=ttft,
        wait_seconds=0.0,
        step_seconds=tpot,
        interference_seconds=None if tpot is None else 0.0,
        e2e_seconds=e2e,
        requests_per_second=1.0 / e2e,
        tokens_per_second=completion_tokens / e2e,
    )


def _saturation(service: Service, most: float) -> Steady:
    return service.at_rate(1.0, most_concurrency=most).saturation  # does not depend on the rate
