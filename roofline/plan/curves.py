"""What a plan looks like over a range: TTFT over prompt lengths, TPOT and throughput over batches for a few contexts."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from roofline.capacity.decode_parts import decode_parts
from roofline.limits import Surroundings, prefill_limit
from roofline.plan.plan import Plan

_SHORTEST_PROMPT = 128
_LONGEST_PROMPT = 32_768  # unless the plan's own prompt, or the model, asks for another
_POINTS = 40
_CONTEXT_STEPS = (1, 4, 16)  # contexts shown, in multiples of the plan's own


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPoint:
    """One prompt length, alone on the worker, nothing cached."""

    prompt_tokens: int
    floor_seconds: float
    expected_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    """One batch of sequences with alike contexts, decoding only."""

    batch: float
    tpot_seconds: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCurve:
    """Batches up to what the cache holds at one context; ``None`` where the model does not fit, and the curve is what if."""

    context_tokens: int
    most_sequences: float | None
    points: tuple[BatchPoint, ...]


def prompt_curve(plan: Plan) -> tuple[PromptPoint, ...]:
    """Expected and least TTFT over prompt lengths, in the engine's chunks."""
    prompt = plan.question.workload.prompt_tokens
    longest = max(_LONGEST_PROMPT, 2 * prompt)
    if plan.deployment.shape.max_context_tokens is not None:
        longest = min(longest, plan.deployment.shape.max_context_tokens)
    around = Surroundings(chunk_tokens=plan.budget.reserve.limits.batched_tokens)
    points = []
    for tokens in _spread(min(_SHORTEST_PROMPT, prompt), longest):
        limit = prefill_limit(plan.deployment, plan.question.losses, prompt_tokens=round(tokens), around=around)
        points.append(
            PromptPoint(prompt_tokens=round(tokens), floor_seconds=limit.floor_seconds, expected_seconds=limit.expected_seconds)
        )
    return tuple(points)


def batch_curves(plan: Plan) -> tuple[BatchCurve, ...]:
    """TPOT and throughput over batches, for the plan's own mean context and for longer ones."""
    own = plan.question.workload.mean_context_tokens
    longest = plan.deployment.shape.max_context_tokens or own * _CONTEXT_STEPS[-1]
    contexts = dict.fromkeys(max(own, min(own * times, longest)) for times in _CONTEXT_STEPS)
    return tuple(_batch_curve(plan, context) for context in contexts)


def _batch_curve(plan: Plan, context: int) -> BatchCurve:
    most = None
    if plan.budget.fits:
        sequences = plan.budget.reserve.limits.sequences * plan.deployment.parallelism.data
        most = min(plan.budget.concurrency(context), float(sequences))
    points = []
    for batch in _spread(1.0, max(1.0, most if most is not None else 2 * ceil(plan.running))):
        parts = decode_parts(plan.deployment, plan.question.losses, batch=batch, context_tokens=context)
        points.append(BatchPoint(batch=batch, tpot_seconds=parts.step_seconds, tokens_per_second=parts.tokens_per_second))
    return BatchCurve(context_tokens=context, most_sequences=most, points=tuple(points))


def _spread(least: float, most: float) -> list[float]:
    """Numbers from ``least`` to ``most``, evenly in their logarithms; one if they are the same."""
    if most <= least:
        return [least]
    factor = (most / least) ** (1.0 / (_POINTS - 1))
    return [*(least * factor**place for place in range(_POINTS - 1)), most]
