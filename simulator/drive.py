"""Runs the pure engine against the clock of the event loop and hands each request its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from simulator.engine import Engine, Progress
from simulator.metrics import Latencies
from simulator.prefix import Prompt

_LARGEST_DEBT_SECONDS = 0.05  # how far a late loop may be behind and still catch up


class Ticket:
    """A submitted request: where its tokens arrive."""

    def __init__(self, identifier: str, arrived_at: float, finish_reason: str) -> None:
        self.identifier = identifier
        self.arrived_at = arrived_at
        self.finish_reason = finish_reason
        self.last_token_at: float | None = None
        self._progress: asyncio.Queue[Progress] = asyncio.Queue()

    def __repr__(self) -> str:
        return f"<Ticket {self.identifier}>"

    async def next(self) -> Progress:
        """The newest progress, as soon as there is some; tokens that piled up are told at once, as vLLM does."""
        newest = await self._progress.get()
        while not self._progress.empty():
            newest = self._progress.get_nowait()
        return newest

    def put(self, progress: Progress) -> None:
        """Hand over a token."""
        self._progress.put_nowait(progress)


class Driver:
    """Steps the engine while there is work. ``speed`` 2.0 makes every step take half its time."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float], speed: float = 1.0) -> None:
        if speed <= 0:
            raise ValueError(f"speed must be above 0, got {speed}")
        self.engine = engine
        self.latencies = Latencies()
        self._clock = clock
        self._speed = speed
        self._tickets: dict[str, Ticket] = {}
        self._numbers = count(1)
        self._work = asyncio.Event()

    def submit(self, prompt: Prompt, output_tokens: int, finish_reason: str) -> Ticket:
        """Give a request to the engine. ``ValueError`` if it could never run there."""
        ticket = Ticket(f"r{next(self._numbers)}", self._clock(), finish_reason)
        self.engine.add(ticket.identifier, prompt, output_tokens)
        self._tickets[ticket.identifier] = ticket
        self._work.set()
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Take a request out of the engine at once; nothing happens if it has finished."""
        self._tickets.pop(ticket.identifier, None)
        self.engine.abort(ticket.identifier)

    async def run(self) -> None:
        """Step until cancelled."""
        due_at = self._clock()
        while True:
            step = self.engine.schedule()
            if step is None:
                self._work.clear()
                await self._work.wait()
                due_at = self._clock()
                continue
            due_at = max(due_at, self._clock() - _LARGEST_DEBT_SECONDS) + step.seconds / self._speed
            await asyncio.sleep(max(0.0, due_at - self._clock()))
            now = self._clock()
            for progress in self.engine.complete(step):
                self._deliver(progress, now)

    def _deliver(self, progress: Progress, now: float) -> None:
        ticket = self._tickets[progress.identifier]
        if ticket.last_token_at is None:
            self.latencies.ttft_seconds.observe(now - ticket.arrived_at)
        else:
            self.latencies.itl_seconds.observe(now - ticket.last_token_at)
        ticket.last_token_at = now
        if progress.is_finished:
            self.latencies.e2e_seconds.observe(now - ticket.arrived_at)
            self.latencies.finished[ticket.finish_reason] += 1
            del self._tickets[progress.identifier]
        ticket.put(progress)
