"""Prompts as chains of block hashes, and the KV cache that remembers them by LRU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

BLOCK_TOKENS = 16
BYTES_PER_TOKEN = 4  # the whole tokenizer: one token for four bytes of UTF-8
_HASH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as the engine sees it: how long, and which full blocks it consists of."""

    tokens: int
    blocks: tuple[bytes, ...]  # hash of each full block, chained: equal only if everything before is equal too
    digest: bytes  # of the whole prompt, the unfinished block included


def count_tokens(text: str) -> int:
    """Tokens of a text: a token for four bytes of UTF-8 begun, at least 1."""
    return max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))


def prompt_of_text(text: str, salt: str = "") -> Prompt:
    """The prompt for a text. Prompts of different ``salt`` share no block."""
    raw = text.encode()
    width = BLOCK_TOKENS * BYTES_PER_TOKEN
    return _chain(count_tokens(text), (raw[start : start + width] for start in range(0, len(raw), width)), salt)


def prompt_of_ids(ids: Sequence[int], salt: str = "") -> Prompt:
    """The prompt for token ids, which must not be empty. Prompts of different ``salt`` share no block."""
    if not ids:
        raise ValueError("a prompt needs at least one token")
    pieces = (",".join(map(str, ids[start : start + BLOCK_TOKENS])).encode() for start in range(0, len(ids), BLOCK_TOKENS))
    return _chain(len(ids), pieces, salt)


def _chain(tokens: int, pieces: Iterable[bytes], salt: str) -> Prompt:
    parent = blake2b(salt.encode(), digest_size=_HASH_BYTES).digest()
    hashes = []
    for piece in pieces:
        parent = blake2b(parent + piece, digest_size=_HASH_BYTES).digest()
        hashes.append(parent)
    return Prompt(tokens=tokens, blocks=tuple(hashes[: tokens // BLOCK_TOKENS]), digest=parent)


@dataclass(slots=True, kw_only=True)
class Lease:
    """The blocks one running sequence holds."""

    prompt: Prompt
    hit_blocks: int  # leading blocks found in the cache
    held: list[bytes] = field(default_factory=list)  # blocks held by hash, in order
    private_blocks: int = 0  # blocks nobody else can use: not yet computed, unfinished, or of the output


class BlockPool:
    """The KV cache: blocks in use, blocks that are idle and remembered (least recently used go first), free blocks."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a KV cache needs at least one block, got {capacity}")
        self.capacity = capacity
        self._users: dict[bytes, int] = {}  # sequences holding the block
        self._idle: OrderedDict[bytes, None] = OrderedDict()  # least recently used first
        self._private = 0

    def __repr__(self) -> str:
        return f"<BlockPool {self.used} used, {len(self._idle)} idle, of {self.capacity}>"

    @property
    def used(self) -> int:
        """Blocks that running sequences hold; idle cached blocks do not count."""
        return len(self._users) + self._private

    def admit(self, prompt: Prompt, output_tokens: int) -> Lease | None:
        """Reserve room for a whole sequence, output included; ``None`` if it does not fit now.

        At least the last prompt token is always computed, so a hit never covers the whole prompt.
        """
        hit = 0
        for block in prompt.blocks[: (prompt.tokens - 1) // BLOCK_TOKENS]:
            if block not in self._users and block not in self._idle:
                break
            hit += 1
        fresh = -(-(prompt.tokens + output_tokens) // BLOCK_TOKENS) - hit
        woken = sum(block in self._idle for block in prompt.blocks[:hit])
        if self.used + woken + fresh > self.capacity:
            return None
        lease = Lease(prompt=prompt, hit_blocks=hit, private_blocks=fresh)
        for block in prompt.blocks[:hit]:
            self._hold(lease, block)
        self._private += fresh
        while self.used + len(self._idle) > self.capacity:
            self._idle.popitem(last=False)
        return lease

    def publish(self, lease: Lease) -> int:
        """Offer the prompt's full blocks, now computed, to later prompts. Returns how many were not known before."""
        created = 0
        for block in lease.prompt.blocks[lease.hit_blocks :]:
            created += block not in self._users and block not in self._idle
            self._hold(lease, block)
            lease.private_blocks -= 1
            self._private -= 1
        return created

    def release(self, lease: Lease) -> None:
        """Give everything back. The published blocks stay remembered; the end of a prompt is forgotten before its start."""
        self._private -= lease.private_blocks
        lease.private_blocks = 0
        while lease.held:
            block = lease.held.pop()
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._idle[block] = None

    def _hold(self, lease: Lease, block: bytes) -> None:
        self._idle.pop(block, None)
        self._users[block] = self._users.get(block, 0) + 1
        lease.held.append(block)
