"""Which workers get no new requests because of how they did with earlier ones; one view per serving process.

A worker that fails is left out for a while, then gets one request as a trial, and after a success rising shares of the load.
Being busy is no failure: a busy worker is passed over only while others are free. Instants are of the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from math import inf

from routing.topology import HealthRules, Topology

WINDOW_SECONDS = 15.0
"""Failures are counted over this window and the one before it."""
BUSY_SECONDS = 1.0
"""How long a worker is taken for busy that did not say how long it will be."""
MOST_BUSY_SECONDS = 60.0
LEAST_SHARE = 0.1
"""With which a slow start begins, so that the worker gets anything at all."""


class Condition(IntEnum):
    """What a serving process makes of a worker; the numbers are what processes show each other."""

    WELL = 0
    ERRORS = 1  # left out: its requests fail, or no connection can be made
    SILENCE = 2  # left out: it takes requests and says nothing
    SLOW_START = 3  # back, with less than its whole share


EJECTED = frozenset({float(Condition.ERRORS), float(Condition.SILENCE)})


class WorkerHealth:
    """One worker's part; changed by `FleetHealth` only."""

    __slots__ = (
        "_answered_before",
        "_failed_before",
        "answered",
        "busy_until",
        "failed",
        "heard_at",
        "index",
        "out_seconds",
        "pool",
        "reason",
        "recovered_at",
        "refused_until",
        "room",
        "row",
        "seen",
        "trial",
        "unheard_seconds",
        "unheard_until",
        "until",
        "url",
        "was_up",
    )

    def __init__(self, index: int, pool: int, url: str) -> None:
        self.index = index
        self.pool = pool
        self.url = url
        self.answered = 0  # in the present window
        self.failed = 0
        self.seen = 0  # of those that were answered, at the last look
        self.heard_at: float | None = None  # the last look that found another one answered
        self.row = 0  # failures without a success between them
        self.reason = Condition.WELL
        self.until: float | None = None  # left out until then, and then on trial; None: not left out
        self.trial: int | None = None  # number of the request under way that decides
        self.out_seconds = 0.0  # how long it was left out the last time
        self.recovered_at: float | None = None  # after which it starts slowly; None: it has its whole share
        self.busy_until: float | None = None
        self.refused_until = 0.0  # until then nobody who waits is sent there, if it has refused a request
        self.room = 0.0  # and afterwards, how many requests it is given at once
        self.unheard_seconds = 0.0  # in which it had requests that others then answered, and gave nothing; since it last did
        self.unheard_until = 0.0
        self.was_up = True  # by its health checks
        self._answered_before = self._failed_before = 0

    def __repr__(self) -> str:
        return f"<WorkerHealth {self.index} {self.reason.name.lower()}, {self.row} failures in a row>"

    def fails_too_often(self, rules: HealthRules) -> bool:
        """Whether the failures so far are enough to leave it out."""
        failed = self._failed_before + self.failed
        asked = self._answered_before + self.answered + failed
        return self.row >= rules.failures_in_row or (
            asked >= rules.failure_ratio_requests and failed >= rules.failure_ratio * asked
        )

    def begin_window(self) -> None:
        """What was counted in the present window is that of the one before."""
        self._answered_before, self._failed_before = self.answered, self.failed
        self.answered = self.failed = self.seen = 0

    def forget_counts(self) -> None:
        """Begin to count anew."""
        self.row = 0
        self.answered = self.failed = self.seen = self._answered_before = self._failed_before = 0


