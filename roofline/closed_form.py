"""Expected times in a handful of multiplications, for choosing a worker while a request waits.

The coefficients are made from a deployment and its losses by the control process; evaluating them takes under a microsecond
and needs nothing else. They agree with `roofline.expected` but for windows (taken as full or as not growing, whichever suits
long contexts) and for the crossover from memory to compute within one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from roofline.deployment import Deployment
from roofline.expected import Losses, expected
from roofline.work import Span


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """Seconds per unit of work of one worker. All are at least 0."""

    request_seconds: float  # once a request
    step_seconds: float  # every step: overheads
    weights_seconds: float  # every step: weights that all tokens read, and the head
    experts_seconds: float  # all routed experts read
    idle_expert_ratio: float  # chance that one token leaves an expert unread: 1 - chosen / count; 1 without experts
    token_seconds: float  # compute of one token
    logit_seconds: float  # compute of the head for one wanted token
    exchange_seconds: float  # moving one token's activations between GPUs
    pair_seconds: float  # attention of one token to one other in a prefill, layers that see everything
    decode_pair_seconds: float  # the same in a decode step (MLA computes it on the compressed cache)
    context_seconds: float  # reading one cached token, layers that see everything
    sequence_seconds: float  # reading what does not grow with the context: windows, recurrent states
    chunk_tokens: int  # tokens in one step at most

    def prefill_seconds(self, uncached: int, cached: int, running: float, running_context_tokens: float) -> float:
        """Start of the first step → first token, for ``uncached`` tokens on ``cached`` ones beside ``running`` sequences.

        ``running_context_tokens`` is the sum of the contexts of the sequences that decode meanwhile.
        """
        chunks = -(-uncached // self.chunk_tokens)
        seen = cached + 0.5 * uncached
        compute = uncached * (self.token_seconds + self.pair_seconds * seen) + chunks * (
            running * (self.token_seconds + self.logit_seconds) + running_context_tokens * self.decode_pair_seconds
        )
        read = self.experts_seconds * (1.0 - math.pow(self.idle_expert_ratio, uncached / chunks + running))
        others = running * self.sequence_seconds + (running_context_tokens + seen) * self.context_seconds
        memory = chunks * (self.weights_seconds + read + others)
        fixed = self.request_seconds + chunks * self.step_seconds + (uncached + chunks * running) * self.exchange_seconds
        return fixed + (max(memory, compute))

    def decode_seconds(self, running: float, running_context_tokens: float) -> float:
        """One step of ``running`` sequences (the request among them) whose contexts add up to ``running_context_tokens``."""
        compute = running * (self.token_seconds + self.logit_seconds) + self.decode_pair_seconds * running_context_tokens
        read = self.experts_seconds * (1.0 - math.pow(self.idle_expert_ratio, running))
        memory = self.weights_seconds + read + running * self.sequence_seconds + running_context_tokens * self.context_seconds
        return self.step_seconds + running * self.exchange_seconds + (max(memory, compute))


def closed_form(deployment: Deployment, losses: Losses, *, chunk_tokens: int = 8192) -> ClosedForm:
    """The coefficients of one worker. ``chunk_tokens``: what its engine computes in one step at most."""
    rates = deployment.rates
    bandwidth = rates.bytes_per_second * losses.memory_efficiency_ratio
    gpus = rates.gpus * losses.compute_efficiency_ratio
    everything = [term for term in deployment.attention_terms if term.reach.tokens is None]
    experts_bytes = sum(experts.bytes for experts in rates.experts)
    growing_bytes = kept_bytes = 0.0
    for term, *_, copies in rates.attention:
        growing_bytes += (1.0 + copies) * term.index_bytes_per_token
        if term.reach.tokens is None:
            growing_bytes += (1.0 + copies) * term.bytes_per_token
        else:
            kept_bytes += (1.0 + copies) * term.bytes_per_token * term.reach.tokens
    one_token = expected(deployment, [Span(1, 1)], losses)
    return ClosedForm(
        request_seconds=losses.request_overhead_seconds,
        step_seconds=one_token.overhead_seconds,
        weights_seconds=(rates.step_bytes + rates.head_bytes) / bandwidth,
        experts_seconds=experts_bytes / bandwidth,
        idle_expert_ratio=sum(part.bytes * part.idle_ratio for part in rates.experts) / experts_bytes if experts_bytes else 1.0,
        token_seconds=rates.token_seconds / gpus,
        logit_seconds=rates.logit_seconds / gpus,
        exchange_seconds=one_token.exchange_seconds,
        pair_seconds=sum(term.flop_per_pair / term.flop_per_second for term in everything) / gpus,
        decode_pair_seconds=sum(
            (term.absorbed_flop_per_pair or term.flop_per_pair) / term.flop_per_second for term in everything
        )
        / gpus,
        context_seconds=growing_bytes / bandwidth,
        sequence_seconds=(kept_bytes + 2 * rates.state_bytes) / bandwidth,
        chunk_tokens=chunk_tokens,
    )
