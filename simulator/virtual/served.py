"""What came of requests in virtual time, one by one and summed up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from telemetry.measurements import Measurements


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request. Instants are seconds from the start of the trace; ``None``: it did not come to that."""

    kind: str
    session: int
    worker: int | None  # index; None: it was refused
    rank: int
    arrived_at: float
    first_token_at: float | None
    ended_at: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int  # 0 unless it ended
    preemptions: int
    measured: Measurements | None = None  # what the gateway's meter would say of its stream; None: not asked for, or no end

    @property
    def ttft_seconds(self) -> float | None:
        """Arrival → first token; ``None`` if there was none."""
        return None if self.first_token_at is None else self.first_token_at - self.arrived_at

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time from one token to the next; ``None`` below two tokens, or if it did not end."""
        if self.first_token_at is None or self.ended_at is None or self.completion_tokens < 2:
            return None
        return (self.ended_at - self.first_token_at) / (self.completion_tokens - 1)

    @property
    def e2e_seconds(self) -> float | None:
        """Arrival → last token; ``None`` if it did not end."""
        return None if self.ended_at is None else self.ended_at - self.arrived_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Of the values that are known; all ``None`` if none is."""

    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Many requests at once."""

    requests: int
    completed: int
    refused: int
    seconds: float  # first arrival → last end
    ttft_seconds: Quantiles
    tpot_seconds: Quantiles
    e2e_seconds: Quantiles
    prompt_tokens: int  # of completed requests
    completion_tokens: int
    cached_ratio: float | None  # cached tokens over prompt tokens, of completed requests; None without any
    preemptions: int

    @property
    def completion_tokens_per_second(self) -> float:
        """Output over the whole time."""
        return self.completion_tokens / self.seconds if self.seconds else 0.0

    @property
    def requests_per_second(self) -> float:
        """Completed requests over the whole time."""
        return self.completed / self.seconds if self.seconds else 0.0


def summarise(served: Iterable[Served]) -> Summary:
    """Quantiles, throughput and hit share of these requests."""
    served = list(served)
    done = [one for one in served if one.ended_at is not None]
    prompt = sum(one.prompt_tokens for one in done)
    ends = [one.ended_at for one in done if one.ended_at is not None]
    return Summary(
        requests=len(served),
        completed=len(done),
        refused=sum(one.worker is None for one in served),
        seconds=max(ends) - min(one.arrived_at for one in served) if ends else 0.0,
        ttft_seconds=quantiles(one.ttft_seconds for one in served),
        tpot_seconds=quantiles(one.tpot_seconds for one in served),
        e2e_seconds=quantiles(one.e2e_seconds for one in served),
        prompt_tokens=prompt,
        completion_tokens=sum(one.completion_tokens for one in done),
        cached_ratio=sum(one.cached_tokens for one in done) / prompt if prompt else None,
        preemptions=sum(one.preemptions for one in served),
    )


def quantiles(values: Iterable[float | None]) -> Quantiles:
    """Of the values that are not ``None``."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return Quantiles(p50=None, p90=None, p99=None, mean=None)
    return Quantiles(p50=_at(known, 0.5), p90=_at(known, 0.9), p99=_at(known, 0.99), mean=sum(known) / len(known))


def _at(ordered: Sequence[float], share: float) -> float:
    """The value at that share of the way through, linear between two neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
