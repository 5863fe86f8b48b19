"""How fast the workers of each pool are expected to be: what the policy `fastest` compares, made from GPU and model shape."""

from __future__ import annotations

from roofline.closed_form import ClosedForm
from routing.guidance import Speed


def speed_of(form: ClosedForm, context_tokens: float = 2048.0) -> Speed:
    """The coefficients of one worker, for prompts of about so many tokens: a token's attention to the others is part of it."""
    half = 0.5 * context_tokens
    return Speed(
        prefill_token_seconds=form.token_seconds + half * form.pair_seconds + form.exchange_seconds,
        step_seconds=form.step_seconds + form.weights_seconds,
        running_seconds=form.decode_token_seconds + form.state_seconds + form.exchange_seconds,
        context_token_seconds=max(form.context_seconds, form.decode_pair_seconds) / max(1, form.data_ranks),
        chunk_tokens=form.chunk_tokens,
    )
