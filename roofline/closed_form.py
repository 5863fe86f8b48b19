"""Expected times in a handful of multiplications, for choosing a worker while a request waits.

The coefficients are made from a deployment and its losses by the control process; evaluating them takes about a microsecond
and needs nothing else. They agree with `roofline.expected` but for windows of several sizes (taken as one) and chunks of
unequal size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from roofline.deployment import Deployment
from roofline.expected import Losses, expected
from roofline.rates import AttentionRates
from roofline.work import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """Seconds per unit of work of one worker. All are at least 0; pairs are of one token that attends to one other."""

    request_seconds: float  # once a request
    step_seconds: float  # every step: overheads
    weights_seconds: float  # every step: weights that all tokens read, and the head
    data_ranks: int  # each with sequences of its own; seconds are those of one, but for routed experts
    experts_seconds: float  # all routed experts read
    idle_expert_ratio: float  # chance that one token leaves an expert unread: 1 - chosen / count; 1 without experts
    token_seconds: float  # compute of one token
    pooled_token_seconds: float  # compute of one token on the GPUs of all ranks: its routed experts; 0 with one rank
    decode_token_seconds: float  # the same with the head, which every decoding sequence needs
    exchange_seconds: float  # moving one token's activations between GPUs
    pair_seconds: float  # compute of a pair in a prefill, whatever the distance
    decode_pair_seconds: float  # the same in a decode step (MLA computes it on the compressed cache)
    expansion_seconds: float  # MLA: expanding one past token, the other way to prefill; 0 without
    context_seconds: float  # reading one cached token, whatever the distance
    state_seconds: float  # reading and writing what a sequence keeps that does not grow
    window_tokens: int  # reach of the layers that do not see everything; 0 without
    window_pair_seconds: float  # compute of a pair within it
    window_seconds: float  # reading one cached token within it
    chunk_tokens: int  # tokens in one step at most

    def prefill_seconds(self, uncached: int, cached: int, running: float, running_context_tokens: float) -> float:
        """Start of the first step → first token, for ``uncached`` tokens on ``cached`` ones beside ``running`` sequences.

        ``running_context_tokens`` is the sum of the contexts of the sequences that decode meanwhile.
        """
        chunks = -(-uncached // self.chunk_tokens)
        pooled = 0.0
        read = self.experts_seconds * (1.0 - math.pow(self.idle_expert_ratio, uncached / chunks + running))
        if self.data_ranks > 1:
            pooled = (uncached + chunks * running) * self.pooled_token_seconds
            beside = max(0.0, (running + 1.0) / self.data_ranks - 1.0)  # of the others, those on the same rank
            running_context_tokens *= beside / running if running else 0.0
            running = beside
        seen = cached + 0.5 * uncached
        attention = uncached * seen * self.pair_seconds
        if self.expansion_seconds:
            absorbed = uncached * seen * self.decode_pair_seconds
            attention = min(absorbed, attention + chunks * seen * self.expansion_seconds)
        decoding = running * self.decode_token_seconds + running_context_tokens * self.decode_pair_seconds
        compute = pooled + uncached * self.token_seconds + attention + chunks * decoding
        others = running * self.state_seconds + (running_context_tokens + seen) * self.context_seconds
        memory = chunks * (self.weights_seconds + read + others)
        if self.window_tokens:
            window = self.window_tokens
            reach = seen if seen < window else window  # noqa: FURB136 - a call of min() would be a tenth of the whole
            most = running * window
            kept = running_context_tokens if running_context_tokens < most else most  # noqa: FURB136
            compute += (uncached * reach + chunks * kept) * self.window_pair_seconds
            memory += chunks * (reach + kept) * self.window_seconds
        fixed = self.request_seconds + chunks * self.step_seconds + (uncached + chunks * running) * self.exchange_seconds
        return fixed + (compute if compute > memory else memory)  # noqa: FURB136

    def decode_seconds(self, running: float, running_context_tokens: float) -> float:
        """One step of ``running`` sequences (the request among them) whose contexts add up to ``running_context_tokens``."""
        read = self.experts_seconds * (1.0 - math.pow(self.idle_expert_ratio, running))
        pooled = 0.0
        if self.data_ranks > 1:
            pooled = running * self.pooled_token_seconds
            shared = max(1.0, min(self.data_ranks, running))
            running, running_context_tokens = running / shared, running_context_tokens / shared
        compute = pooled + running * self.decode_token_seconds + running_context_tokens * self.decode_pair_seconds
        memory = self.weights_seconds + read + running * self.state_seconds + running_context_tokens * self.context_seconds
        if self.window_tokens:
            kept = min(running_context_tokens, running * self.window_tokens)
            compute += kept * self.window_pair_seconds
            memory += kept * self.window_seconds
        return self.step_seconds + running * self.exchange_seconds + max(compute, memory)


def closed_form(deployment: Deployment, losses: Losses, *, chunk_tokens: int = 8192) -> ClosedForm:
    """The coefficients of one worker. ``chunk_tokens``: what its engine computes in one step at most."""
    rates = deployment.rates
    bandwidth = rates.rank_bytes_per_second * losses.memory_efficiency_ratio
    gpus = rates.rank_gpus * losses.compute_efficiency_ratio
    pooled_seconds = rates.expert_token_seconds if rates.data_ranks > 1 else 0.0
    everything = [row for row in rates.attention if row.full_from < 0]
    windowed = [row for row in rates.attention if row.full_from >= 0]
    experts_bytes = sum(experts.bytes for experts in rates.experts)
    one_token = expected(deployment, [Span(1, 1)], losses)
    return ClosedForm(
        request_seconds=losses.request_overhead_seconds,
        step_seconds=one_token.overhead_seconds,
        weights_seconds=(rates.step_bytes + rates.head_bytes) / bandwidth,
        data_ranks=rates.data_ranks,
        experts_seconds=experts_bytes / (rates.bytes_per_second * losses.memory_efficiency_ratio),
        idle_expert_ratio=sum(part.bytes * part.idle_ratio for part in rates.experts) / experts_bytes if experts_bytes else 1.0,
        token_seconds=(rates.token_seconds - pooled_seconds) / gpus,
        pooled_token_seconds=pooled_seconds / (rates.gpus * losses.compute_efficiency_ratio),
        decode_token_seconds=(rates.token_seconds - pooled_seconds + rates.logit_seconds) / gpus,
        exchange_seconds=one_token.exchange_seconds,
        pair_seconds=sum(row.flop_per_pair / row.flop_per_second for row in everything) / gpus,
        decode_pair_seconds=sum(_decode_flop(row) / row.flop_per_second for row in everything) / gpus,
        expansion_seconds=sum(row.expansion_flop_per_token / row.flop_per_second for row in everything) / gpus,
        context_seconds=_bytes_per_token(everything) / bandwidth,
        state_seconds=2 * rates.state_bytes / bandwidth,
        window_tokens=_mean_window(windowed),
        window_pair_seconds=sum(_decode_flop(row) / row.flop_per_second for row in windowed) / gpus,
        window_seconds=_bytes_per_token(windowed) / bandwidth,
        chunk_tokens=chunk_tokens,
    )


def _decode_flop(row: AttentionRates) -> float:
    return row.absorbed_flop_per_pair or row.flop_per_pair


def _bytes_per_token(rows: list[AttentionRates]) -> float:
    return sum((1.0 + row.copies) * row.bytes_per_token for row in rows)


def _mean_window(rows: list[AttentionRates]) -> int:
    total = sum(row.bytes_per_token for row in rows)
    return round(sum(row.bytes_per_token * (row.term.reach.tokens or 0) for row in rows) / total) if total else 0
