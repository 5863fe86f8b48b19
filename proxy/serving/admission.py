"""Requests that wait in this process for a worker with room: one queue per pool, made with the first that waits.

A queue is looked at whenever this process's own work ends somewhere, and every few hundredths of a second besides, for what it
is not told: work of other processes that has ended, caps that have changed, workers that are back, waits that are too long.

Each serving process has queues of its own; the caps are for all of them together, by the shared figures of what is in flight.
Two processes may take the last room of a worker at the same instant, so that it can get one request too many per further
process. So that none of them is left out, a process whose work ends takes the room with the probability that is its share of
all that wait, and leaves it to the others for a moment otherwise.
"""

from __future__ import annotations

import asyncio
import random
from math import ceil, inf
from time import monotonic as clock
from typing import TYPE_CHECKING

import msgspec

from proxy.wire.errors import ProxyError, queue_full, queue_timeout
from routing.admission import LONGEST_RETRY_SECONDS, Caps, DrainRate, worker_to_keep
from routing.admission_queue import AdmissionQueue, Bounds, Waiting
from routing.policy import Impossible, choose_pool
from routing.topology import Pool

if TYPE_CHECKING:
    from proxy.serving.dispatch import Prepared
    from proxy.serving.exchange import Exchange
    from proxy.serving.state import ServingState

LOOK_SECONDS = 0.02
"""How often queues are looked at, on average, while there are any; and how long a room is left to other processes at least."""
_YIELD_SECONDS = 2 * LOOK_SECONDS
_MOST_CREDIT = 4.0


class Line:
    """The queue for one pool."""

    __slots__ = ("credit", "pool", "queue", "yielded_at")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.queue: AdmissionQueue[Exchange] = AdmissionQueue()
        self.credit = 0.0  # rooms that are this process's to take, while others wait elsewhere
        self.yielded_at: float | None = None  # when one was left to other processes

    def __repr__(self) -> str:
        return f"<Line for {self.pool.model}/{self.pool.name}: {self.queue!r}>"


