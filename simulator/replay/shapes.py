"""A recorded request without its content: when, how long, how much of it was cached, and with whom it shares a beginning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import ceil

from simulator.arrivals import Arrival
from simulator.engine.prefix import BLOCK_TOKENS, BlockRuns, Prompt

_KEY_BITS = 40
_PLACE_BITS = 22
_BUDGET_SHARE = 0.99  # of outputs lie below the budget that the gateway learns


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One request. ``None`` is not told."""

    at_seconds: float  # from the first one on, once they are sorted; until then of the record's own clock
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None  # declared
    cached_tokens: int | None = None
    family: str | None = None  # requests of one family begin alike, as far as they were cached
    blocks: tuple[int, ...] | None = None  # names of blocks of ``block_tokens``, equal where the texts are equal so far
    block_tokens: int = 512
    session: int = 0
    model: str | None = None
    pool: str | None = None  # that served it
    worker: str | None = None  # the one of the pool


@dataclass(slots=True)
class Reading:
    """What a file of records held."""

    format: str = ""  # ridgeline, mooncake, azure or burstgpt
    shapes: list[Shape] = field(default_factory=list)
    lines: int = 0
    bad: int = 0  # lines that could not be read
    first_bad: str | None = None  # number and reason
    passed_over: dict[str, int] = field(default_factory=dict)  # requests that say nothing of lengths, by reason

    def fault(self, number: int, reason: str) -> None:
        """A line that could not be read."""
        self.bad += 1
        self.first_bad = self.first_bad or f"line {number}: {reason}"

    def pass_over(self, reason: str) -> None:
        """A request that cannot be served again."""
        self.passed_over[reason] = self.passed_over.get(reason, 0) + 1


def in_order(shapes: Iterable[Shape], *, faster: float = 1.0) -> list[Shape]:
    """Sorted by arrival, the first at 0; ``faster`` 2 brings them in half the time."""
    ordered = sorted(shapes, key=lambda shape: shape.at_seconds)
    start = ordered[0].at_seconds if ordered else 0.0
    return [_moved(shape, (shape.at_seconds - start) / faster) for shape in ordered]


def window(shapes: Sequence[Shape], count: int) -> list[Shape]:
    """So many that follow each other, from the middle of the trace, the first at 0."""
    start = max(0, (len(shapes) - count) // 2)
    return in_order(shapes[start : start + count])


def output_budget(shapes: Sequence[Shape]) -> int:
    """What the gateway would learn: 99 % of outputs are no longer. At least 1."""
    ordered = sorted(shape.output_tokens for shape in shapes)
    return ordered[min(len(ordered) - 1, ceil(_BUDGET_SHARE * len(ordered)))] if ordered else 1


def total_tokens(shape: Shape, budget: int) -> int:
    """Prompt and output budget together, by which the gateway chooses a pool."""
    return shape.prompt_tokens + _declared(shape, budget)


def arrivals_of(shapes: Sequence[Shape], budget: int) -> list[Arrival]:
    """Requests for the simulated engines, in order. Beginnings that were cached are shared within a family."""
    longest: dict[str, int] = {}
    for shape in shapes:
        if shape.family is not None and shape.cached_tokens:
            longest[shape.family] = max(longest.get(shape.family, 0), shape.cached_tokens)
    return [
        Arrival(
            at_seconds=round(shape.at_seconds, 6),
            prompt=Prompt(tokens=shape.prompt_tokens, blocks=_blocks(shape, number, longest), digest=b""),
            output_tokens=shape.output_tokens,
            max_tokens=_declared(shape, budget),
            kind=shape.pool or "",
            session=shape.session or number + 1,
        )
        for number, shape in enumerate(shapes)
    ]


def _declared(shape: Shape, budget: int) -> int:
    return budget if shape.max_tokens is None else max(1, min(shape.max_tokens, budget))


def _blocks(shape: Shape, number: int, longest: dict[str, int]) -> BlockRuns:
    own = number << _PLACE_BITS  # families' numbers are far above
    if shape.blocks is not None:
        return BlockRuns(_named_blocks(shape) or (range(own, own),))
    everything = (shape.prompt_tokens + shape.output_tokens) // BLOCK_TOKENS
    shared = 0
    if shape.family is not None:
        # The first of a family found nothing and left its beginning for the others.
        shared = min(shape.cached_tokens or longest.get(shape.family, 0), shape.prompt_tokens - 1) // BLOCK_TOKENS
    if not shared or shape.family is None:
        return BlockRuns((range(own, own + everything),))
    key = _key(shape.family)
    return BlockRuns((range(key, key + shared), range(own + shared, own + everything)))


def _named_blocks(shape: Shape) -> tuple[range, ...]:
    """Blocks with names of their own, each some of the engine's; what is generated behind them is nobody's beginning.

    None in a prompt that fills no block.
    """
    each = max(1, shape.block_tokens // BLOCK_TOKENS)
    room = shape.prompt_tokens // BLOCK_TOKENS
    runs = []
    for name in shape.blocks or ():
        size = min(each, room)
        if size <= 0:
            break
        start = (name + 1) << _PLACE_BITS
        runs.append(range(start, start + size))
        room -= size
    return tuple(runs)


def _key(family: str) -> int:
    digest = blake2b(family.encode(), digest_size=_KEY_BITS // 8).digest()
    return (int.from_bytes(digest, "big") | (1 << _KEY_BITS)) << _PLACE_BITS


def _moved(shape: Shape, at_seconds: float) -> Shape:
    return Shape(
        at_seconds=at_seconds,
        prompt_tokens=shape.prompt_tokens,
        output_tokens=shape.output_tokens,
        max_tokens=shape.max_tokens,
        cached_tokens=shape.cached_tokens,
        family=shape.family,
        blocks=shape.blocks,
        block_tokens=shape.block_tokens,
        session=shape.session,
        model=shape.model,
        pool=shape.pool,
        worker=shape.worker,
    )
