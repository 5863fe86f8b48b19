"""How much a worker is given at once: caps in requests and in tokens, and whether one more request is within them.

A cap stands in the configuration, or control derives it from the limits model and sends it with its guidance; where neither
says anything, there is none. Docs: docs/how-to/admission.md.
"""

from __future__ import annotations

from math import ceil, exp, inf
from typing import TYPE_CHECKING

import msgspec

from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.guidance import Guidance
from routing.pools import takers
from routing.topology import Pool, Topology, Worker

if TYPE_CHECKING:
    from routing.policy import Snapshot


class Caps(msgspec.Struct, frozen=True, gc=False):
    """What workers are given at most, by worker index; infinite where there is no cap."""

    requests: tuple[float, ...]
    tokens: tuple[float, ...]  # prompts and output budgets together

    def without(self, worker: Worker) -> Caps:
        """The same with a worker that gets nothing more while it has anything to do."""
        at = worker.index
        return Caps((*self.requests[:at], 0.0, *self.requests[at + 1 :]), self.tokens)


def caps_of(topology: Topology, guidance: Guidance) -> Caps | None:
    """The caps in force; ``None`` while no worker has one, so that nobody has to look."""
    requests: list[float] = []
    tokens: list[float] = []
    for pool in topology.pools:
        own = pool.admission
        for worker in pool.workers:
            told = guidance.workers.get(worker.name) if own.derives else None
            derived = (None, None) if told is None else (told.max_requests, told.max_tokens)
            requests.append(_part(_first(own.max_requests_per_worker, derived[0]), own.gateways))
            tokens.append(_first(own.max_tokens_per_worker, derived[1]) / own.gateways)
    if all(cap == inf for cap in (*requests, *tokens)):
        return None
    return Caps(tuple(requests), tuple(tokens))


def _first(configured: float | None, derived: float | None) -> float:
    if configured is not None:
        return configured
    return inf if derived is None else derived


def _part(requests: float, gateways: int) -> float:
    """A gateway's part of a cap in requests, whole; at least one, or it could send nothing."""
    return requests if requests == inf else max(1.0, requests // gateways)


def has_room(worker: Worker, demand: Demand, snapshot: Snapshot) -> bool:
    """Whether the worker may take this request now.

    One that has nothing to do takes a request of any size, or what is larger than the cap would wait for ever. What is no load,
    such as counting tokens, always finds room.
    """
    caps = snapshot.caps
    if caps is None:
        return True
    index = worker.index
    running = snapshot.in_flight[index]
    if running < 1:
        return True
    wanted = demand.load_tokens
    return (running < caps.requests[index] and snapshot.load_tokens[index] + wanted <= caps.tokens[index]) or not wanted


def worker_to_keep(pool: Pool, demand: Demand, snapshot: Snapshot) -> Worker | None:
    """The worker to keep free of others for a request that finds no room, because some worker has room for a smaller one.

    It is the one that lacks least of those that could take this request, which will have room soonest. ``None`` while there is
    no room for anybody: then the request waits like all the others, and one with more right may still come.
    """
    caps = snapshot.caps
    if caps is None:
        return None
    running, load = snapshot.in_flight, snapshot.load_tokens

    def may_have_room(worker: Worker) -> bool:
        return running[worker.index] < caps.requests[worker.index] and load[worker.index] < caps.tokens[worker.index]

    if not any(map(may_have_room, takers(pool, _SMALLEST, snapshot))):
        return None
    able = takers(pool, demand, snapshot)
    return min(
        [worker for worker in able if may_have_room(worker)] or able,
        key=lambda worker: load[worker.index] - caps.tokens[worker.index],
        default=None,
    )


_SMALLEST = Demand(TokenEstimate(0, 0, 0), max_tokens=0)


_RATE_SECONDS = 10.0  # over which starts are averaged
LONGEST_RETRY_SECONDS = 60


class DrainRate:
    """How fast a queue has been emptying lately."""

    __slots__ = ("_count", "_first_at", "_last_at")

    def __init__(self) -> None:
        self._count = 0.0  # starts, fading out
        self._first_at: float | None = None
        self._last_at = 0.0

    def __repr__(self) -> str:
        return f"<DrainRate {self._count:.1f} starts lately>"

    def note(self, now: float) -> None:
        """A request has left the queue for a worker."""
        self._count = self._count * exp((self._last_at - now) / _RATE_SECONDS) + 1 if self._first_at is not None else 1.0
        if self._first_at is None:
            self._first_at = now
        self._last_at = now

    def per_second(self, now: float) -> float | None:
        """Requests that leave it in a second; ``None`` while nothing has been seen."""
        if self._first_at is None:
            return None
        watched = max(1.0, now - self._first_at)
        return self._count * exp((self._last_at - now) / _RATE_SECONDS) / (_RATE_SECONDS * (1 - exp(-watched / _RATE_SECONDS)))

    def retry_after_seconds(self, now: float, ahead: int, otherwise_seconds: float) -> int:
        """When it makes sense to come again, for one with so many ahead of it: whole seconds, 1 to 60.

        ``otherwise_seconds`` is what is said while nothing is known.
        """
        rate = self.per_second(now)
        seconds = otherwise_seconds if not rate else (ahead + 1) / rate
        return max(1, min(LONGEST_RETRY_SECONDS, ceil(seconds)))