class Admission:
    """One per serving process. `lines` is empty while nobody waits, which is all that an ordinary request looks at."""

    def __init__(self, state: ServingState) -> None:
        self.lines: dict[tuple[str, str], Line] = {}
        self._state = state
        self._rates: dict[tuple[str, str], DrainRate] = {}
        self._ends: dict[tuple[str, str], int] = {}  # by pool, since the last look
        self._is_woken = False
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Admission {list(self.lines.values())}>"

    def holds_back(self, prepared: Prepared) -> bool:
        """Whether a request has to wait even if there is room, since others wait for its pool, here or in another process."""
        loads = self._state.loads
        if not self.lines and (loads.caps is None or not loads.has_peers):
            return False
        pool = self._pool_of(prepared)
        where = pool.model, pool.name
        return (where in self.lines or loads.queued_elsewhere(*where) > 0) and prepared.demand.load_tokens > 0

    def wait(self, exchange: Exchange, prepared: Prepared, now: float) -> None:
        """Let a request wait; it goes on by `resume`, or ends. Raises `ProxyError` when it may not."""
        pool = self._pool_of(prepared)
        self._put(exchange, prepared, now, now + pool.admission.queue_seconds - exchange.queue_seconds)
        self._wake()  # there may be room for it behind one that waits for more

    def _pool_of(self, prepared: Prepared) -> Pool:
        """The pool whose queue a request waits in: the one that it would go to."""
        chosen = choose_pool(prepared.model, prepared.demand, self._state.loads.guidance)
        return prepared.model.pools[-1] if isinstance(chosen, Impossible) else chosen[0]

    def _put(self, exchange: Exchange, prepared: Prepared, since: float, until: float) -> None:
        pool, key = self._pool_of(prepared), exchange.key
        where = pool.model, pool.name
        exchange.queued_for = pool
        line = self.lines.get(where) or Line(pool)
        entry = Waiting(
            exchange,
            key="" if key is None else key.name,
            priority="normal" if key is None else key.priority,
            weight=1.0 if key is None else key.weight,
            tokens=prepared.demand.load_tokens,
            held_bytes=exchange.request_bytes,
            since=since,
            until=until,
        )
        out = line.queue.offer(entry, Bounds(requests=pool.admission.queue_requests, bytes=pool.admission.queue_bytes))
        if out is None:
            raise queue_full(self._retry_after(where, line, since))
        exchange.waiting = entry
        self.lines[where] = line
        self._show(line)
        self._keep_looking()
        for pushed in out:
            pushed.item.fail(queue_full(self._retry_after(where, line, since)))

    def _retry_after(self, where: tuple[str, str], line: Line, now: float) -> int:
        rate = self._rates.setdefault(where, DrainRate())
        seconds = rate.retry_after_seconds(now, len(line.queue), line.pool.admission.queue_seconds)
        refused = self._state.loads.health.seconds_to_room(line.pool.index, now)  # who refuses has said when to come again
        return seconds if refused == inf else max(seconds, min(LONGEST_RETRY_SECONDS, ceil(refused)))

    def leave(self, exchange: Exchange, now: float, *, is_served: bool = False) -> None:
        """A request waits no longer: it has got a worker, or it has ended."""
        entry = exchange.waiting
        if entry is None:
            return
        exchange.waiting = None
        exchange.queue_seconds += max(0.0, now - entry.since)
        pool = exchange.queued_for
        line = None if pool is None else self.lines.get((pool.model, pool.name))
        if line is None:
            return
        where = (line.pool.model, line.pool.name)
        if is_served:
            line.queue.take(entry)
            self._rates.setdefault(where, DrainRate()).note(now)
        else:
            line.queue.remove(entry)
        self._show(line)
        if not len(line.queue):
            del self.lines[where]
            if not self.lines:
                self._rest()

    def _show(self, line: Line) -> None:
        self._state.loads.set_queued(line.pool.model, line.pool.name, len(line.queue))

    # When it looks

    def _keep_looking(self) -> None:
        if self._timer is None:
            self._state.loads.on_end = self._note_end
            # Not in step with other processes, or one of them would always be first.
            delay = LOOK_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311 -- jitter
            self._timer = self._state.loop.call_later(delay, self._look)

    def _rest(self) -> None:
        self._state.loads.on_end = None
        self._ends.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _note_end(self, where: tuple[str, str]) -> None:
        self._ends[where] = self._ends.get(where, 0) + 1
        self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._state.loop.call_soon(self._woken)  # in a call of its own: what ends now must have ended first

    def _woken(self) -> None:
        self._is_woken = False
        ends = self._ends
        self._ends = {}
        now = clock()
        for where, line in list(self.lines.items()):
            elsewhere = self._state.loads.queued_elsewhere(*where)
            if not elsewhere:
                self._serve(line, now)
                continue
            own = len(line.queue)
            line.credit = min(_MOST_CREDIT, line.credit + ends.get(where, 0) * own / (own + elsewhere))
            started = self._serve(line, now, most=int(line.credit))
            line.credit -= started
            if line.yielded_at is None:
                line.yielded_at = now

    def _look(self) -> None:
        self._timer = None
        now = clock()
        for line in list(self.lines.values()):
            for entry in line.queue.overdue(now):
                ahead = self._retry_after((line.pool.model, line.pool.name), line, now)
                entry.item.fail(queue_timeout(ahead))
            if line.yielded_at is None or now - line.yielded_at >= _YIELD_SECONDS:
                line.yielded_at = None
                self._serve(line, now)
        if self.lines:
            self._keep_looking()

    # What it does then

    def _serve(self, line: Line, now: float, most: int | None = None) -> int:
        """Start those whose turn it is while there is room, at most so many; give back how many were."""
        queue, started = line.queue, 0
        while started != most and (entry := queue.front or queue.peek()) is not None:
            if not self._starts(entry, now, None):
                break
            started += 1
        else:
            return started
        loads = self._state.loads
        if loads.caps is None or entry.item.prepared is None:
            return started
        kept = worker_to_keep(line.pool, entry.item.prepared.demand, loads.snapshot(is_retry=True))
        if kept is None:
            return started
        # There is room, and not enough for whoever is next. One worker is kept for it; others may pass to the rest.
        queue.bring_to_front()
        caps = loads.caps.without(kept)
        while started != most and (entry := queue.peek()) is not None:
            if not self._starts(entry, now, caps):
                break
            started += 1
        return started

    def _starts(self, entry: Waiting[Exchange], now: float, caps: Caps | None) -> bool:
        """Whether this one waits no longer: it has a worker, or it turned out that it can have none."""
        exchange = entry.item
        try:
            return exchange.resume(now, caps)
        except ProxyError as error:
            exchange.fail(error)
        except Exception:
            exchange.fail_unexpectedly()
        return True

    def adopt(self) -> None:
        """Another topology is in force: who waits goes on waiting for what there is of the model now, with the same rights."""
        pools = {(pool.model, pool.name) for pool in self._state.topology.pools}
        self._rates = {where: rate for where, rate in self._rates.items() if where in pools}
        if not self.lines:
            return
        now = clock()
        waiting = sorted((each for line in self.lines.values() for each in line.queue.everybody()), key=lambda each: each.since)
        for line in self.lines.values():
            self._state.loads.set_queued(line.pool.model, line.pool.name, 0)
        self.lines.clear()
        for entry in waiting:
            exchange = entry.item
            entry.is_waiting = False
            exchange.waiting = None
            prepared = exchange.prepared
            if prepared is None:
                continue
            try:
                model = self._state.endpoints.model(prepared.model.name)
                exchange.prepared = prepared = msgspec.structs.replace(prepared, model=model)
                self._put(exchange, prepared, entry.since, entry.since + self._pool_of(prepared).admission.queue_seconds)
            except ProxyError as error:
                exchange.queue_seconds += max(0.0, now - entry.since)
                exchange.fail(error)
        if not self.lines:
            self._rest()
