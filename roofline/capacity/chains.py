"""A task that calls a model several times, each call with what the one before said: agents.

Typical tasks call three to five times. Latencies add up, and every call reads the whole history again unless it is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from roofline.deployment import Deployment
from roofline.expected import Losses
from roofline.limits import ALONE, Surroundings, decode_limit, prefill_limit

TYPICAL_CALLS = (3, 5)
_PREFILL_REMEDIES = (
    "compress the history: summaries instead of whole answers",
    "keep prompts alike from their first token on, so that the prefix cache hits",
    "truncate: drop tool output and turns that are no longer needed",
)
_DECODE_REMEDIES = (
    "shorter intermediate output: plans and tool calls need no prose",
    "fewer calls: let one call do what two did",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as the task makes it. ``ValueError`` for lengths or shares that cannot be.

    With ``has_history`` all earlier prompts and completions of the chain stand before this call's own ``prompt_tokens``, and
    ``cached_ratio`` of them is found in the prefix cache. Without history it is a share of the prompt itself.
    """

    prompt_tokens: int
    completion_tokens: int
    has_history: bool = False
    cached_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.completion_tokens < 1:
            raise ValueError(f"a call has prompt and completion tokens, not {self.prompt_tokens} and {self.completion_tokens}")
        if not 0.0 <= self.cached_ratio <= 1.0:
            raise ValueError(f"cached_ratio lies in 0-1, not {self.cached_ratio}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One call as the worker sees it."""

    prompt_tokens: int  # with history
    cached_tokens: int
    completion_tokens: int

    @property
    def uncached_tokens(self) -> int:
        """What must be computed; at least the last token always is."""
        return max(1, self.prompt_tokens - self.cached_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedTurn:
    """A turn and what it takes."""

    turn: Turn
    prefill_seconds: float
    tpot_seconds: float

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last; the first is part of the prefill."""
        return (self.turn.completion_tokens - 1) * self.tpot_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTime:
    """What a whole chain takes, one call after the other, without what the task itself does in between."""

    turns: tuple[TimedTurn, ...]

    @property
    def prompt_tokens(self) -> int:
        """Of all calls, cached ones too."""
        return sum(timed.turn.prompt_tokens for timed in self.turns)

    @property
    def cached_tokens(self) -> int:
        """Of all calls."""
        return sum(timed.turn.cached_tokens for timed in self.turns)

    @property
    def completion_tokens(self) -> int:
        """Of all calls."""
        return sum(timed.turn.completion_tokens for timed in self.turns)

    @property
    def prefill_seconds(self) -> float:
        """Of all calls."""
        return sum(timed.prefill_seconds for timed in self.turns)

    @property
    def decode_seconds(self) -> float:
        """Of all calls."""
        return sum(timed.decode_seconds for timed in self.turns)

    @property
    def latency_seconds(self) -> float:
        """The whole chain."""
        return self.prefill_seconds + self.decode_seconds

    @property
    def dominant(self) -> Literal["prefill", "decode"]:
        """Which side takes more of the time."""
        return "prefill" if self.prefill_seconds > self.decode_seconds else "decode"

    @property
    def remedies(self) -> tuple[str, ...]:
        """What would shorten the side that takes more."""
        return _PREFILL_REMEDIES if self.dominant == "prefill" else _DECODE_REMEDIES


def turns(calls: Sequence[Call]) -> tuple[Turn, ...]:
    """The calls with their history, as the worker sees them. ``ValueError`` if there are none."""
    if not calls:
        raise ValueError("a chain has at least one call")
    seen = []
    history = 0
    for call in calls:
        before = history if call.has_history else 0
        prompt = before + call.prompt_tokens
        cached = int((before or prompt) * call.cached_ratio)
        seen.append(Turn(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=call.completion_tokens))
        history += call.prompt_tokens + call.completion_tokens
    return tuple(seen)


def chain_time(
    calls: Sequence[Call],
    prefill_seconds: Callable[[Turn], float],
    tpot_seconds: Callable[[Turn], float],
) -> ChainTime:
    """What the chain takes if a turn's prefill and each token after the first take so long. ``ValueError`` without calls."""
    return ChainTime(
        turns=tuple(
            TimedTurn(turn=turn, prefill_seconds=prefill_seconds(turn), tpot_seconds=tpot_seconds(turn))
            for turn in turns(calls)
        )
    )


def chain_on(deployment: Deployment, losses: Losses, calls: Sequence[Call], around: Surroundings = ALONE) -> ChainTime:
    """What the chain is expected to take on a worker that does ``around`` besides."""

    def prefill_seconds(turn: Turn) -> float:
        limit = prefill_limit(
            deployment, losses, prompt_tokens=turn.prompt_tokens, cached_tokens=turn.cached_tokens, around=around
        )
        return limit.expected_seconds

    def tpot_seconds(turn: Turn) -> float:
        limit = decode_limit(
            deployment,
            losses,
            context_tokens=turn.prompt_tokens,
            completion_tokens=max(2, turn.completion_tokens),
            around=around,
        )
        return limit.expected_seconds

    return chain_time(calls, prefill_seconds, tpot_seconds)
