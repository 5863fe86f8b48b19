"""What goes wrong, when and where: drawn from a seed, and never so that a pool has no well worker left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any


class Kind(StrEnum):
    """One sort of trouble."""

    KILL = "kill"  # the process is gone, and comes back at the same place
    HANG = "hang"  # its engine stands still, and its health check says 200
    SLOW = "slow"  # everything takes eight times as long
    DRAINING = "draining"  # new requests get status 500, its health check says 200
    REFUSE = "refuse"  # nobody listens any more; what runs goes on
    LOADING = "loading"  # its health check says 503
    BUSY = "busy"  # it answers 429
    ERROR_EVENT = "error-event"  # 200, and an error in place of the first token
    RESET = "reset"  # answers end in the middle
    REMOVE = "remove"  # it is drained and removed by hand, and added again

    @property
    def cuts(self) -> bool:
        """Whether it may end answers that have begun."""
        return self in (Kind.KILL, Kind.HANG, Kind.RESET)


FAULTS: dict[Kind, dict[str, Any]] = {
    Kind.HANG: {"pause": True},
    Kind.SLOW: {"slow_factor": 8},
    Kind.DRAINING: {"draining": True},
    Kind.REFUSE: {"refuse": True},
    Kind.LOADING: {"health_status": 503},
    Kind.BUSY: {"status": 429, "retry_after_seconds": 1},
    Kind.ERROR_EVENT: {"end": "error", "end_at_token": 0},
    Kind.RESET: {"end": "reset", "end_at_token": 7, "probability": 0.5},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something wrong with one worker for a while; seconds from the start of the run."""

    kind: Kind
    pool: str
    worker: str
    from_seconds: float
    until_seconds: float


def draw_trouble(pools: dict[str, Sequence[str]], seconds: float, lasts: tuple[float, float], seed: int) -> list[Trouble]:
    """Trouble for each pool, one after another, every kind as often as another; a rest of the same length between two."""
    dice = Random(seed)
    found: list[Trouble] = []
    for pool, workers in pools.items():
        kinds: list[Kind] = []
        now = dice.uniform(1.0, 2.0)
        while True:
            length = dice.uniform(*lasts)
            if now + 2 * length > seconds:
                break
            if not kinds:
                kinds = list(Kind)
                dice.shuffle(kinds)
            found.append(
                Trouble(kind=kinds.pop(), pool=pool, worker=dice.choice(workers), from_seconds=now, until_seconds=now + length)
            )
            now += 2 * length
    return sorted(found, key=lambda one: one.from_seconds)