class FleetHealth:
    """All workers of a topology. `avoided`, `busy` and `share` are for snapshots; they are live."""

    __slots__ = (
        "_pools",
        "_rules",
        "_trials",
        "_window_at",
        "avoided",
        "busy",
        "ejected",
        "half_open",
        "refusing",
        "share",
        "unheard",
        "workers",
    )

    def __init__(self, topology: Topology) -> None:
        self.workers: dict[str, WorkerHealth] = {}
        self.ejected: dict[str, WorkerHealth] = {}  # those that are left out or on trial
        self.avoided: set[int] = set()  # indices of those that get no new request while there are others
        self.half_open: set[int] = set()  # of those whose next request is the trial
        self.busy: set[int] = set()
        self.refusing: dict[str, WorkerHealth] = {}  # those that have refused a request lately because of what they had to do
        self.unheard: dict[str, WorkerHealth] = {}  # those that were outrun and have answered nothing since
        self._window_at = 0.0
        self._trials = 0
        self.share: Sequence[float] = ()  # by index, of the load that it would have, 0 to 1; empty: 1 for all
        self.adopt(topology)

    def __repr__(self) -> str:
        return f"<FleetHealth of {len(self.workers)} workers, {list(self.ejected)} left out>"

    def adopt(self, topology: Topology) -> None:
        """Go on with another topology; workers that are still where they were keep what is known of them."""
        before, self.workers = self.workers, {}
        self._rules = topology.health
        self._pools: list[tuple[int, int]] = []  # how many workers, and how many of them may be left out
        for pool in topology.pools:
            # Where requests have somewhere else to go, trying those that fail is not better than that.
            ratio = topology.health.max_ejected_ratio if pool.overflow_to is None else 1.0
            self._pools.append((len(pool.workers), int(ratio * len(pool.workers) + 1e-9)))
            for worker in pool.workers:
                kept = before.get(worker.name)
                if kept is None or kept.url != worker.url:
                    kept = WorkerHealth(worker.index, pool.index, worker.url)
                kept.index, kept.pool = worker.index, pool.index
                self.workers[worker.name] = kept
        self.ejected = {name: each for name, each in self.workers.items() if each.until is not None}
        self.refusing = {name: each for name, each in self.refusing.items() if self.workers.get(name) is each}
        self.unheard = {name: each for name, each in self.unheard.items() if self.workers.get(name) is each}
        self.half_open.clear()
        self.avoided.clear()
        self.busy.clear()
        self.avoided |= {each.index for each in self.ejected.values()}
        self.busy |= {each.index for each in self.workers.values() if each.busy_until is not None}
        self.share = ()

    # What happens to requests

    def begins(self, name: str) -> int | None:
        """A request goes to a worker that is to be tried: no other one until this one has decided. Only if `half_open`.

        The number comes back with what became of the request: those that were under way before decide nothing about the trial.
        """
        worker = self.workers.get(name)
        if worker is None or worker.index not in self.half_open:
            return None
        self.half_open.discard(worker.index)
        self.avoided.add(worker.index)
        self._trials += 1
        worker.trial = self._trials
        return self._trials

    def succeeded(self, name: str) -> None:
        """It answered a request."""
        worker = self.workers.get(name)
        if worker is not None:
            worker.answered += 1
            worker.row = 0
            if self.refusing:
                worker.room += 1.0
            if worker.busy_until is not None:
                worker.busy_until = None
                self.busy.discard(worker.index)
            if self.unheard:
                self.heard(name)

    def has_begun(self, name: str, now: float) -> None:
        """It has begun to answer a request, or goes on: what is held against it is forgotten. Only if `ejected`.

        An answer that began before the failures says nothing about them.
        """
        worker = self.ejected.get(name)
        if worker is not None and worker.until is not None:
            is_proof = worker.trial is not None or worker.reason is Condition.SILENCE or now >= worker.until
            if is_proof:
                self._recover(name, worker, now)

    def undecided(self, name: str, trial: int | None) -> None:
        """A trial ended in a way that says nothing of the worker: it has to be made again. ``None``: it was none."""
        worker = self.ejected.get(name)
        if worker is not None and trial is not None and worker.trial == trial:
            worker.trial = None
            worker.until = 0.0  # at the next look

    def failed(self, name: str, result: str, now: float, trial: int | None = None) -> None:
        """It failed a request; ``result`` is the attempt's label. A connection that cannot be made tells enough alone."""
        worker = self.workers.get(name)
        if worker is None:
            return
        worker.row += 1
        worker.failed += 1
        is_trial = trial is not None and worker.trial == trial
        if is_trial:
            worker.trial = None
        is_enough = is_trial or result.startswith("connect") or worker.fails_too_often(self._rules)
        if is_enough:
            self._eject(name, worker, Condition.SILENCE if result == "silent" else Condition.ERRORS, now)

    def outrun(self, name: str, since: float, now: float, trial: int | None = None) -> None:
        """It has had a request since then and given nothing, and another worker began to answer it.

        Once says nothing. But a worker that hangs would never be found where somebody else always answers in its place, so the
        time is added up until it answers anything, and a trial that ends so has failed.
        """
        worker = self.workers.get(name)
        if worker is None:
            return
        worker.unheard_seconds += max(0.0, now - max(since, worker.unheard_until))
        worker.unheard_until = now
        self.unheard[name] = worker
        if trial is not None and worker.trial == trial:
            worker.trial = None
            self._eject(name, worker, Condition.SILENCE, now)

    def heard(self, name: str) -> None:
        """It has answered something: that it was outrun before says nothing."""
        worker = self.unheard.pop(name, None)
        if worker is not None:
            worker.unheard_seconds = 0.0

    def has_long_been_unheard(self, name: str) -> bool:
        """Whether it has been outrun for as long as a worker may be silent, and has answered nothing meanwhile."""
        worker = self.unheard.get(name)
        return worker is not None and worker.unheard_seconds >= self._rules.silence_seconds

    def is_busy(self, name: str, seconds: float | None, now: float, trial: int | None = None, in_flight: float = 0.0) -> None:
        """It refused a request because it has enough to do, and takes more after so many seconds, where it said so.

        ``in_flight`` is what it has of the gateway's besides, which is as much as it takes now.
        """
        worker = self.workers.get(name)
        if worker is not None:
            self.undecided(name, trial)
            worker.refused_until = now + min(seconds or BUSY_SECONDS, MOST_BUSY_SECONDS)
            worker.room = max(1.0, in_flight)
            self.refusing[name] = worker
            if seconds != 0:  # "at once" is as good as not busy
                worker.busy_until = now + min(BUSY_SECONDS if seconds is None else seconds, MOST_BUSY_SECONDS)
                self.busy.add(worker.index)

    def closed(self, now: float, in_flight: Sequence[float]) -> list[str]:
        """Names of workers that a request which waits is not sent to now; none while nobody refuses any.

        One that has refused gets at first what it had then, and one more with each that it answers. One that is left out gets
        its trial first. ``in_flight`` is by index.
        """
        refusing = [
            name
            for name, worker in self.refusing.items()
            if now < worker.refused_until or in_flight[worker.index] >= worker.room
        ]
        return [*refusing, *(name for name, worker in self.ejected.items() if worker.index in self.avoided)] if refusing else []

    def seconds_to_room(self, pool: int, now: float) -> float:
        """When one of a pool's workers that refuse requests said that it takes more; infinite if none does."""
        return min((each.refused_until - now for each in self.refusing.values() if each.pool == pool), default=inf)

    def no_relief(self) -> list[str]:
        """Names of workers that are no help to one that is busy: they are busy too, or would say nothing for long."""
        silent = (name for name, worker in self.ejected.items() if worker.reason is Condition.SILENCE)
        return [*(name for name, worker in self.workers.items() if worker.index in self.busy), *silent]

    def is_free(self, index: int) -> bool:
        """Whether there is nothing against sending a request there, as far as is known."""
        return index not in self.avoided and index not in self.busy

    def seems_silent(self, name: str, now: float) -> bool:
        """None of its running requests has got anything lately, and one or more should have. Whether it is silent indeed.

        It is not if it has finished others meanwhile.
        """
        worker = self.workers.get(name)
        if worker is None or (worker.heard_at is not None and now - worker.heard_at <= self._rules.silence_seconds):
            return False
        self._eject(name, worker, Condition.SILENCE, now)
        return True

    # From time to time

    def look(self, now: float, up: Sequence[float], foreign: Collection[int] = ()) -> None:
        """Bring everything up to date: twice a second, or more.

        ``up`` is what health checks say, by index; ``foreign`` are indices of workers that other serving processes leave out.
        """
        shares: dict[int, float] = {}
        is_next_window = now - self._window_at >= WINDOW_SECONDS
        if is_next_window:
            self._window_at = now
        for name, worker in self.workers.items():
            if worker.answered != worker.seen:
                worker.seen, worker.heard_at = worker.answered, now
            if is_next_window:
                worker.begin_window()
            if worker.busy_until is not None and now >= worker.busy_until:
                worker.busy_until = None
                self.busy.discard(worker.index)
            if name in self.refusing and now >= worker.refused_until + WINDOW_SECONDS:
                del self.refusing[name]
            is_up = up[worker.index] != 0.0
            if is_up and not worker.was_up:  # another process, or the same after a rest
                worker.forget_counts()
                if worker.until is not None:
                    worker.until = now
                else:
                    worker.recovered_at = now
            worker.was_up = is_up
            if worker.recovered_at is not None and (share := self._share_of(worker, now)) < 1.0:
                shares[worker.index] = share
            if worker.until is not None and not self._is_allowed(worker):
                self._recover(name, worker, now)  # the pool has shrunk
        self.share = [shares.get(index, 1.0) for index in range(len(self.workers))] if shares else ()
        self.half_open.clear()
        self.avoided.clear()
        for worker in self.ejected.values():
            if worker.trial is not None or (worker.until is not None and now < worker.until):
                self.avoided.add(worker.index)
            else:
                self.half_open.add(worker.index)
        if foreign:
            self._avoid_with_others(foreign)

    def condition(self, worker: WorkerHealth) -> Condition:
        """What this process makes of a worker, as of the last look."""
        if worker.until is not None:
            return worker.reason
        return Condition.SLOW_START if self.share and self.share[worker.index] < 1.0 else Condition.WELL

    def _avoid_with_others(self, foreign: Collection[int]) -> None:
        for worker in self.workers.values():
            if worker.index in foreign and worker.until is None and self._left_out(worker.pool) < self._pools[worker.pool][1]:
                self.avoided.add(worker.index)

    def _left_out(self, pool: int) -> int:
        return sum(worker.pool == pool and worker.index in self.avoided for worker in self.workers.values())

    def _is_allowed(self, worker: WorkerHealth) -> bool:
        others = sum(each.pool == worker.pool for each in self.ejected.values() if each is not worker)
        return others < self._pools[worker.pool][1]

    def _share_of(self, worker: WorkerHealth, now: float) -> float:
        seconds = self._rules.slow_start_seconds
        passed = now - (now if worker.recovered_at is None else worker.recovered_at)
        return 1.0 if passed >= seconds else max(LEAST_SHARE, passed / seconds)

    def _eject(self, name: str, worker: WorkerHealth, reason: Condition, now: float) -> None:
        if worker.until is not None and now < worker.until:
            return  # it is out already: a request that began before, or that had nobody else to go to
        if not self._is_allowed(worker):
            return
        rules = self._rules
        well_seconds = 0.0 if worker.recovered_at is None else now - worker.recovered_at
        doubled_seconds = min(2.0 * worker.out_seconds, rules.max_ejection_seconds)
        worker.out_seconds = max(rules.ejection_seconds, doubled_seconds - well_seconds)
        worker.reason = reason
        worker.until = now + worker.out_seconds
        worker.trial = worker.recovered_at = None
        worker.forget_counts()
        self.ejected[name] = worker
        self.half_open.discard(worker.index)
        self.avoided.add(worker.index)

    def _recover(self, name: str, worker: WorkerHealth, now: float) -> None:
        worker.until = worker.trial = None
        worker.reason = Condition.WELL
        worker.recovered_at = now
        worker.forget_counts()
        del self.ejected[name]
        self.half_open.discard(worker.index)
        self.avoided.discard(worker.index)
