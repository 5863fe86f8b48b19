"""A prompt's leading text as hashes: enough to see where another one diverged from it, and nothing that could be read.

Blocks of 64 bytes from the start tell the position. Pieces are cut by what stands at the cut, so that the same text is cut
alike wherever it stands: they tell what stayed the same behind a change.
"""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec

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


def family_of(leading: bytes) -> int:
    """64 bits that stand for the whole of a leading text."""
    return _hash(leading)


def sketch_of(leading: bytes) -> Sketch:
    """The sketch of a leading text: UTF-8, with no escapes left in it."""
    head = leading[:MOST_BYTES]
    blocks = tuple(_hash(head[at : at + BLOCK_BYTES]) for at in range(0, len(head), BLOCK_BYTES))
    pieces = tuple((_hash(piece), len(piece)) for piece in _PIECE.findall(head))
    return Sketch(len(leading), blocks, pieces)


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest())
