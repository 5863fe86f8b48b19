"""Prompts as chains of block keys: two prompts share the blocks of their common start, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

BLOCK_TOKENS = 16
BYTES_PER_TOKEN = 4  # the whole tokenizer: one token for four bytes of UTF-8
_HASH_BYTES = 8

BlockKey = bytes | int
"""Names a KV block: equal only if the block's tokens and all tokens before them are equal, and so is the salt."""


Piece = tuple[BlockKey, int]
"""Blocks that come one after another: the key of the first one, which stands for all, and how many there are."""


@dataclass(frozen=True, slots=True)
class BlockRuns:
    """Keys that are numbers, told as ranges: cheap for prompts of any length.

    A range stands for one text: who has its first key has the same keys behind it, as far as it goes.
    """

    runs: tuple[range, ...]

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.runs)

    @property
    def pieces(self) -> list[Piece]:
        """One for each range that is not empty."""
        return [(run.start, len(run)) for run in self.runs if run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as the engine sees it: how long, and which full blocks it consists of.

    ``blocks`` has a key for each full block of the prompt. It may go on with those of the text that will be generated, where
    later prompts are to find it in the cache; without them, generated blocks are cached but nobody can ask for them.
    """

    tokens: int
    blocks: tuple[BlockKey, ...] | BlockRuns
    digest: bytes  # of the whole prompt, the unfinished block included
    block_tokens: int = BLOCK_TOKENS

    @property
    def pieces(self) -> list[Piece]:
        """The blocks as a new list of pieces: ranges where there are ranges, else one by one."""
        blocks = self.blocks
        return blocks.pieces if isinstance(blocks, BlockRuns) else [(key, 1) for key in blocks]


def count_tokens(text: str) -> int:
    """Tokens of a text: a token for four bytes of UTF-8 begun, at least 1."""
    return max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))


def prompt_of_text(text: str, salt: str = "", block_tokens: int = BLOCK_TOKENS) -> Prompt:
    """The prompt for a text. Prompts of different ``salt`` share no block."""
    raw = text.encode()
    width = block_tokens * BYTES_PER_TOKEN
    pieces = (raw[start : start + width] for start in range(0, len(raw), width))
    return _chain(count_tokens(text), pieces, salt, block_tokens)


def prompt_of_ids(ids: Sequence[int], salt: str = "", block_tokens: int = BLOCK_TOKENS) -> Prompt:
    """The prompt for token ids, which must not be empty. Prompts of different ``salt`` share no block."""
    if not ids:
        raise ValueError("a prompt needs at least one token")
    pieces = (",".join(map(str, ids[start : start + block_tokens])).encode() for start in range(0, len(ids), block_tokens))
    return _chain(len(ids), pieces, salt, block_tokens)


def _chain(tokens: int, pieces: Iterable[bytes], salt: str, block_tokens: int) -> Prompt:
    parent = blake2b(salt.encode(), digest_size=_HASH_BYTES).digest()
    hashes = []
    for piece in pieces:
        parent = blake2b(parent + piece, digest_size=_HASH_BYTES).digest()
        hashes.append(parent)
    return Prompt(tokens=tokens, blocks=tuple(hashes[: tokens // block_tokens]), digest=parent, block_tokens=block_tokens)
