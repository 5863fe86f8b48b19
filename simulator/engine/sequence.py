"""One request in an engine: what it holds of the KV cache and how far it has come."""

from __future__ import annotations

from simulator.engine.blocks import BlockPool, Holding
from simulator.engine.values import Request


class Sequence:
    """A request from its arrival to its last token. Equal only to itself.

    ``computed`` counts tokens whose KV cache exists, of the prompt and then of what was generated. While the sequence is in a
    `DecodeGroup`, the group knows better: ``computed`` and ``generated`` hold still there.
    """

    __slots__ = (
        "blocks",
        "cached_tokens",
        "computed",
        "created_blocks",
        "ends_at",
        "fetched_tokens",
        "generated",
        "holding",
        "lost_tokens",
        "offset",
        "preemptions",
        "request",
        "target",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.computed = 0
        self.generated = 0
        self.target = request.prompt.tokens  # tokens to be computed before the next one can be generated
        self.preemptions = 0
        self.lost_tokens = 0  # computed ones that the last preemption lost
        self.cached_tokens: int | None = None  # found in the cache or fetched when it was first admitted; None before
        self.fetched_tokens = 0  # those of them that were fetched
        self.created_blocks = 0  # prompt blocks that the cache learned from it
        self.holding = Holding(request.prompt.pieces)  # blocks it uses by name
        self.blocks = 0  # all blocks it uses
        self.offset = 0  # in a decode group: computed tokens minus the group's tick
        self.ends_at = 0  # in a decode group: tick at which its last token has come

    def __repr__(self) -> str:
        request = self.request
        return (
            f"<Sequence {request.identifier}: {self.computed} computed of {request.prompt.tokens}, "
            f"{self.generated} of {request.output_tokens} generated, {self.blocks} blocks>"
        )

    @property
    def is_finished(self) -> bool:
        """Whether it has generated all of its output."""
        return self.generated == self.request.output_tokens

    @property
    def unnamed_blocks(self) -> int:
        """Blocks it uses that nobody can find: not full, not computed, or of what it generated since it was admitted."""
        return self.blocks - self.holding.blocks

    def settle(self, pool: BlockPool, tokens: int) -> None:
        """Let others find its blocks that are full with its first ``tokens`` tokens."""
        full = tokens // self.request.prompt.block_tokens - self.holding.blocks
        if full > 0:
            new = pool.name(self.holding, full)
            if not self.generated:
                self.created_blocks += new

    def give_back(self, pool: BlockPool) -> None:
        """Hold nothing any more."""
        pool.give_back(self.holding, self.unnamed_blocks)
        self.blocks = 0
        self.computed = 0
