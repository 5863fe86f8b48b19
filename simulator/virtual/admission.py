"""The gateway's own admission before a simulated fleet: caps, and the queue of those that find no room.

One pool. Requests are of the key that `key_of` tells; what is decided here is what would be decided in service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from routing.admission import Caps, worker_to_keep
from routing.admission_queue import AdmissionQueue, Bounds, Waiting
from routing.policy import Decision, Snapshot, choose
from routing.topology import Model
from simulator.arrivals import Arrival
from simulator.engine.engine import Engine
from simulator.virtual.fleet import Record, Run
from simulator.virtual.routing import demand_of
from simulator.virtual.served import Served

_BOUNDS = Bounds(requests=10**9, bytes=10**15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Whose request it is."""

    key: str = ""
    priority: str = "normal"


def simulate_admission(
    engines: Sequence[Engine],
    arrivals: Iterable[Arrival],
    model: Model,
    *,
    max_requests: float = inf,
    max_tokens: float = inf,
    sender_of: Callable[[Arrival], Sender] = lambda arrival: Sender(),
) -> list[Served]:
    """Serve all by fresh engines, each given so much at once at most; who finds no room waits without bound.

    ``model`` has one pool, whose workers' indices are those of the engines. Times are from the arrival at the gateway.
    """
    caps = Caps((max_requests,) * len(engines), (max_tokens,) * len(engines))
    run = _QueuedRun(engines, model, caps, sender_of)
    return run.through(list(arrivals), [])


class _QueuedRun(Run):
    """A run in which requests may wait before they are sent. Steps go through the heap singly: any end may start a request."""

    def __init__(self, engines: Sequence[Engine], model: Model, caps: Caps, sender_of: Callable[[Arrival], Sender]) -> None:
        super().__init__(engines, lambda arrival, fleet: None, skips_ahead=False, gap_bounds=None, tell=None)
        self._model = model
        self._caps = caps
        self._sender_of = sender_of
        self._queue: AdmissionQueue[Record] = AdmissionQueue()

    def _route(self, arrival: Arrival, now: float) -> None:
        record = self._note(arrival, now)
        sender = self._sender_of(arrival)
        tokens = demand_of(arrival).total_tokens
        entry = Waiting(record, key=sender.key, priority=sender.priority, tokens=tokens, since=now, until=inf)
        self._queue.offer(entry, _BOUNDS)
        self._serve(now)

    def _gone(self, record: Record) -> None:
        super()._gone(record)
        self._serve(self._fleet.now)

    def _snapshot(self, caps: Caps) -> Snapshot:
        fleet = self._fleet
        return Snapshot(
            is_up=[1.0] * len(fleet.in_flight),
            load_tokens=fleet.load_tokens,
            turn=fleet.turn,
            in_flight=fleet.in_flight,
            caps=caps,
        )

    def _serve(self, now: float) -> None:
        queue = self._queue
        while (entry := queue.front or queue.peek()) is not None:
            if not self._starts(entry, self._caps, now):
                break
        else:
            return
        kept = worker_to_keep(self._model.pools[0], demand_of(entry.item.arrival), self._snapshot(self._caps))
        if kept is None:
            return
        queue.bring_to_front()
        while (entry := queue.peek()) is not None and self._starts(entry, self._caps.without(kept), now):
            pass

    def _starts(self, entry: Waiting[Record], caps: Caps, now: float) -> bool:
        decision = choose(self._model, demand_of(entry.item.arrival), self._snapshot(caps))
        if not isinstance(decision, Decision):
            return False
        self._queue.take(entry)
        self._send(entry.item, decision.worker.index, now)
        return True
