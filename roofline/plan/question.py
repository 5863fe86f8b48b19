"""What a plan is asked: which requests, how many of them, and what they must not exceed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from roofline.capacity.memory import DEFAULT_SETTINGS, MemorySettings
from roofline.capacity.targets import CHAT, Targets
from roofline.capacity.workload import Workload
from roofline.expected import Losses


class Origin(StrEnum):
    """Where the concurrency of a plan comes from."""

    GIVEN = "given"
    RATE = "rate"  # what the rate of requests leads to
    ASSUMED = "assumed"  # nothing was said: one request alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be planned. ``concurrency`` is of one worker; ``rate_per_second`` comes to all ``workers`` together.

    ``ValueError`` for a concurrency below 1, a rate that is not positive, or no workers.
    """

    workload: Workload
    losses: Losses
    settings: MemorySettings = DEFAULT_SETTINGS
    targets: Targets = CHAT
    concurrency: float | None = None
    rate_per_second: float | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        if self.concurrency is not None and not 1.0 <= self.concurrency < inf:
            raise ValueError(f"concurrency is a number of requests of at least 1, not {self.concurrency:g}")
        if self.rate_per_second is not None and not 0.0 < self.rate_per_second < inf:
            raise ValueError(f"a rate of requests is above 0 a second, not {self.rate_per_second:g}")
        if self.workers < 1:
            raise ValueError(f"there is at least one worker, not {self.workers}")

    @property
    def cold_workload(self) -> Workload:
        """The same requests when nothing is found in the prefix cache: what capacity is planned for."""
        return replace(self.workload, cached_tokens=0)
