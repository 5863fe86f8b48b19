"""How long engine steps take: what a timer is told of a step, a timer of constants, and what makes two equal steps differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp
from typing import NamedTuple, Protocol

from simulator.draws import Draws


class Part(NamedTuple):
    """What a step computes for one sequence: ``new`` tokens behind ``past`` ones whose KV cache exists.

    ``logits``: positions whose next token is wanted; 0 for a chunk of a prefill that is not the last one, 1 for the last chunk
    and for a decoding sequence, 1 + k for one that verifies k drafts.
    """

    past: int
    new: int
    logits: int


@dataclass(frozen=True, slots=True)
class Window:
    """A reach of attention: at most ``tokens`` tokens, itself included; with ``is_chunked`` anew at multiples of it."""

    tokens: int
    is_chunked: bool = False

    def reads(self, past: int) -> int:
        """Cached tokens that the token behind ``past`` ones looks at."""
        return past % self.tokens if self.is_chunked else min(past, self.tokens - 1)


class StepWork(NamedTuple):
    """What one step computes.

    Sequences that decode one token each come as sums, because a step of many of them must not cost more than one of few. The
    others come one by one: chunks of prefills, and whoever verifies drafts.
    """

    decoding: int  # sequences that compute one token and want the next
    context_tokens: int  # their pasts, summed
    windowed_tokens: tuple[int, ...]  # for each of the timer's windows, what they read of their pasts, summed
    parts: tuple[Part, ...]

    @property
    def tokens(self) -> int:
        """Tokens computed in the step."""
        return self.decoding + sum(part.new for part in self.parts)


DecodeSeconds = Callable[[range, Iterable[tuple[int, ...]]], list[float]]
"""Durations of decode steps one after another, from the context tokens and the windowed tokens of the `StepWork` of each."""


class StepTimer(Protocol):
    """Says how long a step takes; the same for the same work."""

    @property
    def request_overhead_seconds(self) -> float:
        """Once a request, between its arrival and the engine's queue: tokenising and the like; 0 for none."""

    @property
    def stream_overhead_seconds(self) -> float:
        """What each other request in flight adds to that: an API server that writes their tokens is late to read the next."""

    @property
    def windows(self) -> tuple[Window, ...]:
        """The reaches of attention for which `StepWork.windowed_tokens` is wanted."""

    def seconds(self, work: StepWork) -> float:
        """From the start of the step to its tokens; above 0."""

    def decoding(self, count: int) -> DecodeSeconds:
        """The same, to the last bit, for steps in which ``count`` sequences decode one token each and nothing else is done."""


def work_of(parts: Iterable[Part], timer: StepTimer) -> StepWork:
    """The work of a step in which every sequence is told by itself: sums are made of those that decode one token."""
    parts = tuple(parts)
    decoding = [part.past for part in parts if part.new == part.logits == 1]
    return StepWork(
        len(decoding),
        sum(decoding),
        tuple(sum(window.reads(past) for past in decoding) for window in timer.windows),
        tuple(part for part in parts if not part.new == part.logits == 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantTimer:
    """A few constants: what every step costs, and what prefills, contexts, decoding sequences and chunks add to it."""

    step_seconds: float
    prefill_seconds_per_token: float
    context_seconds_per_token: float  # of each cached token that is read
    sequence_seconds: float = 0.0  # each one that decodes
    chunk_seconds: float = 0.0  # each chunk of a prefill, and each sequence that verifies drafts
    request_overhead_seconds: float = 0.0  # once a request, outside of steps
    stream_overhead_seconds: float = 0.0  # the same, for each other request in flight when it comes

    @property
    def windows(self) -> tuple[Window, ...]:
        """None: all attention reads everything."""
        return ()

    def seconds(self, work: StepWork) -> float:
        """Base, computed tokens and tokens read, each at its price."""
        new = past = 0
        for part in work.parts:
            new += part.new
            past += part.past
        return (
            self.step_seconds
            + self.prefill_seconds_per_token * new
            + self.chunk_seconds * len(work.parts)
            + self.sequence_seconds * work.decoding
            + self.context_seconds_per_token * (work.context_tokens + past)
        )

    def decoding(self, count: int) -> DecodeSeconds:
        """The same for decode steps."""
        step, each = self.step_seconds + self.sequence_seconds * count, self.context_seconds_per_token
        return lambda contexts, _: [step + each * context for context in contexts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What makes equal steps take unequal times: a lognormal factor of mean 1, and rare stalls."""

    sigma: float = 0.0  # standard deviation of the factor's logarithm
    stall_ratio: float = 0.0  # share of steps that stall, 0-1
    stall_seconds: float = 0.0  # how much longer these take

    def __post_init__(self) -> None:
        if self.sigma < 0 or self.stall_seconds < 0 or not 0 <= self.stall_ratio <= 1:
            raise ValueError(f"sigma and stall_seconds are at least 0 and stall_ratio lies in 0-1, not {self}")

    @property
    def is_none(self) -> bool:
        """Whether it changes nothing."""
        return not self.sigma and not self.stall_ratio

    def drawn(self, draws: Draws) -> tuple[float, float]:
        """For one step: the factor on its time, and how many seconds longer it takes. Draws nothing if there is no noise."""
        factor = exp(self.sigma * draws.normal() - 0.5 * self.sigma * self.sigma) if self.sigma else 1.0
        return factor, self.stall_seconds if self.stall_ratio and draws.happens(self.stall_ratio) else 0.0


class NoiseAhead:
    """Noise on steps one after another, which may be looked at before they are taken."""

    def __init__(self, noise: Noise, draws: Draws) -> None:
        self._noise = noise
        self._draws = draws
        self._drawn: list[tuple[float, float]] = []  # factor, and seconds more, of the next steps

    def take(self, seconds: float) -> float:
        """The next step, which would take so long."""
        if self._noise.is_none:
            return seconds
        (disturbed,) = self.ahead([seconds])
        self.skip(1)
        return disturbed

    def ahead(self, durations: list[float]) -> list[float]:
        """The next steps, which would take so long. They are still to be taken, or skipped."""
        if self._noise.is_none:
            return durations
        while len(self._drawn) < len(durations):
            self._drawn.append(self._noise.drawn(self._draws))
        return [seconds * factor + added for seconds, (factor, added) in zip(durations, self._drawn, strict=False)]

    def skip(self, steps: int) -> None:
        """So many steps have been taken as `ahead` told."""
        del self._drawn[:steps]
