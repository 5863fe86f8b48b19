"""What workers have had to do, so that a request can tell afterwards what ran beside it.

Integrals over time, kept in the shared arrays at every begin and end of a request: the difference of two readings over the time
between them is a mean, exact however short that time is. Each process writes its own part and reads those of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from telemetry.layout import offset

if TYPE_CHECKING:
    from proxy.load import Block

_IN_FLIGHT = offset("ridgeline_in_flight_requests")
_REQUEST_SECONDS = offset("ridgeline_ledger_request_seconds")
_PROMPT_TOKEN_SECONDS = offset("ridgeline_ledger_prompt_token_seconds")
_SENT = offset("ridgeline_ledger_sent_prompt_tokens")
_PROMPTS = offset("ridgeline_ledger_prompt_tokens")
_PENDING = offset("ridgeline_ledger_pending_prompt_tokens")
_UNTIL = offset("ridgeline_ledger_until_seconds")


class Reading(NamedTuple):
    """A worker's ledger at an instant, all serving processes together."""

    at: float  # monotonic seconds
    request_seconds: float
    prompt_token_seconds: float
    sent_tokens: float  # prompt tokens sent since the beginning
    pending_tokens: float  # of requests whose answer has not begun


class Beside(NamedTuple):
    """What others had a worker do between two readings of one request's."""

    requests: float  # mean number of other requests in flight
    prompt_tokens: float  # mean prompt of one of them, in tokens
    sent_tokens: float  # prompt tokens that came from others meanwhile


class Stay:
    """One request at a worker, as far as the ledger goes."""

    __slots__ = ("answer_began", "begun", "block", "ended", "prompt_tokens")

    def __init__(self, block: Block, prompt_tokens: int, begun: Reading) -> None:
        self.block = block
        self.prompt_tokens = prompt_tokens  # estimated
        self.begun = begun  # as it was just before the request was added
        self.answer_began: Reading | None = None  # at the first byte of the answer
        self.ended: Reading | None = None


def beside(earlier: Reading, later: Reading, own_prompt_tokens: int) -> Beside | None:
    """What ran beside a request that was in flight from one reading to the other; ``None`` if they are at the same instant."""
    seconds = later.at - earlier.at
    if seconds <= 0.0:
        return None
    requests = max(0.0, (later.request_seconds - earlier.request_seconds) / seconds - 1.0)
    tokens = max(0.0, (later.prompt_token_seconds - earlier.prompt_token_seconds) / seconds - own_prompt_tokens)
    return Beside(requests, tokens / requests if requests > 0.01 else 0.0, max(0.0, later.sent_tokens - earlier.sent_tokens))


class Ledger:
    """The arrays of all serving processes; this process's own is the first."""

    __slots__ = ("arrays",)

    def __init__(self, arrays: Sequence[memoryview[float]]) -> None:
        self.arrays = arrays

    def add(self, block: Block, prompt_tokens: int, now: float) -> Stay:
        """A request goes to the worker of this block; call it before the request counts as in flight."""
        base, values = block.base, self.arrays[0]
        self.advance(base, now)
        values[base + _SENT] += prompt_tokens  # before the reading: what is sent from then on is others'
        stay = Stay(block, prompt_tokens, self.read(base, now))
        values[base + _PROMPTS] += prompt_tokens
        values[base + _PENDING] += prompt_tokens
        return stay

    def note_answer(self, stay: Stay, now: float) -> None:
        """The first byte of its answer is there."""
        block = stay.block
        if stay.answer_began is None and block.is_live:
            self.arrays[0][block.base + _PENDING] -= stay.prompt_tokens
            stay.answer_began = self.read(block.base, now)

    def remove(self, stay: Stay, now: float) -> None:
        """It has ended; call it while it still counts as in flight."""
        block = stay.block
        if not block.is_live:
            return
        base, values = block.base, self.arrays[0]
        self.advance(base, now)
        stay.ended = self.read(base, now)
        values[base + _PROMPTS] -= stay.prompt_tokens
        if stay.answer_began is None:
            values[base + _PENDING] -= stay.prompt_tokens

    def advance(self, base: int, now: float) -> None:
        """Count up to now with what is in flight."""
        values = self.arrays[0]
        until = values[base + _UNTIL]
        values[base + _UNTIL] = now
        if 0.0 < until < now:
            requests = values[base + _IN_FLIGHT]
            if requests:
                values[base + _REQUEST_SECONDS] += requests * (now - until)
                values[base + _PROMPT_TOKEN_SECONDS] += values[base + _PROMPTS] * (now - until)

    def read(self, base: int, now: float) -> Reading:
        """The ledger of a worker at this instant."""
        request_seconds = prompt_token_seconds = sent = pending = 0.0
        for values in self.arrays:
            until = values[base + _UNTIL]
            since = now - until if 0.0 < until < now else 0.0
            request_seconds += values[base + _REQUEST_SECONDS] + values[base + _IN_FLIGHT] * since
            prompt_token_seconds += values[base + _PROMPT_TOKEN_SECONDS] + values[base + _PROMPTS] * since
            sent += values[base + _SENT]
            pending += values[base + _PENDING]
        return Reading(now, request_seconds, prompt_token_seconds, sent, pending)
