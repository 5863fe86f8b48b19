"""A prompt's leading text as hashes: enough to see where another one diverged from it, and nothing that could be read.

Blocks of 64 bytes from both ends: those from the start tell where two texts diverge, those from the end how much behind
a change has stayed the same, however much longer or shorter the text has become and whatever is written in it.
"""

from __future__ import annotations

import msgspec
from xxhash import xxh3_64_intdigest

BLOCK_BYTES = 64
MOST_BYTES = 16 * 1024
"""Of the leading text that is looked at from either end; a change that begins behind the first so many is not seen."""


class Sketch(msgspec.Struct, frozen=True, gc=False):
    """The leading text of a prompt, in hashes."""

    length_bytes: int  # of the whole leading text, UTF-8
    blocks: tuple[int, ...]  # of each `BLOCK_BYTES` from the start, the last one of a short text shorter
    ends: tuple[int, ...]  # of each `BLOCK_BYTES` from the end backwards, the last one of a short text shorter


class Beginning(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a prompt begins: a hash and the length of its system prompt, and a sketch of it when it is new here."""

    family: int
    length_bytes: int  # UTF-8
    sketch: Sketch | None
    is_salted: bool  # the request asked for a cache of its own


def family_of(leading: bytes) -> int:
    """64 bits that stand for the whole of a leading text."""
    return xxh3_64_intdigest(leading)


def sketch_of(leading: bytes) -> Sketch:
    """The sketch of a leading text: UTF-8, with no escapes left in it."""
    length = len(leading)
    seen = min(length, MOST_BYTES)
    blocks = tuple([xxh3_64_intdigest(leading[at : min(at + BLOCK_BYTES, seen)]) for at in range(0, seen, BLOCK_BYTES)])
    first = length - seen
    ends = tuple([xxh3_64_intdigest(leading[max(first, at - BLOCK_BYTES) : at]) for at in range(length, first, -BLOCK_BYTES)])
    return Sketch(length, blocks, ends)
