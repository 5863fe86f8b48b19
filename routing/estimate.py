"""How many tokens a prompt will have, before anybody counted.

A first estimate from byte counts; the interval is wide on purpose and is what refusals are judged by.
"""

from __future__ import annotations

import msgspec

_BYTES_PER_TOKEN = 4.0  # English prose and code: 3.8 to 4.3 with today's vocabularies
_BYTES_PER_TOKEN_OTHER = 3.0  # texts with many bytes above ASCII: 2.8 to 3.9
_MOST_BYTES_PER_TOKEN = 16.0  # runs of blanks become tokens of this size and more
_TEMPLATE_TOKENS = 8  # what a chat template adds to a short conversation


class TokenEstimate(msgspec.Struct, frozen=True, gc=False):
    """Prompt tokens: the likely number, and the least and most it can reasonably be."""

    tokens: int
    least: int
    most: int


def estimate_tokens(text_bytes: int, token_ids: int, *, is_ascii: bool) -> TokenEstimate:
    """Estimate from the bytes of the raw JSON of messages or prompt, and tools; ``token_ids`` are counted already."""
    if not text_bytes:
        return TokenEstimate(token_ids, token_ids, token_ids)
    likely = text_bytes / (_BYTES_PER_TOKEN if is_ascii else _BYTES_PER_TOKEN_OTHER)
    return TokenEstimate(
        token_ids + int(likely) + _TEMPLATE_TOKENS,
        token_ids + int(text_bytes / _MOST_BYTES_PER_TOKEN),
        token_ids + text_bytes + _TEMPLATE_TOKENS,
    )
