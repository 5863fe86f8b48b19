"""The three numbers that a request's figures are held against: floor, reference, expected.

*Floor*: what this request alone can have needed at the very least; nothing may beat it. *Reference*: the same with the batch
that ran, the engine's chunks and the experts that many tokens reach. *Expected*: the reference with calibrated losses.
``floor <= reference <= expected`` for each figure.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from roofline.bound import Binds
from roofline.cost import cost, least_and_cost
from roofline.deployment import Deployment
from roofline.expected import Losses, expected_of
from roofline.work import Routing, Span


class Surroundings(NamedTuple):
    """What else the worker did while the request ran, as means over the time of the figure in question.

    ``running`` counts other sequences that were decoding (not the request itself), ``context_tokens`` is the mean of their
    contexts. ``chunk_tokens``: tokens that the engine computes in one step at most (vLLM: --max-num-batched-tokens);
    ``None``: a prompt is computed in one step.
    """

    running: float = 0.0
    context_tokens: int = 0
    chunk_tokens: int | None = None


ALONE = Surroundings()


class Limit(NamedTuple):
    """One figure's three numbers, in seconds, and what sets the floor."""

    floor_seconds: float
    reference_seconds: float
    expected_seconds: float
    binds: Binds
    flop: float  # of the floor's work
    bytes: float  # of the floor's work


def prefill_limit(
    deployment: Deployment, losses: Losses, *, prompt_tokens: int, cached_tokens: int = 0, around: Surroundings = ALONE
) -> Limit:
    """From the start of a request's first step to its first token: held against upstream TTFT, once queues are taken off.

    ``cached_tokens`` of the prompt are found in the prefix cache; at least one token is always computed. Weights are read once
    for the floor, once a chunk for the others; the head runs for the last position only. ``ValueError`` if there are no tokens.
    """
    spans = prefill_spans(prompt_tokens, cached_tokens, around)
    cached, new, *_ = spans[0]
    if spans[0].steps == 1:
        least, done = least_and_cost(deployment, spans)
    else:
        least, done = cost(deployment, (Span(cached, new),), Routing.FEWEST), cost(deployment, spans)
    # Chunks may be computed in all stages of a pipeline at once, but the first one passes the weights stage after stage.
    compute_seconds = least.compute_seconds / (deployment.parallelism.pipeline if new > 1 else 1)
    floor = max(compute_seconds, least.memory_seconds)
    binds: Binds = "compute" if compute_seconds > least.memory_seconds else "memory"
    calibrated = expected_of(deployment, done, losses).seconds + losses.request_overhead_seconds
    return Limit(floor, done.seconds, calibrated, binds, least.flop, least.bytes)


def decode_limit(
    deployment: Deployment, losses: Losses, *, context_tokens: int, completion_tokens: int = 2, around: Surroundings = ALONE
) -> Limit:
    """One output token after the first, the mean over all of them: held against TPOT.

    ``context_tokens`` is the length of the prompt; the cache grows while ``completion_tokens`` are made (the first of them by
    the prefill, so at least 2). ``around`` holds the other sequences of the batch.
    """
    spans = decode_spans(context_tokens, completion_tokens, around)
    steps = completion_tokens - 1
    least, done = least_and_cost(deployment, spans)
    calibrated = expected_of(deployment, done, losses).seconds / steps
    return Limit(least.seconds / steps, done.seconds / steps, calibrated, least.binds, least.flop / steps, least.bytes / steps)


def e2e_seconds(ttft_seconds: float, tpot_seconds: float | None, completion_tokens: int) -> float:
    """Whole answer: the first token, and a TPOT for each one after it (the first is not counted twice).

    ``tpot_seconds`` may be ``None`` for an answer of one token.
    """
    return ttft_seconds + (completion_tokens - 1) * tpot_seconds if tpot_seconds and completion_tokens > 1 else ttft_seconds


def prefill_spans(prompt_tokens: int, cached_tokens: int, around: Surroundings) -> tuple[Span, ...]:
    """What runs while a prompt is computed: the prompt in the engine's chunks, then the others' decoding in the same steps.

    ``ValueError`` if there are no tokens, or more cached ones than there are.
    """
    if prompt_tokens < 1:
        raise ValueError(f"a prompt has at least one token, not {prompt_tokens}")
    if not 0 <= cached_tokens <= prompt_tokens:
        raise ValueError(f"cached tokens are part of the prompt's {prompt_tokens}, not {cached_tokens}")
    cached = min(cached_tokens, prompt_tokens - 1)
    new = prompt_tokens - cached
    chunks = 1
    if around.chunk_tokens is not None:
        room = max(1, around.chunk_tokens - int(around.running))  # each decoding sequence takes a token of the step's budget
        chunks = ceil(new / room)
    own = Span(cached, new, 1.0, chunks)
    if around.running <= 0:
        return (own,)
    return (own, Span(around.context_tokens, chunks, around.running, chunks, chunks))


def decode_spans(context_tokens: int, completion_tokens: int, around: Surroundings) -> tuple[Span, ...]:
    """What runs while an answer is decoded: its own steps on a growing context, then the others in the same steps.

    Others come and go: in the mean over the answer they stay as they are. ``ValueError`` below two completion tokens.
    """
    if context_tokens < 1 or completion_tokens < 2:
        raise ValueError(f"TPOT needs a prompt and 2 completion tokens, not {context_tokens} and {completion_tokens}")
    steps = completion_tokens - 1
    own = Span(context_tokens, steps, 1.0, steps, steps)
    if around.running <= 0:
        return (own,)
    return (own, Span(max(0, around.context_tokens - steps // 2), steps, around.running, steps, steps))
