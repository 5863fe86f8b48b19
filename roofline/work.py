"""What engine steps compute and move: FLOP and bytes by operator, for any mix of prefill chunks and decoding sequences.

A `Span` says what one kind of sequence did over a number of steps; `work` adds up spans that ran in the same steps. One step
is the special case of one. The least time such work can take is in `roofline.bound`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from roofline.deployment import Deployment
from roofline.shape import WeightKind
from roofline.terms import AttentionTerm, WeightTerm


class Routing(Enum):
    """How many distinct experts a step reads: as few as possible, or as many as uniform independent choices are expected to."""

    FEWEST = "fewest"  # every token chooses the same: no step can read less
    UNIFORM = "uniform"  # count x (1 - (1 - chosen/count) ^ tokens)


class Span(NamedTuple):
    """``count`` sequences alike, each computing ``new`` tokens on top of ``past`` ones, in ``steps`` equal parts.

    A prefill in one go: ``Span(cached, uncached)``; in chunks of c: ``steps=ceil(uncached / c)``. One decode step:
    ``Span(context, 1)``; a decode of n tokens: ``Span(context, n, steps=n, logits=n)``. Speculative decoding with k drafts:
    ``Span(context, 1 + k, logits=1 + k)``. ``logits``: positions, over all steps, whose next token is wanted. ``past`` counts
    tokens whose cache exists before the first step.
    """

    past: int
    new: int
    count: float = 1.0  # type: ignore[assignment]  # hides tuple.count; a tuple because four are made for every request
    steps: int = 1
    logits: int = 1


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of work, summed over layers, sequences and steps, all GPUs together."""

    name: str
    flop: float
    bytes: float
    flop_per_second: float  # peak of one GPU for it


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that some steps compute and move."""

    operators: tuple[Operator, ...]
    steps: int

    @property
    def flop(self) -> float:
        """All operators' FLOP; a multiply-add is two."""
        return sum(operator.flop for operator in self.operators)

    @property
    def bytes(self) -> float:
        """Bytes to and from memory at least: weights once a step, cache read once, new entries written once."""
        return sum(operator.bytes for operator in self.operators)

    @property
    def intensity_flop_per_byte(self) -> float:
        """Arithmetic intensity, to be held against the ridge point."""
        return self.flop / self.bytes


def work(deployment: Deployment, spans: Sequence[Span], routing: Routing = Routing.UNIFORM) -> Work:
    """FLOP and bytes of the steps in which all these spans ran together. ``ValueError`` if their numbers of steps differ.

    Left out, so that times from it stay below real ones: activations, sampling, softmax, norms, communication, launches.
    Formulas: docs/theory.md, "One step".
    """
    steps = spans[0].steps
    tokens = logits = 0.0
    for span in spans:
        if span.steps != steps:
            raise ValueError(f"spans of {steps} and of {span.steps} steps did not run in the same steps")
        tokens += span.new * span.count
        logits += span.logits * span.count
    operators = [_multiply(term, tokens, logits, steps, routing) for term in deployment.weight_terms]
    operators += [_attend(term, spans) for term in deployment.attention_terms]
    if deployment.state_bytes:
        operators.append(_recur(deployment, spans, tokens))
    return Work(tuple(operators), steps)


def distinct_experts(count: int, chosen: int, tokens: float) -> float:
    """Experts of a layer that a step of ``tokens`` tokens reads, expected under uniform independent routing."""
    return count * (1.0 - math.pow(1.0 - chosen / count, tokens))


def _multiply(term: WeightTerm, tokens: float, logits: float, steps: int, routing: Routing) -> Operator:
    if term.kind is WeightKind.EMBEDDING:  # rows are looked up: too few bytes to matter, and no FLOP
        return Operator(term.kind, 0.0, 0.0, term.flop_per_second)
    if term.kind is WeightKind.HEAD:  # only steps that want a next token read it
        return Operator(term.kind, term.flop_per_use * logits, term.bytes * min(steps, logits), term.flop_per_second)
    read = term.bytes
    if term.experts is not None:
        count, chosen = term.experts.count, term.experts.chosen
        distinct = chosen if routing is Routing.FEWEST else distinct_experts(count, chosen, tokens / steps)
        read *= distinct / count
    return Operator(term.kind, term.flop_per_use * tokens, read * steps, term.flop_per_second)


def attended(term: AttentionTerm, span: Span) -> tuple[float, float]:
    """FLOP and bytes of one attention term for one span: scores and weighted sums; cache read, new entries written."""
    past, new, count, steps, _ = span
    pairs = term.reach.pairs(past, new)
    reads = term.reach.reads(past, new, steps)
    scores = pairs * term.flop_per_pair
    moved = (reads + new) * term.bytes_per_token
    if term.absorbed_flop_per_pair is not None:  # two ways to compute the same: the cheaper one
        scores = min(pairs * term.absorbed_flop_per_pair, scores + reads * term.expansion_flop_per_token)
    return count * scores, count * moved


def _attend(term: AttentionTerm, spans: Sequence[Span]) -> Operator:
    parts = [attended(term, span) for span in spans]
    return Operator(term.name, sum(flop for flop, _ in parts), sum(moved for _, moved in parts), term.flop_per_second)


def _recur(deployment: Deployment, spans: Sequence[Span], tokens: float) -> Operator:
    touched = sum(span.count * span.steps for span in spans)
    return Operator(
        "recurrent state",
        tokens * deployment.recurrence_flop_per_token,
        2.0 * touched * deployment.state_bytes,  # read and written by every step
        deployment.native_flop_per_second,
    )
