"""How many tokens a prompt will have, before anybody counted.

A first estimate from byte counts; the interval is wide on purpose and is what refusals are judged by.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

_BYTES_PER_TOKEN = 4.0  # English prose and code: 3.8 to 4.3 with today's vocabularies
_BYTES_PER_TOKEN_OTHER = 3.0  # texts with many bytes above ASCII: 2.8 to 3.9
_MOST_BYTES_PER_TOKEN = 16.0  # runs of blanks become tokens of this size and more
_TEMPLATE_TOKENS = 8  # what a chat template adds to a short conversation
_IDS = re.compile(rb"\[\s*\d")


class TokenEstimate(msgspec.Struct, frozen=True, gc=False):
    """Prompt tokens: the likely number, and the least and most it can reasonably be."""

    tokens: int
    least: int
    most: int


def estimate_tokens(texts: Sequence[bytes | memoryview]) -> TokenEstimate:
    """Estimate from the raw JSON of messages or prompt, and tools. A prompt of token ids is counted, not guessed."""
    size = 0
    likely = 0.0
    counted = 0
    for text in texts:
        raw = bytes(text)
        length = len(raw)
        if raw[:1] == b"[" and _IDS.match(raw):
            counted += raw.count(b",") + 1
            continue
        size += length
        likely += length / (_BYTES_PER_TOKEN if raw.isascii() else _BYTES_PER_TOKEN_OTHER)
    if not size:
        return TokenEstimate(counted, counted, counted)
    return TokenEstimate(
        counted + int(likely) + _TEMPLATE_TOKENS,
        counted + int(size / _MOST_BYTES_PER_TOKEN),
        counted + size + _TEMPLATE_TOKENS,
    )
