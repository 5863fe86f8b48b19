"""A prompt's leading text as hashes: enough to see where another one diverged from it, and nothing that could be read.

Blocks of 64 bytes from the start tell the position. Pieces are cut by what stands at the cut, so that the same text is cut
alike wherever it stands: they tell what stayed the same behind a change.
"""

from __future__ import annotations

import re

import msgspec
from xxhash import xxh3_64_intdigest

BLOCK_BYTES = 64
MOST_BYTES = 16 * 1024
"""Of the leading text that is looked at; behind it prompts are as good as equal for finding a divergence."""

# Some 30 bytes in most languages; no fewer than 16, or a hostile text would cost too much.
_PIECE = re.compile(rb".{16}(?:[^\n.!?;es\xe3\xe7]|[es](?! ))*+(?:[es] |[\xe3\xe7]|[\n.!?;]++)?|.+", re.DOTALL)


class Sketch(msgspec.Struct, frozen=True, gc=False):
    """The leading text of a prompt, in hashes."""

    length_bytes: int  # of the whole leading text, UTF-8
    blocks: tuple[int, ...]  # of each `BLOCK_BYTES` from the start, the last one shorter
    pieces: tuple[tuple[int, int], ...]  # hash and length in bytes of each piece


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
    head = leading[:MOST_BYTES]
    blocks = tuple(xxh3_64_intdigest(head[at : at + BLOCK_BYTES]) for at in range(0, len(head), BLOCK_BYTES))
    pieces = tuple((xxh3_64_intdigest(piece), len(piece)) for piece in _PIECE.findall(head))
    return Sketch(len(leading), blocks, pieces)
