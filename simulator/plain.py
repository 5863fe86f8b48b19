"""A plain answer: one body when all tokens are there, under whatever faults it was hit by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulator.answering import BAD_CHUNK, Answering
from simulator.engine.engine import Progress
from simulator.refusals import engine_died
from simulator.text import Output
from simulator.vocabulary import Part, tokens_of_ids
from simulator.wire.common import Choice, likely
from simulator.wire.small import error_body


class PlainAnswer(Answering):
    """Everything at once, when the last choice has finished."""

    def advance(self, index: int, progress: Progress) -> None:
        """Remember how far a choice is, and answer when all have finished."""
        self.progress[index] = progress
        if self.has_to_end(progress):
            self.end_early()
        elif progress.is_finished:
            self.unfinished -= 1
            if not self.unfinished:
                self.book()
                self._count_calls()
                self._answer(self._body(self.outputs))

    def abort(self) -> None:
        """What has been said so far, as an answer."""
        self.stop()
        outputs = []
        for index, (one, output) in enumerate(zip(self.progress, self.outputs, strict=True)):
            known = one.generated_tokens if one is not None else 0
            if self.faults.end is not None:
                known = min(known, self.faults.end_at_token)
            self.progress[index] = one and replace(one, generated_tokens=known)
            outputs.append(Output(tokens=output.tokens[:known], finish_reason="abort"))
        self._answer(self._body(outputs))

    def fail(self) -> None:
        """The error as status 500."""
        self.stop()
        refusal = engine_died()
        self.reply.answer(refusal.status, error_body(refusal, self.circumstances.dialect), self._headers())

    def break_off(self) -> None:
        """The length of the whole, and half of it."""
        body = self._body(self.outputs)
        self.reply.promise(len(body), self._headers())
        self.reply.raw(body[: len(body) // 2])
        self.reply.close()

    def spoil(self) -> None:
        """A chunked answer whose first chunk is none."""
        self.reply.begin(self._headers())
        self.reply.raw(BAD_CHUNK)

    def _answer(self, body: bytes) -> None:
        self.reply.answer(200, body, self._headers())

    def _headers(self) -> list[tuple[str, str]]:
        return [("content-type", "application/json"), *self.circumstances.headers]

    def _body(self, outputs: list[Output]) -> bytes:
        choices = [self._choice(index, output) for index, output in enumerate(outputs)]
        return self.form.answer(choices, self.usage(tells=-1), self.timing(), self._transfer())

    def _choice(self, index: int, output: Output) -> Choice:
        source = self.wanted.sources[index // self.wanted.n]
        wish = self.wanted.wishes[index // self.wanted.n]
        top, told = self.wanted.prompt_logprobs, self.wanted.echoes and self.wanted.top_logprobs is not None
        return Choice(
            index=index,
            output=output,
            echo=self.echo(index),
            echo_tokens=tokens_of_ids(source.ids()) if told else (),
            hides_output=self.wanted.hides_output,
            beside_call=wish.tool.beside if wish.tool else None,
            prompt_ids=self.prompt_ids(index),
            prompt_logprobs=None if top is None else _prompt_logprobs(source.ids(), top),
        )

    def _transfer(self) -> dict[str, Any] | None:
        """Where the prompt's blocks are, for the worker that goes on from them."""
        offer, transfer = self.circumstances.offer, self.wanted.transfer
        if offer is None or transfer is None or not transfer.is_prefill or self.outputs[0].finish_reason != "length":
            return None
        return offer(self.identifier, self.wanted.sources[0].prompt.tokens)

    def _count_calls(self) -> None:
        if self.circumstances.count_tool_call is not None:
            for output in self.outputs:
                called = bool(output.text(part=Part.TOOL_NAME))
                self.circumstances.count_tool_call("non_streaming", "tool_call" if called else "no_tool_call")


def _prompt_logprobs(ids: list[int], top: int) -> list[dict[str, Any] | None]:
    """Made-up logarithms of the probability of a prompt's tokens; the first has none."""
    found: list[dict[str, Any] | None] = [None]
    for token in tokens_of_ids(ids)[1:]:
        pairs = likely(token, top + 1)
        found.append(
            {
                str(token.identifier + rank): {"logprob": value, "rank": rank + 1, "decoded_token": spelling}
                for rank, (spelling, value) in enumerate(pairs)
            }
        )
    return found
