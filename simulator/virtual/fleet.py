"""A fleet of engines in virtual time: the same engines as behind the HTTP surface, driven by a heap of instants.

A run of a hundred thousand requests takes seconds, and is the same, bit for bit, for the same engines and arrivals. Nothing
here knows the time of day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from math import inf

from simulator.arrivals import Arrival
from simulator.engine.engine import Engine, Progress, Step
from simulator.virtual.meter import StepGaps, StreamFigures
from simulator.virtual.served import Served
from telemetry.events import Usage
from telemetry.measurements import Measurements


class Fleet:
    """What may be looked at when a worker is chosen. Engines are as they are at this instant, the choice not yet made."""

    __slots__ = ("_catch_up", "_engines", "in_flight", "load_tokens", "now", "turn")

    def __init__(self, engines: Sequence[Engine], catch_up: Callable[[], None]) -> None:
        self._engines = engines
        self._catch_up = catch_up
        self.now = 0.0  # seconds from the start of the trace
        self.turn = 0  # requests chosen for so far
        self.in_flight = [0] * len(engines)  # requests sent and not answered
        self.load_tokens = [0] * len(engines)  # their prompts and declared outputs (or outputs), in tokens

    def __repr__(self) -> str:
        return f"<Fleet of {len(self._engines)} at {self.now:.6f} s, {sum(self.in_flight)} in flight>"

    @property
    def engines(self) -> Sequence[Engine]:
        """All of them. What they have planned ahead and what is over by now is booked first, which takes a while."""
        self._catch_up()
        return self._engines


Choose = Callable[[Arrival, Fleet], int | None]
"""The index of the engine that gets a request; ``None`` refuses it."""


Tell = Callable[[float, Progress], None]
"""The instant at which tokens come, and whose: the identifier is the request's place in the results."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happens to the fleet at an instant: a worker becomes slow, pauses, forgets its cache."""

    at_seconds: float
    apply: Callable[[Sequence[Engine]], object]


def simulate(
    engines: Sequence[Engine],
    arrivals: Iterable[Arrival],
    choose: Choose,
    *,
    changes: Iterable[Change] = (),
    skips_ahead: bool = True,
    gap_bounds: Sequence[float] | None = None,
    tell: Tell | None = None,
) -> list[Served]:
    """Serve all arrivals, and those that follow them, by fresh engines. The results are in order of arrival.

    Between the choice and the engine's queue passes the overhead of a request, which the engine's timer tells. A request that
    its engine says it can never run is refused, as one for which ``choose`` says ``None``; what follows it never comes. A
    request still unfinished when nothing moves any more (a paused engine) has no end. Without ``skips_ahead`` each step of each
    engine goes through the heap; that is slower and gives the same.

    With ``gap_bounds`` (`telemetry.recorder.GAP_BOUNDS`) each request that ended says what the gateway's meter would have
    measured of its stream. ``tell`` is told of every token of every request, which takes several times as long.
    """
    run = Run(engines, choose, skips_ahead, gap_bounds, tell)
    return run.through(list(arrivals), list(changes))


class Record:
    """A request under way."""

    __slots__ = (
        "arrival",
        "arrived_at",
        "cached_tokens",
        "ended_at",
        "figures",
        "first_token_at",
        "is_refused",
        "number",
        "preemptions",
        "rank",
        "worker",
    )

    def __init__(self, number: int, arrival: Arrival, arrived_at: float) -> None:
        self.number = number  # its identifier
        self.arrival = arrival
        self.arrived_at = arrived_at
        self.is_refused = True  # until it is sent to a worker
        self.worker = 0
        self.rank = 0
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.cached_tokens = 0
        self.preemptions = 0
        self.figures: StreamFigures | None = None  # if they are asked for, from the first token on

    @property
    def load_tokens(self) -> int:
        """What it counts for while it is in flight."""
        arrival = self.arrival
        return arrival.prompt.tokens + (arrival.output_tokens if arrival.max_tokens is None else arrival.max_tokens)

    def served(self) -> Served:
        """What came of it."""
        return Served(
            kind=self.arrival.kind,
            session=self.arrival.session,
            worker=None if self.is_refused else self.worker,
            rank=self.rank,
            arrived_at=self.arrived_at,
            first_token_at=self.first_token_at,
            ended_at=self.ended_at,
            prompt_tokens=self.arrival.prompt.tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=0 if self.ended_at is None else self.arrival.output_tokens,
            preemptions=self.preemptions,
            measured=self._measured(),
        )

    def _measured(self) -> Measurements | None:
        if self.figures is None or self.ended_at is None:
            return None
        arrival = self.arrival
        usage = Usage(
            prompt_tokens=arrival.prompt.tokens,
            completion_tokens=arrival.output_tokens,
            cached_tokens=self.cached_tokens,
            has_details=True,
        )
        return self.figures.measured(usage, "length" if arrival.output_tokens == arrival.max_tokens else "stop")


