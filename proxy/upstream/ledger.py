"""What workers have had to do, so that a request can tell afterwards what ran beside it.

Integrals over time, kept in the shared arrays at every begin and end of a request: the difference of two readings over the time
between them is a mean, exact however short that time is. Each process writes its own part and reads those of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from telemetry.layout import offset

if TYPE_CHECKING:
    from proxy.upstream.load import Block

_IN_FLIGHT = offset("ridgeline_in_flight_requests")
_REQUEST_SECONDS = offset("ridgeline_ledger_request_seconds")
_PROMPT_TOKEN_SECONDS = offset("ridgeline_ledger_prompt_token_seconds")
_SENT = offset("ridgeline_ledger_sent_prompt_tokens")
_PROMPTS = offset("ridgeline_ledger_prompt_tokens")
_PENDING = offset("ridgeline_ledger_pending_prompt_tokens")
_UNTIL = offset("ridgeline_ledger_until_seconds")


Reading = tuple[float, float, float, float, float, int]
"""A worker's ledger at an instant, all serving processes together: the instant in monotonic seconds, requests integrated over
time, their prompt tokens the same, prompt tokens sent since the beginning, those of requests whose answer has not begun, and
how many other processes are in all that.

A plain tuple, since three are made for each request.
"""


class Beside(NamedTuple):
    """What others had a worker do between two readings of one request's."""

    requests: float  # mean number of other requests in flight
    prompt_tokens: float  # mean prompt of one of them, in tokens
    sent_tokens: float  # prompt tokens that came from others meanwhile


class Stay:
    """One request at a worker, as far as the ledger goes."""

    __slots__ = ("answer_began", "begun", "block", "ended", "pending_tokens", "prompt_tokens")

    def __init__(self, block: Block, prompt_tokens: int, begun: Reading) -> None:
        self.block = block
        self.prompt_tokens = prompt_tokens  # estimated
        self.pending_tokens = prompt_tokens  # of them, what this worker computes before it answers: all or none
        self.begun = begun  # as it was just before the request was added
        self.answer_began: Reading | None = None  # at the first byte of the answer
        self.ended: Reading | None = None


NOBODY = Beside(0.0, 0.0, 0.0)
_ALONE = 1e-9  # a mean of others below this is rounding


def beside(earlier: Reading, later: Reading, own_prompt_tokens: int) -> Beside | None:
    """What ran beside a request that was in flight from one reading to the other; ``None`` if they are at the same instant.

    Nor is it known when a process has come in between: all that it ever did would seem to have happened meanwhile.
    """
    seconds = later[0] - earlier[0]
    if seconds <= 0.0 or later[5] != earlier[5]:
        return None
    sent = later[3] - earlier[3]
    requests = (later[1] - earlier[1]) / seconds - 1.0
    if requests < _ALONE:
        return NOBODY if sent <= 0.0 else Beside(0.0, 0.0, sent)
    tokens = max(0.0, (later[2] - earlier[2]) / seconds - own_prompt_tokens)
    return Beside(requests, tokens / requests if requests > 0.01 else 0.0, max(0.0, sent))


class Ledger:
    """The array of this process, and those of the other serving processes."""

    __slots__ = ("_own", "_peers")

    def __init__(self, own: memoryview[float], peers: tuple[memoryview[float], ...] = ()) -> None:
        self._own = own
        self._peers = peers

    def __repr__(self) -> str:
        return f"<Ledger, {len(self._peers)} peers>"

    def with_peer(self, values: memoryview[float]) -> Ledger:
        """The same with the array of one more process."""
        return Ledger(self._own, (*self._peers, values))

    def add(self, block: Block, prompt_tokens: int, now: float) -> Stay:
        """A request goes to the worker of this block; call it before the request counts as in flight."""
        base, values = block.base, self._own
        values[base + _SENT] += prompt_tokens  # before the reading: what is sent from then on is others'
        stay = Stay(block, prompt_tokens, self.read(base, now))
        values[base + _PROMPTS] += prompt_tokens
        values[base + _PENDING] += prompt_tokens
        return stay

    def compute_elsewhere(self, stay: Stay) -> None:
        """Another worker computes its prompt, which holds up nobody here. Call it right behind `add`."""
        self._set_pending(stay, 0)

    def compute_here(self, stay: Stay) -> None:
        """After all this worker computes the prompt; call it when it is sent there. Does nothing where that is so already."""
        self._set_pending(stay, stay.prompt_tokens)

    def _set_pending(self, stay: Stay, tokens: int) -> None:
        more = tokens - stay.pending_tokens
        if not more or not stay.block.is_live:
            return
        base, values = stay.block.base, self._own
        stay.pending_tokens = tokens
        values[base + _SENT] += more
        values[base + _PENDING] += more
        now, request_seconds, prompt_token_seconds, sent, pending, peers = stay.begun
        stay.begun = (now, request_seconds, prompt_token_seconds, sent + more, pending, peers)  # its own is not others'

    def note_answer(self, stay: Stay, now: float) -> None:
        """The first byte of its answer is there, and more is to come."""
        block = stay.block
        if stay.answer_began is None and block.is_live:
            self._own[block.base + _PENDING] -= stay.pending_tokens
            stay.answer_began = self.read(block.base, now)

    def remove(self, stay: Stay, now: float) -> None:
        """It has ended; call it while it still counts as in flight."""
        block = stay.block
        if not block.is_live:
            return
        base, values = block.base, self._own
        stay.ended = self.read(base, now)
        values[base + _PROMPTS] -= stay.prompt_tokens
        if stay.answer_began is None:
            values[base + _PENDING] -= stay.pending_tokens

    def read(self, base: int, now: float) -> Reading:
        """The ledger of a worker at this instant; this process's own part is counted up to it."""
        values = self._own
        until, requests = values[base + _UNTIL], values[base + _IN_FLIGHT]
        request_seconds, prompt_token_seconds = values[base + _REQUEST_SECONDS], values[base + _PROMPT_TOKEN_SECONDS]
        if requests and 0.0 < until < now:
            since = now - until
            request_seconds += requests * since
            prompt_token_seconds += values[base + _PROMPTS] * since
            values[base + _REQUEST_SECONDS] = request_seconds
            values[base + _PROMPT_TOKEN_SECONDS] = prompt_token_seconds
        values[base + _UNTIL] = now
        sent, pending = values[base + _SENT], values[base + _PENDING]
        for values in self._peers:
            until = values[base + _UNTIL]
            since = now - until if 0.0 < until < now else 0.0
            request_seconds += values[base + _REQUEST_SECONDS] + values[base + _IN_FLIGHT] * since
            prompt_token_seconds += values[base + _PROMPT_TOKEN_SECONDS] + values[base + _PROMPTS] * since
            sent += values[base + _SENT]
            pending += values[base + _PENDING]
        return (now, request_seconds, prompt_token_seconds, sent, pending, len(self._peers))
