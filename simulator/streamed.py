"""A streamed answer: its events as tokens come, under whatever faults it was hit by."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from simulator.answering import BAD_CHUNK, Answering, Circumstances
from simulator.bodies import Generation
from simulator.engine.engine import Progress
from simulator.faults import NO_FAULTS, Faults
from simulator.refusals import engine_died
from simulator.sockets import Reply
from simulator.vocabulary import Part
from simulator.wire.common import DONE, KEEP_ALIVE, Delta, Format, Usage, encode
from simulator.wire.small import error_event

_SSE = "text/event-stream; charset=utf-8"
_EVENT_END = b"\n\n"


class StreamedAnswer(Answering):
    """The head at once, an event as soon as there is a token, usage if asked for, and the end mark."""

    def __init__(
        self, reply: Reply, wanted: Generation, form: Format, faults: Faults, circumstances: Circumstances, identifier: str
    ) -> None:
        super().__init__(reply, wanted, form, faults, circumstances, identifier)
        self._told = [0] * wanted.choices  # tokens
        self._said = [len(self.echo(index)) for index in range(wanted.choices)]  # characters
        self._wants_usage = wanted.wants_usage and not faults.missing_usage
        self._wants_running_usage = wanted.wants_running_usage and not faults.missing_usage
        self._interval = faults.tokens_per_event or max(circumstances.stream_interval, wanted.stream_interval)
        self._has_opened = False
        self._is_held = False
        self._frames = self._make_frames()
        self._silence = faults.comment_seconds or circumstances.keep_alive_seconds
        self._loop = asyncio.get_running_loop()
        self._spoke_at = self._loop.time()
        reply.on_resume = self._tell_all
        reply.begin([("content-type", _SSE), *circumstances.headers])
        self._send(form.greeting())
        if self._silence:
            self._loop.call_later(self._silence, self._comment)

    def advance(self, index: int, progress: Progress) -> None:
        """Tell new tokens, unless nothing can be said now; they are told together later, as vLLM does."""
        self.progress[index] = progress
        if self._is_held or self.reply.is_paused:
            return
        known = progress.generated_tokens
        if self._frames and not progress.is_finished and self._told[index] == known - 1 > 0:
            token = self.outputs[index].tokens[known - 1]
            if token.part is Part.CONTENT and token.text:
                before, after = self._frames[index]
                self._told[index] = known
                self.reply.send(before + encode(token.text) + after)
                return
        self._tell(index)

    def abort(self) -> None:
        """The finish reason of each choice that has none yet, then all that ends a stream."""
        self.stop()
        for index, progress in enumerate(self.progress):
            told = self._told[index]
            self.progress[index] = None if progress is None else replace(progress, generated_tokens=told)
            if told < len(self.outputs[index].tokens):
                self._piece(index, told, finishes=False, finish_reason="abort")
        self._finish()

    def fail(self) -> None:
        """An error event under status 200, then the end mark."""
        self.stop()
        self._send(error_event(engine_died()))
        self._send(DONE)
        self.reply.end()

    def break_off(self) -> None:
        """The last chunk, and nothing of what ends a stream before it."""
        self.reply.end()

    def spoil(self) -> None:
        """A chunk size that is none."""
        self.reply.raw(BAD_CHUNK)

    def _make_frames(self) -> list[tuple[bytes, bytes]]:
        """For each choice what stands around the text in the event of an ordinary token; none where events differ in more.

        Most events are ordinary, and with hundreds of streams their cost decides how late the last one comes.
        """
        shared, faults = self.circumstances, self.faults
        if self._wants_running_usage or self._interval > 1 or faults != NO_FAULTS or shared.count_tool_call is not None:
            return []
        if shared.keep_alive_seconds is not None:
            return []
        frames = [self.form.frame(index) for index in range(self.wanted.choices)]
        return [frame for frame in frames if frame is not None]

    def _tell_all(self) -> None:
        for index, progress in enumerate(self.progress):
            if progress is not None and not self.reply.is_over and self._told[index] < progress.generated_tokens:
                self._tell(index)

    def _tell(self, index: int) -> None:
        progress = self.progress[index]
        if progress is None or self.reply.is_over:
            return
        known, told = progress.generated_tokens, self._told[index]
        breaks = self.has_to_end(progress)
        if breaks:
            known = min(known, self.faults.end_at_token)
        if not self._has_opened and not (breaks and known == 0):
            self._open()
            if self.faults.first_token_delay_seconds:
                self._is_held = True
                self._loop.call_later(self.faults.first_token_delay_seconds, self._release)
                return
        if breaks:
            if known > told:
                self._piece(index, known, finishes=False)
            self.end_early()
        elif told == 0 or progress.is_finished or known - told >= self._interval:
            self._piece(index, known, finishes=progress.is_finished)
            if progress.is_finished:
                self.unfinished -= 1
                if not self.unfinished:
                    self._close()

    def _open(self) -> None:
        """What precedes all tokens, of all choices."""
        self._has_opened = True
        for index in range(self.wanted.choices):
            usage = self._running_usage(index, 0) if self._wants_running_usage else None
            self._send(self.form.opening(index, usage, self.prompt_ids(index)))
            self._send(self.form.echoed(index, self.echo(index)))

    def _release(self) -> None:
        self._is_held = False
        if not self.reply.is_over:
            self._tell_all()

    def _piece(self, index: int, known: int, *, finishes: bool, finish_reason: str | None = None) -> None:
        told, output = self._told[index], self.outputs[index]
        tokens = output.tokens[told:known]
        finish_reason = output.finish_reason if finishes else finish_reason
        echo = self.echo(index) if told == 0 else ""
        tells_ids = told == 0 and (self.wanted.wants_token_ids or echo)
        self._told[index] = known
        delta = Delta(
            index=index,
            tokens=() if self.wanted.hides_output else tokens,
            start=self._said[index],
            finish_reason=finish_reason,
            stop_reason=output.stop_reason if finishes else None,
            usage=self._running_usage(index, known) if self._wants_running_usage else None,
            is_last=finish_reason is not None and not self._wants_usage,
            echo=echo,
            prompt_ids=self.wanted.sources[index // self.wanted.n].ids() if tells_ids else None,
        )
        if self.wanted.top_logprobs is not None:
            self._said[index] += sum(len(token.text) for token in tokens)
        if self.circumstances.count_tool_call is not None:
            called = any(token.part in (Part.TOOL_NAME, Part.TOOL_ARGUMENTS) for token in tokens)
            self.circumstances.count_tool_call("streaming", "tool_call" if called else "no_tool_call")
        self._send(self.form.piece(delta))

    def _running_usage(self, index: int, completion_tokens: int) -> Usage:
        """The counts of one choice so far."""
        return Usage(
            prompt_tokens=self.wanted.sources[index // self.wanted.n].prompt.tokens,
            completion_tokens=completion_tokens,
            reasoning_tokens=self.outputs[index].reasoning_tokens(completion_tokens),
        )

    def _close(self) -> None:
        self.book()
        self._finish()

    def _finish(self) -> None:
        """Usage, end mark and the end of the body."""
        if self._wants_usage:
            self._send(self.form.closing(self.usage(tells=0), self.timing()))
        if not self.faults.missing_done:
            self._send(self.form.ending())
        self.reply.end()

    def _send(self, data: bytes) -> None:
        """Events, each as a chunk of its own."""
        if not data:
            return
        self._spoke_at = self._loop.time()
        for event in data.removesuffix(_EVENT_END).split(_EVENT_END):
            whole = event + _EVENT_END
            self.reply.send(whole.replace(b"\n", b"\r\n") if self.faults.crlf else whole)

    def _comment(self) -> None:
        """Break a silence that has lasted long enough, and wait for the next one."""
        if self.reply.is_over or self._silence is None:
            return
        rest = self._spoke_at + self._silence - self._loop.time()
        if rest <= 0.001:
            self._send(KEEP_ALIVE)
            rest = self._silence
        self._loop.call_later(rest, self._comment)
