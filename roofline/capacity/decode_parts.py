"""One decode step by what its time goes to: weights and launches, which all sequences share, and what each adds for itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from roofline.cost import cost
from roofline.deployment import Deployment
from roofline.expected import Losses, expected_of
from roofline.work import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeParts:
    """Seconds of one step of ``batch`` sequences whose contexts are alike, with an engine's losses."""

    batch: float
    context_tokens: int
    weights_seconds: float  # reading weights; grows with the batch only as far as more experts are chosen
    cache_seconds: float  # reading and writing cache and states of all sequences
    compute_seconds: float
    exchange_seconds: float
    overhead_seconds: float  # launches, whatever the batch

    @property
    def shared_seconds(self) -> float:
        """What sequences share: weights and launches."""
        return self.weights_seconds + self.overhead_seconds

    @property
    def own_seconds(self) -> float:
        """What one sequence adds if nothing overlaps: its cache, its arithmetic, its exchange."""
        return (self.cache_seconds + self.compute_seconds + self.exchange_seconds) / self.batch

    @property
    def step_seconds(self) -> float:
        """The step as `expected` has it: arithmetic behind memory traffic, or the other way round."""
        memory = self.weights_seconds + self.cache_seconds
        return max(self.compute_seconds, memory) + self.overhead_seconds + self.exchange_seconds

    @property
    def tokens_per_second(self) -> float:
        """Throughput of the batch."""
        return self.batch / self.step_seconds


def decode_parts(deployment: Deployment, losses: Losses, *, batch: float, context_tokens: int) -> DecodeParts:
    """The step in which ``batch`` sequences each decode one token on ``context_tokens``. ``ValueError`` below one sequence."""
    if batch < 1 or context_tokens < 0:
        raise ValueError(f"a step has a sequence and a context of at least 0 tokens, not {batch} and {context_tokens}")
    done = cost(deployment, (Span(context_tokens, 1, batch),))
    whole = expected_of(deployment, done, losses)
    weights = _weights_seconds(deployment, batch)
    return DecodeParts(
        batch=batch,
        context_tokens=context_tokens,
        weights_seconds=weights / losses.memory_efficiency_ratio,
        cache_seconds=(done.rank_memory_seconds - weights) / losses.memory_efficiency_ratio,
        compute_seconds=done.compute_seconds / losses.compute_efficiency_ratio,
        exchange_seconds=whole.exchange_seconds,
        overhead_seconds=whole.overhead_seconds,
    )


def _weights_seconds(deployment: Deployment, batch: float) -> float:
    """Reading weights at full bandwidth: each data-parallel rank its own, all GPUs together the experts that were chosen."""
    rates = deployment.rates
    experts = sum(expert.bytes * (1.0 - math.pow(expert.idle_ratio, batch)) for expert in rates.experts)
    return (rates.data_ranks * (rates.step_bytes + rates.head_bytes) + experts) / rates.bytes_per_second
