"""The least time of engine steps and everything their expected time is made of, as sums.

The same counts as `roofline.work`, without its operators one by one: this is what is computed for every request, so it
works on coefficients that are added up once per deployment. A test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from roofline.bound import Binds
from roofline.deployment import Deployment
from roofline.rates import Rates
from roofline.work import Routing, Span, attended


class Cost(NamedTuple):
    """What some steps cost. Seconds are at full peaks, on all GPUs that these sequences can use at once.

    A sequence has the GPUs of one data-parallel rank to itself, and those of all ranks for routed experts.
    """

    flop: float
    bytes: float
    compute_seconds: float
    memory_seconds: float
    rank_memory_seconds: float  # with cache that several GPUs each read; at least memory_seconds
    layer_steps: float  # layers x steps
    rank_tokens: float  # tokens computed by each data-parallel rank in use

    @property
    def seconds(self) -> float:
        """The slower of compute and memory, perfectly overlapped: nothing that really does this work is faster."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def binds(self) -> Binds:
        """Which of the two it is."""
        return "compute" if self.compute_seconds > self.memory_seconds else "memory"

    def mfu_ratio(self, measured_seconds: float) -> float:
        """Model FLOP utilisation: share of the peaks of all GPUs that work at once, over the measured time of these steps."""
        return self.compute_seconds / measured_seconds

    def mbu_ratio(self, measured_seconds: float) -> float:
        """Memory bandwidth utilisation: share of the bandwidth of all GPUs that work at once, over the measured time."""
        return self.memory_seconds / measured_seconds


def cost(deployment: Deployment, spans: Sequence[Span], routing: Routing = Routing.UNIFORM) -> Cost:
    """What the steps cost in which all these spans ran together. ``ValueError`` if their numbers of steps differ.

    With data parallelism the seconds are those of the rank that computes the first span: sequences are spread evenly, so a rank
    has others beside it only once every rank has one.
    """
    rates = deployment.rates
    steps = spans[0].steps
    sums = _sums(rates, spans)
    if rates.data_ranks == 1:
        return _cost_of_one_rank(rates, sums, steps, routing)
    all_ranks = _whole(rates, sums, steps, routing)
    own = _whole(rates, _sums(rates, _of_one_rank(spans, rates.data_ranks)), steps, routing)
    own_compute_seconds = own.compute_seconds - own.tokens * rates.expert_token_seconds
    memory_seconds = own.moved / rates.rank_bytes_per_second + all_ranks.expert_bytes / rates.bytes_per_second
    return Cost(
        all_ranks.flop,
        all_ranks.moved + all_ranks.expert_bytes,
        own_compute_seconds / rates.rank_gpus + all_ranks.tokens * rates.expert_token_seconds / rates.gpus,
        memory_seconds,
        memory_seconds + own.copied / rates.rank_bytes_per_second,
        rates.layers * steps,
        own.tokens,
    )


def least_and_cost(deployment: Deployment, spans: Sequence[Span]) -> tuple[Cost, Cost]:
    """The cost of the first span alone, with the fewest experts that it can have reached, and that of all: in one pass.

    Up to rounding the same as two calls of `cost`. ``ValueError`` as there.
    """
    rates = deployment.rates
    if rates.data_ranks > 1:
        return cost(deployment, spans[:1], Routing.FEWEST), cost(deployment, spans)
    if len(spans) == 1 and not rates.experts:
        alone = cost(deployment, spans)
        return alone, alone
    steps = spans[0].steps
    first = _sums(rates, spans[:1])
    together = first if len(spans) == 1 else _sums(rates, spans[1:], first, steps)
    least = _cost_of_one_rank(rates, first, steps, Routing.FEWEST)
    return least, _cost_of_one_rank(rates, together, steps, Routing.UNIFORM)


