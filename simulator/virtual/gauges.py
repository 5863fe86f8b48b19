"""What several gateways before one simulated fleet learn of each other's work: each reads every worker's gauges now and then.

As control does in service: each worker is asked every five seconds by each gateway, at times of its own, and once a second it
is looked who has more than their share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace

from routing.crowding import crowding, others_of
from routing.topology import Model
from simulator.draws import Draws

PERIOD_SECONDS = 5.0  # ± 10 %
_LOOK_SECONDS = 1.0
_USUAL_REQUESTS = 500  # over which the mean of what a request counts for is taken


class Gauges:
    """What one gateway knows of a fleet. ``own`` are its requests in flight and ``own_tokens`` theirs, read live."""

    def __init__(self, model: Model, own: Sequence[int], own_tokens: Sequence[int], draws: Draws) -> None:
        self._pools = [[worker.index for worker in pool.workers] for pool in model.pools]
        self._own = own
        self._own_tokens = own_tokens
        self._others: list[float | None] = [None] * len(own)
        self._draws = draws
        self._due = [(draws.uniform(0.0, PERIOD_SECONDS), worker) for worker in range(len(own))]
        heapify(self._due)
        self._usual_tokens = 0.0
        self._requests = 0
        self._looked_at = 0.0
        self._crowded: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"<Gauges, crowded: {self._crowded}>"

    @property
    def next_at(self) -> float:
        """When the next worker is asked."""
        return self._due[0][0]

    def read(self, in_flight: Sequence[int], now: float) -> None:
        """Ask all workers whose turn it is by now; ``in_flight`` is what each has had since before then."""
        while self._due[0][0] <= now:
            at, worker = self._due[0]
            self._others[worker] = others_of(in_flight[worker], 0.0, self._own[worker])
            heapreplace(self._due, (at + PERIOD_SECONDS * self._draws.uniform(0.9, 1.1), worker))

    def note(self, load_tokens: float) -> None:
        """A request of this gateway counts for so many tokens."""
        self._requests += 1
        self._usual_tokens += (load_tokens - self._usual_tokens) / min(self._requests, _USUAL_REQUESTS)

    def crowded(self, now: float) -> Mapping[int, float]:
        """Who has more than their share, and by how many tokens."""
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._crowded = {}
            for pool in self._pools:
                above = crowding(
                    [self._own_tokens[worker] for worker in pool], [self._others[worker] for worker in pool], self._usual_tokens
                )
                self._crowded |= {worker: tokens for worker, tokens in zip(pool, above, strict=True) if tokens > 0.0}
        return self._crowded
