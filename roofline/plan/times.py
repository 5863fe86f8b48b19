"""Prefill and decode of a plan, with what each time is made of, so that a sheet can show the sum and not only its result."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from roofline.bound import Binds
from roofline.capacity.decode_parts import DecodeParts, decode_parts
from roofline.capacity.workload import Workload
from roofline.cost import Cost, cost
from roofline.deployment import Deployment
from roofline.expected import Expected, Losses, expected_of
from roofline.limits import Limit, Surroundings, decode_limit, prefill_limit, prefill_spans
from roofline.shape import WeightKind
from roofline.work import Routing, Span, Work, work


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTimes:
    """One prompt alone on a worker. FLOP are all GPUs' together, attention causal."""

    cached_tokens: int
    new_tokens: int
    limit: Limit
    linear_flop: float  # all weights but the head: every new token
    head_flop: float  # the last position only
    attention_flop: float  # scores and weighted sums; recurrent states too
    steps: int  # the engine's chunks
    least: Cost  # what the floor is made of
    reference: Cost  # in the engine's chunks, with as many experts as are expected
    expected: Expected

    @property
    def intensity_flop_per_byte(self) -> float:
        """To be held against the ridge point."""
        return self.least.flop / self.least.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTimes:
    """One output token after the first: of a request alone, and in a batch. Bytes are of all GPUs together."""

    context_tokens: int  # half way through the completion
    running: float
    alone: Limit
    batch: Limit
    least_weight_bytes: float  # of the floor's step
    least_cache_bytes: float
    weight_bytes: float  # of the batch's step, with as many experts as are expected; no copies
    cache_bytes: float
    flop: float  # of the batch's step
    parts: DecodeParts  # of the batch's step
    alone_parts: DecodeParts
    ridge_batch: float | None  # multiplying the weights takes as long as reading them, cache aside; None: nothing multiplies

    @property
    def intensity_flop_per_byte(self) -> float:
        """Of the batch's step, to be held against the ridge point."""
        return self.flop / (self.weight_bytes + self.cache_bytes)

    @property
    def binds(self) -> Binds:
        """What the batch's step takes longer for, at an engine's efficiencies."""
        parts = self.parts
        return "compute" if parts.compute_seconds > parts.weights_seconds + parts.cache_seconds else "memory"


def prefill_times(deployment: Deployment, losses: Losses, workload: Workload, batched_tokens: int) -> PrefillTimes:
    """The prompt of ``workload`` on top of what is cached, in chunks of at most ``batched_tokens``."""
    cached = min(workload.cached_tokens, workload.prompt_tokens - 1)  # the last token is always computed
    new = workload.prompt_tokens - cached
    around = Surroundings(chunk_tokens=batched_tokens)
    counted = work(deployment, (Span(cached, new),), Routing.FEWEST)
    reference = cost(deployment, prefill_spans(workload.prompt_tokens, cached, around))
    head = _flop(counted, WeightKind.HEAD)
    linear = sum(_flop(counted, kind) for kind in WeightKind) - head
    return PrefillTimes(
        cached_tokens=cached,
        new_tokens=new,
        limit=prefill_limit(
            deployment, losses, prompt_tokens=workload.prompt_tokens, cached_tokens=workload.cached_tokens, around=around
        ),
        linear_flop=linear,
        head_flop=head,
        attention_flop=counted.flop - linear - head,
        steps=ceil(new / batched_tokens),
        least=cost(deployment, (Span(cached, new),), Routing.FEWEST),
        reference=reference,
        expected=expected_of(deployment, reference, losses),
    )


def decode_times(deployment: Deployment, losses: Losses, workload: Workload, running: float) -> DecodeTimes:
    """A token of a request whose prompt and completion are those of ``workload``, beside ``running`` - 1 others like it."""
    context, completion = workload.mean_context_tokens, max(2, workload.completion_tokens)
    others = Surroundings(running=running - 1.0, context_tokens=context)
    alone, batch = (
        decode_limit(deployment, losses, context_tokens=workload.prompt_tokens, completion_tokens=completion, around=around)
        for around in (Surroundings(), others)
    )
    least = work(deployment, (Span(context, 1),), Routing.FEWEST)
    step = work(deployment, (Span(context, 1, running, logits=1),))
    rates = deployment.rates
    read = rates.step_bytes + rates.head_bytes + sum(experts.bytes for experts in rates.experts)
    multiply = (rates.token_seconds + rates.logit_seconds) / rates.gpus
    return DecodeTimes(
        context_tokens=context,
        running=running,
        alone=alone,
        batch=batch,
        least_weight_bytes=_weight_bytes(least),
        least_cache_bytes=alone.bytes - _weight_bytes(least),  # the mean over the completion
        weight_bytes=_weight_bytes(step),
        cache_bytes=step.bytes - _weight_bytes(step),
        flop=step.flop,
        parts=decode_parts(deployment, losses, batch=running, context_tokens=context),
        alone_parts=decode_parts(deployment, losses, batch=1.0, context_tokens=context),
        ridge_batch=read / rates.bytes_per_second / multiply if multiply else None,
    )


def _flop(counted: Work, name: str) -> float:
    return sum(operator.flop for operator in counted.operators if operator.name == name)


def _weight_bytes(counted: Work) -> float:
    kinds = set(WeightKind)
    return sum(operator.bytes for operator in counted.operators if operator.name in kinds)
