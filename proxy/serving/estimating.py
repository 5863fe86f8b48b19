"""What a request asks for in tokens, from its body and from what control has learned of its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routing.demand import ASSUMED_OUTPUT_TOKENS, Demand
from routing.estimate import UNLEARNED, Prompt, TokenEstimate, estimate, estimate_by_size
from routing.estimate_prompt import NO_PROMPT, read_chat, read_prompt
from routing.estimate_text import LONGEST_TOKEN_BYTES, is_monotonous
from routing.guidance import Guidance
from routing.topology import Key, Model
from telemetry.record import Misroute

if TYPE_CHECKING:
    from proxy.wire.inference import InferenceRequest

_TEMPLATE_BYTES = 1024
"""Tokens that a template may add, as bytes: a text shorter than a pool's range by this much surely fits it."""
_SMALL_BYTES = 16 * 1024
_TAUGHT_BY = 0b111
"""Where no choice depends on a small prompt's length, only one in eight is read: those whose size has none of these bits."""


def demand_of(request: InferenceRequest, model: Model, key: Key | None, guidance: Guidance) -> Demand:
    """The demand of a request: an interval of prompt tokens, and what output is to be expected."""
    learned = guidance.models.get(model.name)
    output = None
    if learned is None:
        coefficients = UNLEARNED
    else:
        coefficients = learned.tokens or UNLEARNED
        if model.output_quantile is not None and learned.output_tokens:
            output = learned.output_tokens.get("" if key is None else key.name) or learned.output_tokens.get("")
    size = request.text_bytes
    if size & _TAUGHT_BY and model.is_simple and size <= _SMALL_BYTES and request.prompts == 1:
        found = estimate_by_size(size, coefficients, is_ascii=request.is_ascii)
        return Demand(found, request.max_tokens, output, sequences=request.choices)
    prompt = _read(request, model)
    found = estimate(prompt, coefficients, model.image_tokens, model.audio_tokens)
    largest = model.pools[-1].max_total_tokens
    if largest is not None and found.least > largest and is_monotonous(bytes(request.messages or request.prompt)):
        # Vocabularies have tokens of many blanks or equal letters: only the worker knows how few it comes to.
        found = TokenEstimate(found.tokens, min(found.least, size // LONGEST_TOKEN_BYTES), found.most)
    return Demand(
        found,
        max_tokens=request.max_tokens,
        expected_output_tokens=output,
        prompt=prompt,
        batch_tokens=None if prompt.prompts == 1 else int(found.tokens * prompt.batch_ratio),
        sequences=request.choices,
    )


def _read(request: InferenceRequest, model: Model) -> Prompt:
    if not request.text_bytes and not request.token_ids:
        return NO_PROMPT
    # No text has more tokens than bytes: where that fits the smallest pool, only load hangs on the estimate.
    smallest = model.pools[0].max_total_tokens
    most = request.text_bytes + _TEMPLATE_BYTES + (ASSUMED_OUTPUT_TOKENS if request.max_tokens is None else request.max_tokens)
    is_fine = smallest is not None and most > smallest
    if request.messages or not request.prompt:
        return read_chat(request.messages, request.others, has_tools=request.has_tools, is_fine=is_fine)
    return read_prompt(request.prompt, is_fine=is_fine)


def judge_pool(model: Model, demand: Demand, true_tokens: int) -> tuple[Misroute | None, int | None]:
    """Whether the true prompt tokens would have been given another pool, and by how much what it was chosen by was short."""
    if demand.batch_tokens is not None:
        return None, None  # what the worker says is of all its prompts
    used = demand.total_tokens
    short = true_tokens - demand.estimate.tokens
    true = used + short
    for pool in model.pools:
        limit = pool.max_total_tokens
        if limit is None:
            return None, None
        if (used <= limit) != (true <= limit):
            if pool is model.pools[-1]:
                return None, None  # both would have been given the largest
            return (Misroute.TOO_SMALL if short > 0 else Misroute.TOO_LARGE), short
    return None, None
