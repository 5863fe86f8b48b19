"""Requests as they come to a simulated fleet: what they hold, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, repeat

from simulator.draws import Draws
from simulator.engine.prefix import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request, and what its client sends when it has been answered."""

    at_seconds: float  # from the start of the trace; of a follow-up: from the end of the answer before it
    prompt: Prompt
    output_tokens: int  # how many it will generate
    max_tokens: int | None = None  # what it declares; None: nothing
    kind: str = ""  # which traffic it belongs to
    session: int = 0  # requests of one conversation have the same number
    priority: int = 0
    follow_up: Arrival | None = None

    def chain(self) -> Iterator[Arrival]:
        """The request and all that follow it."""
        arrival: Arrival | None = self
        while arrival is not None:
            yield arrival
            arrival = arrival.follow_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Sessions begin at random, independently of each other."""

    per_second: float

    def instants(self, draws: Draws) -> Iterator[float]:
        """When sessions begin, in seconds from the start of the trace."""
        return accumulate(draws.exponential(1.0 / self.per_second) for _ in repeat(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursty:
    """Sessions begin in bursts: gaps are gamma distributed, with a coefficient of variation of ``1 / sqrt(shape)``."""

    per_second: float
    shape: float = 0.25  # 1: as Poisson; below: bursts and lulls

    def instants(self, draws: Draws) -> Iterator[float]:
        """When sessions begin, in seconds from the start of the trace."""
        return accumulate(draws.gamma(self.shape, 1.0 / self.per_second) for _ in repeat(None))


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Everything is there from the start: an offline job."""

    def instants(self, _draws: Draws) -> Iterator[float]:
        """Always 0."""
        return repeat(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """So many users, who begin their next session some time after the last answer of the one before: load follows speed."""

    users: int
    pause_seconds: float = 10.0  # mean time between two sessions of a user
    ramp_seconds: float = 10.0  # over which the users come

    def __post_init__(self) -> None:
        if self.users < 1:
            raise ValueError(f"there must be at least one user, got {self.users}")


Pace = Poisson | Bursty | AtOnce | Closed


def paced(sessions: Iterable[list[Arrival]], pace: Pace, draws: Draws) -> list[Arrival]:
    """The first request of each session (of each user, if closed), with the others behind it, by instant.

    Instants of the sessions' first requests are replaced; those of the others are times to think, and stay.
    """
    if isinstance(pace, Closed):
        users: list[list[Arrival]] = [[] for _ in range(pace.users)]
        for number, session in enumerate(sessions):
            users[number % pace.users] += _begun(session, draws.exponential(pace.pause_seconds))
        heads = [_linked(_begun(chain, pace.ramp_seconds * number / pace.users)) for number, chain in enumerate(users) if chain]
    else:
        heads = [_linked(_begun(session, instant)) for session, instant in zip(sessions, pace.instants(draws), strict=False)]
    return sorted(heads, key=lambda arrival: arrival.at_seconds)


def _begun(session: list[Arrival], at_seconds: float) -> list[Arrival]:
    if not session:
        raise ValueError("a session needs at least one request")
    # To the microsecond, so that no last digit of a logarithm tells machines apart.
    return [replace(session[0], at_seconds=round(at_seconds, 6)), *session[1:]]


def _linked(arrivals: list[Arrival]) -> Arrival:
    first = arrivals[-1]
    for arrival in reversed(arrivals[:-1]):
        first = replace(arrival, follow_up=first)
    return first
