"""Runs the pure engine against the clock of the event loop and hands each request its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count

from simulator.engine.engine import Engine, Progress, Step
from simulator.engine.prefix import Prompt
from simulator.metrics import Lag, Ledger
from simulator.wire.common import Timing

_LARGEST_DEBT_SECONDS = 0.05  # how far a late loop may be behind and still catch up


class Ticket:
    """A submitted sequence. Instants are of the driver's clock."""

    def __init__(
        self,
        identifier: str,
        arrived_at: float,
        finish_reason: str,
        prompt_tokens: int,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.identifier = identifier
        self.arrived_at = arrived_at
        self.queued_at = arrived_at  # in the engine
        self.finish_reason = finish_reason
        self.prompt_tokens = prompt_tokens
        self.on_progress = on_progress  # called in the loop of the driver; must not raise
        self.rank = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.generated_tokens = 0

    def __repr__(self) -> str:
        return f"<Ticket {self.identifier}: {self.generated_tokens} tokens>"

    def timing(self) -> Timing | None:
        """The times so far; ``None`` before the first token."""
        if self.scheduled_at is None or self.first_token_at is None or self.last_token_at is None:
            return None
        return Timing(
            queue_seconds=self.scheduled_at - self.arrived_at,
            first_token_seconds=self.first_token_at - self.scheduled_at,
            generation_seconds=self.last_token_at - self.first_token_at,
            tokens=self.generated_tokens,
        )


class Driver:
    """Steps the engine while there is work. ``speed`` 2.0 makes every step take half its time."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float], speed: float = 1.0) -> None:
        if speed <= 0:
            raise ValueError(f"speed must be above 0, got {speed}")
        self.engine = engine
        self.ledgers = tuple(Ledger() for _ in engine.ranks)
        self.lag = Lag()
        self._clock = clock
        self._speed = speed
        self._tickets: dict[str, Ticket] = {}
        self._numbers = count(1)
        if engine.settings.steps_together:
            self._work = (asyncio.Event(),) * len(engine.ranks)
        else:
            self._work = tuple(asyncio.Event() for _ in engine.ranks)

    def __repr__(self) -> str:
        return f"<Driver {self.engine!r}, {self.lag!r}>"

    def submit(
        self,
        prompt: Prompt,
        output_tokens: int,
        finish_reason: str,
        on_progress: Callable[[Progress], None],
        *,
        rank: int | None = None,
        priority: int = 0,
        fetched_tokens: int = 0,
    ) -> Ticket:
        """Give a sequence to the engine, which calls ``on_progress`` for its tokens. ``ValueError`` if it could never run.

        ``fetched_tokens`` of its prompt come from another worker; see `Engine.add`. It comes to the engine's queue after the
        timer's overhead of a request, among those that are in flight.
        """
        identifier = f"r{next(self._numbers)}"
        engine, timer = self.engine, self.engine.settings.timer
        crowd_seconds = timer.stream_overhead_seconds * len(self._tickets)
        overhead = (timer.request_overhead_seconds + crowd_seconds) / self._speed
        engine.check(identifier, prompt, output_tokens, rank=rank, fetched_tokens=fetched_tokens)
        ticket = Ticket(identifier, self._clock(), finish_reason, prompt.tokens, on_progress)
        self._tickets[identifier] = ticket

        def enter() -> None:
            if identifier in self._tickets:
                ticket.queued_at = ticket.arrived_at + overhead  # when it was due: a late timer is no slow worker
                engine.add(
                    identifier, prompt, output_tokens, priority=priority, rank=ticket.rank, fetched_tokens=fetched_tokens
                )
                self._work[ticket.rank].set()

        ticket.rank = engine.least_loaded_rank() if rank is None else rank
        if overhead:
            asyncio.get_running_loop().call_later(overhead, enter)
        else:
            enter()
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Take a sequence out of the engine at once; nothing happens if it has finished."""
        if self._tickets.pop(ticket.identifier, None) is not None:
            self.engine.abort(ticket.identifier)

    def wake(self) -> None:
        """Look for work again; to be called when the engine is not paused any more."""
        for event in self._work:
            event.set()

    async def run(self) -> None:
        """Step all ranks until cancelled."""
        async with asyncio.TaskGroup() as ranks:
            if self.engine.settings.steps_together:
                ranks.create_task(self._run_steps(self._work[0], self.engine.schedule_together))
            else:
                for number, work in enumerate(self._work):
                    ranks.create_task(self._run_steps(work, partial(self._alone, number)))

    def _alone(self, rank: int) -> list[Step]:
        """The next step of a rank that waits for no other."""
        step = self.engine.schedule(rank)
        return [] if step is None else [step]

    async def _run_steps(self, work: asyncio.Event, schedule: Callable[[], list[Step]]) -> None:
        """Take the time of steps that begin and end together, one after another."""
        due_at = self._clock()
        while True:
            steps = schedule()
            if not steps:
                work.clear()
                await work.wait()
                due_at = self._clock()
                continue
            admitted = [self._tickets[identifier] for step in steps for identifier in step.admitted]
            for ticket in admitted:
                ticket.scheduled_at = self._clock()
            begun_at = max(due_at, self._clock() - _LARGEST_DEBT_SECONDS)
            for ticket in admitted:  # a step that catches up cannot have begun before a request in it came
                begun_at = max(begun_at, ticket.queued_at)
            self.lag.lost_seconds += begun_at - due_at
            due_at = begun_at + steps[0].seconds / self._speed
            await asyncio.sleep(max(0.0, due_at - self._clock()))
            now = self._clock()
            for step in steps:
                progress, ledger = self.engine.complete(step), self.ledgers[step.rank]
                ledger.step_tokens.observe(step.prefill_tokens + sum(one.new_tokens for one in progress))
                for one in progress:
                    self._deliver(one, now, ledger)
            self.lag.seconds.observe(max(0.0, self._clock() - due_at))

    def _deliver(self, progress: Progress, now: float, ledger: Ledger) -> None:
        ticket = self._tickets.get(progress.identifier)
        if ticket is None:  # withdrawn by the delivery to another
            return
        if ticket.first_token_at is None or ticket.last_token_at is None:
            ticket.first_token_at = now
            ledger.ttft_seconds.observe(now - ticket.arrived_at)
        else:
            ledger.itl_seconds.observe(now - ticket.last_token_at)
        ticket.last_token_at = now
        ticket.generated_tokens = progress.generated_tokens
        if progress.is_finished:
            del self._tickets[progress.identifier]
            _book(ticket, progress, ledger)
        ticket.on_progress(progress)


def _book(ticket: Ticket, progress: Progress, ledger: Ledger) -> None:
    """Enter a finished sequence into the histograms."""
    timing = ticket.timing()
    if timing is None:
        raise RuntimeError(f"{ticket!r} has finished without a token")
    ledger.queue_seconds.observe(timing.queue_seconds)
    ledger.prefill_seconds.observe(timing.first_token_seconds)
    ledger.decode_seconds.observe(timing.generation_seconds)
    ledger.inference_seconds.observe(timing.first_token_seconds + timing.generation_seconds)
    ledger.e2e_seconds.observe(timing.queue_seconds + timing.first_token_seconds + timing.generation_seconds)
    ledger.tpot_seconds.observe(timing.generation_seconds / (timing.tokens - 1) if timing.tokens > 1 else 0.0)
    ledger.prompt_tokens.observe(ticket.prompt_tokens)
    ledger.computed_tokens.observe(ticket.prompt_tokens - progress.cached_tokens)
    ledger.generation_tokens.observe(progress.generated_tokens)
    ledger.preemptions.observe(progress.preempted)
    ledger.finished[ticket.finish_reason] = ledger.finished.get(ticket.finish_reason, 0) + 1
