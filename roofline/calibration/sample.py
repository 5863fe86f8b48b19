"""What one finished request tells about its worker: how long it took, and the parts its expected time is made of.

The parts are taken from the same spans and the same functions that `roofline.limits` uses, so that what is fitted is what is
predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from roofline.cost import Cost, cost
from roofline.deployment import Deployment
from roofline.expected import exchange_seconds
from roofline.limits import ALONE, Surroundings, decode_spans, prefill_spans


class Figure(StrEnum):
    """Which of a request's times it is."""

    TTFT = "ttft"
    TPOT = "tpot"


@dataclass(frozen=True, slots=True)
class Parts:
    """Ideal seconds of some steps, each at the full peak, and how often the overhead of a layer is paid."""

    compute_seconds: float
    memory_seconds: float  # what several GPUs each read counted each time
    layer_steps: float  # layers x steps
    exchange_seconds: float = 0.0

    def __post_init__(self) -> None:
        compute, memory, layers, exchange = self.compute_seconds, self.memory_seconds, self.layer_steps, self.exchange_seconds
        if not (
            compute >= 0.0
            and memory >= 0.0
            and layers >= 0.0
            and exchange >= 0.0
            and isfinite(compute + memory + layers + exchange)
        ):
            raise ValueError(f"ideal parts of a time are finite and at least 0: {self}")
        if compute + memory == 0.0:
            raise ValueError(f"work takes some compute or some memory time: {self}")

    @property
    def ideal_seconds(self) -> float:
        """The slower of compute and memory at full peak, perfectly overlapped."""
        return max(self.compute_seconds, self.memory_seconds)


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one request. ``measured_seconds`` without what was spent in queues; for TPOT the mean over the answer."""

    figure: Figure
    parts: Parts
    measured_seconds: float

    def __post_init__(self) -> None:
        if not (isfinite(self.measured_seconds) and self.measured_seconds > 0):
            raise ValueError(f"a measured {self.figure} is a finite number of seconds above 0, not {self.measured_seconds}")


def prefill_sample(
    deployment: Deployment, *, prompt_tokens: int, cached_tokens: int = 0, around: Surroundings = ALONE, measured_seconds: float
) -> Sample:
    """A TTFT, from the arguments of `limits.prefill_limit`. ``ValueError`` for what that refuses, or if it is not above 0."""
    done = cost(deployment, prefill_spans(prompt_tokens, cached_tokens, around))
    return Sample(Figure.TTFT, _parts(deployment, done), measured_seconds)


def decode_sample(
    deployment: Deployment,
    *,
    context_tokens: int,
    completion_tokens: int = 2,
    around: Surroundings = ALONE,
    measured_seconds: float,
) -> Sample:
    """A TPOT, from the arguments of `limits.decode_limit`. ``ValueError`` for what that refuses, or if it is not above 0."""
    done = cost(deployment, decode_spans(context_tokens, completion_tokens, around))
    return Sample(Figure.TPOT, _parts(deployment, done, share=1.0 / (completion_tokens - 1)), measured_seconds)


def _parts(deployment: Deployment, done: Cost, share: float = 1.0) -> Parts:
    exchange = exchange_seconds(deployment, done.rank_tokens)
    return Parts(done.compute_seconds * share, done.rank_memory_seconds * share, done.layer_steps * share, exchange * share)
