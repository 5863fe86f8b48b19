"""How long a worker may say nothing before that means something: long prompts and long answers in one piece take their time."""

from __future__ import annotations

CAUTIOUS_PREFILL = 500.0
"""Prompt tokens a second that any worker computes, where nothing better is known of it."""
CAUTIOUS_DECODE = 5.0
"""Tokens a second of one answer, the same."""
LIMIT_FACTOR = 3.0
"""How many times the time that is expected, where it is known, a worker may take to say anything."""
MOST_CONTEXT_TOKENS = 2**20
"""Longer contexts are not waited for where the worker does not say how long a request it can hold."""


def expected_silence_seconds(
    prompt_tokens: int,
    output_tokens: int,
    *,
    prefill_tokens_per_second: float | None = None,
    decode_tokens_per_second: float | None = None,
) -> float:
    """Seconds that a worker computes before it can say anything: the prompts before it, and the output that comes in one piece.

    ``output_tokens`` is 0 for a stream. A rate that is not known (None) is taken for a very low one.
    """
    prefill = prompt_tokens / (prefill_tokens_per_second or CAUTIOUS_PREFILL)
    return prefill + output_tokens / (decode_tokens_per_second or CAUTIOUS_DECODE)


def held_tokens(tokens: int, max_model_len: int | None) -> int:
    """The part of so many tokens that a worker may have to compute: it refuses at once what it cannot hold.

    Without this bound the estimate of a body of tens of megabytes would be worth hours of patience. ``None`` is not known.
    """
    return min(tokens, MOST_CONTEXT_TOKENS if max_model_len is None else max_model_len)


def first_byte_limit_seconds(configured_seconds: float, expected_seconds: float | None) -> float:
    """The limit in force: the configured one, and more for a request that is known to take long (None: not known)."""
    if expected_seconds is None:
        return configured_seconds
    return max(configured_seconds, LIMIT_FACTOR * expected_seconds)