def _of_one_rank(spans: Sequence[Span], ranks: int) -> list[Span]:
    """The part of the spans that the rank with the first one computes."""

    def fullest(count: float) -> float:
        return max(count / ranks, min(count, 1.0))

    first, *others = spans
    count = sum(span.count for span in others)
    share = max(0.0, fullest(first.count + count) - fullest(first.count)) / count if count else 0.0
    return [first._replace(count=fullest(first.count)), *(span._replace(count=share * span.count) for span in others)]


class _Sums(NamedTuple):
    """What is added up over spans, without what every step takes whoever is in it."""

    tokens: float = 0.0
    logits: float = 0.0
    sequences: float = 0.0
    scores: float = 0.0  # FLOP of attention
    attention_seconds: float = 0.0  # on one GPU
    moved: float = 0.0  # bytes of the cache
    copied: float = 0.0  # further copies of them


_NOTHING = _Sums()


class _Whole(NamedTuple):
    """The same with the weights that the steps read."""

    flop: float
    moved: float  # bytes without routed experts
    copied: float
    expert_bytes: float
    compute_seconds: float  # on one GPU
    tokens: float


def _sums(rates: Rates, spans: Sequence[Span], so_far: _Sums = _NOTHING, steps: int | None = None) -> _Sums:
    steps = spans[0].steps if steps is None else steps
    tokens, logits, sequences, scores, attention_seconds, moved, copied = so_far
    for span in spans:
        past, new, count, span_steps, span_logits = span
        if span_steps != steps:
            raise ValueError(f"spans of {steps} and of {span_steps} steps did not run in the same steps")
        tokens += new * count
        logits += span_logits * count
        sequences += count
        for row in rates.attention:
            term, is_plain, full_from, flop_per_pair, flop_per_second, absorbed, expansion, bytes_per_token, copies = row
            if is_plain and full_from < 0:  # what `attended` does, written out for what is met most
                pairs = new * (past + 0.5 * (new + 1))
                reads = steps * past + 0.5 * new * (steps - 1)
                flop = count * pairs * flop_per_pair
                if expansion:
                    flop = min(count * pairs * absorbed, flop + count * reads * expansion)
                cached = count * (reads + new) * bytes_per_token
            elif is_plain and not expansion and past >= full_from:
                flop = count * new * (full_from + 1) * flop_per_pair
                cached = count * (steps * full_from + new) * bytes_per_token
            else:
                flop, cached = attended(term, span)
            scores += flop
            attention_seconds += flop / flop_per_second
            moved += cached
            copied += copies * cached
    return _Sums(tokens, logits, sequences, scores, attention_seconds, moved, copied)


def _whole(rates: Rates, sums: _Sums, steps: int, routing: Routing) -> _Whole:
    tokens, logits, sequences, scores, attention_seconds, moved, copied = sums
    if rates.state_bytes:
        moved += 2.0 * sequences * steps * rates.state_bytes
    moved += rates.step_bytes * steps + rates.head_bytes * min(steps, logits)
    expert_bytes = 0.0
    for experts in rates.experts:
        distinct = experts.fewest_ratio if routing is Routing.FEWEST else 1.0 - math.pow(experts.idle_ratio, tokens / steps)
        expert_bytes += experts.bytes * distinct * steps
    return _Whole(
        scores + tokens * rates.token_flop + logits * rates.logit_flop,
        moved,
        copied,
        expert_bytes,
        tokens * rates.token_seconds + logits * rates.logit_seconds + attention_seconds,
        tokens,
    )


def _cost_of_one_rank(rates: Rates, sums: _Sums, steps: int, routing: Routing) -> Cost:
    flop, moved, copied, expert_bytes, compute_seconds, tokens = _whole(rates, sums, steps, routing)
    memory_seconds = moved / rates.bytes_per_second + expert_bytes / rates.bytes_per_second
    return Cost(
        flop,
        moved + expert_bytes,
        compute_seconds / rates.gpus,
        memory_seconds,
        memory_seconds + copied / rates.rank_bytes_per_second,
        rates.layers * steps,
        tokens,
    )