class Run:
    """Two heaps: what comes to the fleet, and the ends of steps in flight."""

    def __init__(
        self,
        engines: Sequence[Engine],
        choose: Choose,
        skips_ahead: bool,
        gap_bounds: Sequence[float] | None,
        tell: Tell | None,
    ) -> None:
        self._fleet = Fleet(engines, self._catch_up_all)
        self._engines = engines
        self._verifies = any(engine.settings.speculation for engine in engines)
        self._choose = choose
        self._skips_ahead = skips_ahead and tell is None
        self._tell = tell
        self._ranks = [rank for engine in engines for rank in engine.ranks]
        self._places = list(accumulate((len(engine.ranks) for engine in engines), initial=0))  # of each engine's first rank
        self._records: list[Record] = []  # by the number that is their identifier
        self._coming: list[tuple[float, int, Arrival | Change | Record]] = []  # a record: it reaches its engine
        self._pushed = 0  # so that what comes at the same instant keeps its order
        self._together = {  # of ranks that step with all others of their engine: that, and the place of its first rank
            place + number: (engine, place)
            for engine, place in zip(engines, self._places, strict=False)
            if engine.settings.steps_together
            for number in range(len(engine.ranks))
        }
        self._steps: list[tuple[float, int, Step]] = []  # by end and place of the rank
        self._idle = set(range(len(self._ranks)))
        self._woken: set[int] = set()  # idle ranks that may have something to do now
        self._bounds: Sequence[float] = gap_bounds or ()
        self._gaps = None if gap_bounds is None else [StepGaps(gap_bounds) for _ in self._ranks]
        self._passed: list[float] | None = None if gap_bounds is None else []  # ends of steps that a rank booked by itself
        self._thinking: list[tuple[float, int]] = []  # time from its answer to what follows it, and number, of who is in flight

    def through(self, arrivals: list[Arrival], changes: list[Change]) -> list[Served]:
        """Everything, to the end."""
        everything: list[Arrival | Change] = [*changes, *arrivals]
        for expected in sorted(everything, key=lambda one: one.at_seconds):
            self._push(expected.at_seconds, expected)
        coming, steps = self._coming, self._steps
        while coming or steps:
            # Of what happens at the same instant, ends of steps come first, and first steps of idle ranks come last.
            if steps and (not coming or steps[0][0] <= coming[0][0]):
                now, place, step = heappop(steps)
                if step is not self._ranks[place].step_in_flight:
                    continue  # something came, and another one took its place
                self._fleet.now = now
                self._catch_up(place, now)
                self._end(step, place, now)
                self._begin(place, now)
            else:
                now, _, one = heappop(coming)
                self._fleet.now = now
                self._come(one, now)
            if self._woken and not (coming and coming[0][0] == now):
                for place in sorted(self._woken & self._idle):  # one may have begun its next step with the end of its last
                    self._begin(place, now)
                self._woken.clear()
        return [record.served() for record in self._records]

    def _push(self, at: float, one: Arrival | Change | Record) -> None:
        heappush(self._coming, (at, self._pushed, one))
        self._pushed += 1

    def _come(self, one: Arrival | Change | Record, now: float) -> None:
        if isinstance(one, Change):
            self._catch_up_all()
            for place in range(len(self._ranks)):
                self._cut(place)
            one.apply(self._engines)
            self._woken |= self._idle
            self._interrupt_lost()
        elif isinstance(one, Record):
            self._enter(one)
        else:
            self._route(one, now)

    def _route(self, arrival: Arrival, now: float) -> None:
        record = self._note(arrival, now)
        worker = self._choose(arrival, self._fleet)
        self._fleet.turn += 1
        if worker is not None:
            self._send(record, worker, now)

    def _note(self, arrival: Arrival, now: float) -> Record:
        record = Record(len(self._records), arrival, now)
        self._records.append(record)
        return record

    def _send(self, record: Record, worker: int, now: float) -> None:
        fleet = self._fleet
        record.is_refused = False
        record.worker = worker
        timer = self._engines[worker].settings.timer
        overhead = timer.request_overhead_seconds + timer.stream_overhead_seconds * fleet.in_flight[worker]
        fleet.in_flight[worker] += 1
        fleet.load_tokens[worker] += record.load_tokens
        if overhead:
            self._push(now + overhead, record)
        else:
            self._enter(record)

    def _enter(self, record: Record) -> None:
        arrival, worker = record.arrival, record.worker
        engine, first = self._engines[worker], self._places[worker]
        for place in range(first, first + len(engine.ranks)):
            self._catch_up(place, self._fleet.now)
        try:
            record.rank = engine.add(str(record.number), arrival.prompt, arrival.output_tokens, priority=arrival.priority)
        except ValueError:  # it could never run there
            self._gone(record)
            record.is_refused = True
            return
        if arrival.follow_up is not None:
            heappush(self._thinking, (arrival.follow_up.at_seconds, record.number))
        place = first + record.rank
        if place in self._idle:
            self._woken.add(place)
        else:
            self._cut(place)

    def _catch_up(self, place: int, now: float) -> None:
        """Book what a rank planned ahead and what is over."""
        self._ranks[place].catch_up(now, self._passed)
        self._tell_passed(place)

    def _catch_up_all(self) -> None:
        for place in range(len(self._ranks)):
            self._catch_up(place, self._fleet.now)

    def _tell_passed(self, place: int) -> None:
        if self._gaps is not None and self._passed:
            for at in self._passed:
                self._gaps[place].step(at)
            self._passed.clear()

    def _cut(self, place: int) -> None:
        """Something happens to a rank, which makes what it planned ahead void."""
        left = self._ranks[place].cut()
        if left is not None:
            step, end = left
            self._fly(place, step, end)

    def _begin(self, place: int, now: float) -> None:
        """The next step of a rank, and those after it that concern nobody else, if that is allowed."""
        if place in self._together:
            self._begin_together(*self._together[place], now)
            return
        rank = self._ranks[place]
        if self._skips_ahead:
            step, end = rank.run(now, self._horizon(now) if self._verifies else now, self._passed)
        else:
            step = rank.schedule()
            end = now if step is None else now + step.seconds
        self._tell_passed(place)
        self._idle.add(place)
        if step is not None:
            self._fly(place, step, end)

    def _begin_together(self, engine: Engine, first: int, now: float) -> None:
        """The next step of all ranks of an engine, unless one of them is still in the one before."""
        places = range(first, first + len(engine.ranks))
        if self._idle.issuperset(places):
            for step in engine.schedule_together():
                self._fly(first + step.rank, step, now + step.seconds)

    def _fly(self, place: int, step: Step, end: float) -> None:
        self._idle.discard(place)
        heappush(self._steps, (end, place, step))
        if self._gaps is not None:
            for identifier in step.preempted:
                self._interrupt(self._records[int(identifier)])

    def _horizon(self, now: float) -> float:
        """Nothing can come before this: the next arrival that is known, or the earliest one that an answer may bring about."""
        thinking, records = self._thinking, self._records
        while thinking and records[thinking[0][1]].ended_at is not None:
            heappop(thinking)
        until = now + thinking[0][0] if thinking else inf
        return min(until, self._coming[0][0]) if self._coming else until

    def _end(self, step: Step, place: int, now: float) -> None:
        self._idle.add(place)
        gaps = None if self._gaps is None else self._gaps[place]
        if gaps is not None:
            gaps.step(now)
        for progress in self._ranks[place].complete(step, tells_all=self._tell is not None):
            if self._tell is not None:
                self._tell(now, progress)
            record = self._records[int(progress.identifier)]
            if gaps is not None:
                figures = record.figures = record.figures or StreamFigures(self._bounds, gaps)
                if not figures.is_open:
                    figures.open(now)
                if progress.is_finished:
                    figures.close()
            if record.first_token_at is None:
                record.first_token_at = now
                record.cached_tokens = progress.cached_tokens
            if progress.is_finished:
                record.ended_at = now
                record.preemptions = progress.preempted
                self._gone(record)
                follow_up = record.arrival.follow_up
                if follow_up is not None:
                    self._push(now + follow_up.at_seconds, follow_up)

    @staticmethod
    def _interrupt(record: Record) -> None:
        """It gets no tokens until it has been computed anew."""
        if record.figures is not None:
            record.figures.close()

    def _interrupt_lost(self) -> None:
        """The same for who lost its place by a change."""
        if self._gaps is not None:
            for record in self._records:
                if record.figures is not None and record.figures.is_open:
                    place = self._places[record.worker] + record.rank
                    if not self._ranks[place].is_running(str(record.number)):
                        self._interrupt(record)

    def _gone(self, record: Record) -> None:
        self._fleet.in_flight[record.worker] -= 1
        self._fleet.load_tokens[record.worker] -= record.load_tokens
