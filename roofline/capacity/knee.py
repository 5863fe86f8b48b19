"""The knee: up to which batch throughput grows almost in proportion, and how that moves with the context.

A step costs what its sequences share (weights, launches: S) and what each adds (its cache, its arithmetic: A). Without overlap
throughput is b / (S + A b). The knee is where both halves are equal:

    b = S / A

There one more sequence brings a quarter of what the first one brought, throughput is half of what any batch could reach, and
TPOT is twice that of a lone sequence. 1/b is the sum of 1/(S / arithmetic) and 1/(S / cache): short contexts bend where
arithmetic takes over (the ridge), long ones where the cache does, and every context in between earlier than either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from roofline.capacity.bisection import crossing
from roofline.capacity.decode_parts import DecodeParts, decode_parts
from roofline.deployment import Deployment
from roofline.expected import Losses

_ENDLESS = 1e9  # sequences: so many that every expert is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Where throughput bends for one context. Batches are not rounded and at least 1."""

    batch: float
    context_tokens: int
    parts: DecodeParts  # of the step at the knee
    cache_batch: float | None  # S / cache: the knee if arithmetic cost nothing; None without cache
    compute_batch: float | None  # S / arithmetic: the knee if the cache cost nothing
    ridge_batch: float | None  # arithmetic takes as long as all memory traffic; None: it never does at this context

    @property
    def binds(self) -> Literal["cache", "compute"]:
        """Which of the two bends it more."""
        return "cache" if self.parts.cache_seconds >= self.parts.compute_seconds else "compute"


def knee(deployment: Deployment, losses: Losses, context_tokens: int) -> Knee:
    """The knee of sequences of ``context_tokens``.

    For dense models S / A as it stands. Experts: S grows with the batch as more are chosen, so that S(b) = A b is solved.
    """
    endless = decode_parts(deployment, losses, batch=_ENDLESS, context_tokens=context_tokens)
    own, shared = endless.own_seconds, endless.shared_seconds

    def is_past(batch: float) -> bool:
        return decode_parts(deployment, losses, batch=batch, context_tokens=context_tokens).shared_seconds <= own * batch

    batch = max(1.0, shared / own)
    if deployment.rates.experts:  # fewer are read at smaller batches; S(b) / b falls, so there is one solution
        batch = crossing(is_past, 1.0, batch)
    parts = decode_parts(deployment, losses, batch=batch, context_tokens=context_tokens)
    cache, compute = endless.cache_seconds / _ENDLESS, endless.compute_seconds / _ENDLESS
    return Knee(
        batch=batch,
        context_tokens=context_tokens,
        parts=parts,
        cache_batch=shared / cache if cache else None,
        compute_batch=shared / compute if compute else None,
        ridge_batch=endless.weights_seconds / (compute - cache) if compute > cache else None,
    )


def knees(deployment: Deployment, losses: Losses, contexts: Sequence[int]) -> tuple[Knee, ...]:
    """The knee for each of these contexts: a ceiling for the batch is a function of the context, not a constant."""
    return tuple(knee(deployment, losses, context) for context in contexts)
