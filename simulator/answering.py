"""One request for tokens, from its submission to the last byte of its answer: what streamed and plain answers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from simulator.bodies import Generation
from simulator.dialect import Dialect
from simulator.drive import Driver, Ticket
from simulator.engine.engine import Progress
from simulator.faults import End, Faults
from simulator.sockets import Reply
from simulator.text import Output, write_output
from simulator.wire.common import Format, Timing, Usage

BAD_CHUNK = b"zz\r\nnope\r\n"  # where a chunk should begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What all requests of one worker share."""

    driver: Driver
    seed: int
    headers: tuple[tuple[str, str], ...]  # of every answer, behind its content type
    stream_interval: int = 1  # tokens an event, but for the first
    keep_alive_seconds: float | None = None  # a comment after such a silence of a stream
    tells_timing: bool = False  # --enable-per-request-metrics
    exit: Callable[[], None]  # ends the whole process
    dialect: Dialect
    count_tool_call: Callable[[str, str], None] | None = None  # mode, outcome; None: no parser
    offer: Callable[[str, int], dict[str, Any]] | None = None  # where a prompt's blocks are: request id, prompt tokens


class Answering(ABC):
    """Sequences in the engine, their counts, and the end before its time."""

    def __init__(
        self, reply: Reply, wanted: Generation, form: Format, faults: Faults, circumstances: Circumstances, identifier: str
    ) -> None:
        self.reply = reply
        self.wanted = wanted
        self.form = form
        self.faults = faults
        self.circumstances = circumstances
        self.identifier = identifier
        self.outputs = [self._output(index) for index in range(wanted.choices)]
        self.progress: list[Progress | None] = [None] * wanted.choices
        self.unfinished = wanted.choices
        self.tickets: list[Ticket] = []
        reply.is_bytewise = faults.bytewise
        reply.on_gone = self.stop

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.identifier}, {self.unfinished} of {self.wanted.choices} choices unfinished>"

    def start(self, rank: int | None) -> None:
        """Give all sequences to the engine. ``ValueError`` if one could never run."""
        for index, output in enumerate(self.outputs):
            ticket = self.circumstances.driver.submit(
                self.wanted.sources[index // self.wanted.n].prompt,
                len(output.tokens),
                output.finish_reason if output.finish_reason == "length" else "stop",
                partial(self.advance, index),
                rank=rank,
                priority=self.wanted.priority,
                fetched_tokens=self._fetched_tokens(index),
            )
            self.tickets.append(ticket)
            rank = ticket.rank  # those of one request share a prefix
        if self.wanted.transfer is not None and self.wanted.transfer.is_decode:
            ledger = self.circumstances.driver.ledgers[self.tickets[0].rank]
            ledger.external_queried_tokens += sum(ticket.prompt_tokens for ticket in self.tickets)

    def stop(self) -> None:
        """Take what still runs out of the engine."""
        for ticket in self.tickets:
            self.circumstances.driver.withdraw(ticket)

    @abstractmethod
    def advance(self, index: int, progress: Progress) -> None:
        """A choice has got tokens."""

    @abstractmethod
    def abort(self) -> None:
        """End with finish reason "abort" and what has been said so far."""

    @abstractmethod
    def fail(self) -> None:
        """End with an error: the engine is gone."""

    @abstractmethod
    def break_off(self) -> None:
        """End with half of a plain answer, or a stream that is whole as a body and not as an answer."""

    @abstractmethod
    def spoil(self) -> None:
        """Send a chunk that is none, and then nothing."""

    def has_to_end(self, progress: Progress) -> bool:
        """Whether the answer is to be ended here, before its time."""
        return self.faults.end is not None and progress.generated_tokens > self.faults.end_at_token

    def end_early(self) -> None:
        """End the answer as its faults say."""
        self.stop()
        match self.faults.end:
            case End.RESET:
                self.reply.reset()
            case End.CLOSE:
                self.reply.close()
            case End.EXIT:
                self.circumstances.exit()
            case End.CUT:
                self.break_off()
            case End.BAD_CHUNK:
                self.spoil()
            case End.ERROR:
                self.fail()
            case End.ABORT:
                self.abort()
            case _:  # it stalls
                pass

    def book(self) -> None:
        """Enter the finished request into its engine's ledger."""
        ledger = self.circumstances.driver.ledgers[self.tickets[0].rank]
        ledger.asked_choices.observe(self.wanted.n)
        ledger.most_generation_tokens.observe(max(ticket.generated_tokens for ticket in self.tickets))
        for index, _ in enumerate(self.tickets):
            ledger.asked_tokens.observe(self.wanted.wishes[index // self.wanted.n].limit_tokens)

    def usage(self, *, tells: int) -> Usage:
        """The counts of all choices; what was cached is told of choice ``tells`` alone, as vLLM does."""
        told = self.progress[tells]
        return Usage(
            prompt_tokens=sum(source.prompt.tokens for source in self.wanted.sources),
            completion_tokens=sum(one.generated_tokens for one in self.progress if one is not None),
            cached_tokens=told.cached_tokens if told is not None else 0,
            created_cache_tokens=told.created_cache_tokens if told is not None else 0,
            reasoning_tokens=sum(
                output.reasoning_tokens(one.generated_tokens)
                for output, one in zip(self.outputs, self.progress, strict=True)
                if one is not None
            ),
        )

    def timing(self) -> Timing | None:
        """The request's own times, if they are told: not of several choices."""
        return self.tickets[0].timing() if self.circumstances.tells_timing and self.wanted.choices == 1 else None

    def prompt_ids(self, index: int) -> list[int] | None:
        """The ids of a choice's prompt, if they were asked for."""
        return self.wanted.sources[index // self.wanted.n].ids() if self.wanted.wants_token_ids else None

    def echo(self, index: int) -> str:
        """What a choice's answer begins with."""
        return self.wanted.echoes[index // self.wanted.n] if self.wanted.echoes else ""

    def _fetched_tokens(self, index: int) -> int:
        """Tokens of a choice's prompt that come from another worker."""
        transfer = self.wanted.transfer
        if transfer is None or not transfer.is_decode or transfer.fault is not None:
            return 0
        prompt = self.wanted.sources[index // self.wanted.n].prompt
        return prompt.tokens if transfer.remote_tokens is None else min(prompt.tokens, transfer.remote_tokens)

    def _output(self, index: int) -> Output:
        source, choice = divmod(index, self.wanted.n)
        return write_output(
            self.wanted.sources[source].digest, self.wanted.wishes[source], seed=self.circumstances.seed, choice=choice
        )
