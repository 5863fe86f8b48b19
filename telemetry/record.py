"""A finished request as a value: what happened, with every figure that was reached and nothing that was not.

The serving process makes exactly one `RequestRecord` for each request and sends it to the control process, which hands it
to the sinks. A figure that was not reached or not reported is ``None``; 0 is a measured zero.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from routing.estimate import Prompt
from routing.sketch import Beginning

# Enum's own hash is a Python function, and members are looked up in dicts several times a request; as strings they hash in C.


COLD_HIT_RATIO = 0.5
"""Of a prompt's tokens: where less was cached, TTFT tells how fast the GPU computes, and else how little it had to."""


class Outcome(StrEnum):
    """How a request ended. Every request has exactly one; the order is the order of the cells that count them."""

    __hash__ = str.__hash__

    OK = "ok"  # complete
    CLIENT_ERROR = "client_error"  # the request was at fault: bad JSON, unknown model, or the worker's own 4xx passed on
    REJECTED = "rejected"  # refused by the gateway before a worker was asked; `reason` says why
    WORKER_BUSY = "worker_busy"  # the worker's 429 or 503 passed on
    WORKER_ERROR = "worker_error"  # no usable answer, an error status of 500 and above, or an error event
    TRUNCATED = "truncated"  # the answer stopped before it was complete
    STALLED = "stalled"  # the worker fell silent between two tokens
    TIMEOUT = "timeout"  # another limit ran out; `reason` names it
    ABORTED = "aborted"  # the worker ended the generation itself (finish reason `abort` or `error`)
    CLIENT_GONE = "client_gone"  # the client closed its connection; `phase` says when
    SHUTDOWN = "shutdown"  # ended by the gateway because its drain time was over
    INTERNAL_ERROR = "internal_error"  # a fault of the gateway


class Phase(StrEnum):
    """Where a request was when its client left."""

    __hash__ = str.__hash__

    UPLOAD = "upload"  # the body was still arriving
    QUEUE = "queue"  # waiting for a place
    CONNECT = "connect"  # a connection to the worker was being made
    WAIT = "wait"  # the worker had the request and had not sent a byte of the body
    ANSWER = "answer"  # the answer was on its way


class Rejection(StrEnum):
    """Why the gateway refused a request that was well formed, or could not be read at all."""

    __hash__ = str.__hash__

    AUTH = "auth"  # no key, an unknown one, or a model that it may not use
    RATE = "rate"  # its key has used up what it may per minute
    QUEUE = "queue"  # the queue was full, or its deadline passed there
    FIT = "fit"  # longer than any worker of its model takes
    NO_WORKER = "no_worker"  # none that could be asked
    DRAINING = "draining"  # the gateway was ending
    MEMORY = "memory"  # bodies of requests under way hold as much as they may
    SHORTAGE = "shortage"  # no descriptor, port or memory was left for a connection to a worker


class Misroute(StrEnum):
    """How the pool that was chosen compares with the one that a request's true tokens would have been given."""

    __hash__ = str.__hash__

    TOO_SMALL = "too_small"  # the prompt was longer than estimated: the worker may have refused it
    TOO_LARGE = "too_large"  # the prompt was shorter than estimated: a smaller pool would have done


class CountResult(StrEnum):
    """What came of counting a prompt exactly."""

    __hash__ = str.__hash__

    COUNTED = "counted"  # in time
    TIMEOUT = "timeout"  # it took too long; the estimate stood
    BUSY = "busy"  # too many were being counted
    TOO_LONG = "too_long"  # more bytes, or a longer run without a blank, than is counted
    FAILED = "failed"  # the tokenizer or the worker that was asked could not


class NoToken(StrEnum):
    """Why a streamed request has no first token."""

    __hash__ = str.__hash__

    NOT_ANSWERED = "not_answered"  # no answer of the worker reached us
    REFUSED = "refused"  # the worker answered with an error
    EMPTY = "empty"  # complete, and without a token
    CUT = "cut"  # the stream ended before the first token
    HIDDEN = "hidden"  # complete, and the worker counted tokens of which it sent none
    UNMETERED = "unmetered"  # the answer could not be read (compressed, or no event stream)


class Attempt(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One try at a worker. Instants are seconds since the first byte of the request."""

    span_id: str  # 16 hexadecimal digits
    worker: str
    began_seconds: float
    ended_seconds: float
    result: str  # a value of the label `result` of `ridgeline_attempts_total`
    status: int | None = None  # that the worker gave


class Asked(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """The sampling that a request asks for; ``None`` for what it leaves to the worker."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    choices: int | None = None
    previous_id: str | None = None  # of the response that it goes on from


class Told(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """How the worker's answer calls itself and the model that made it; ``None`` for what it does not say."""

    answer_id: str | None = None
    model: str | None = None


class Trace(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """What only the record of a sampled request has: enough to build its spans."""

    span_id: str  # of the request itself
    parent_id: str | None = None  # the client's span; None when the trace begins here
    seconds: float = 0.0  # first byte of the request -> its end
    attempts: tuple[Attempt, ...] = ()  # oldest first; very many are not all kept
    asked: Asked | None = None  # None for a request that was refused before it was read
    told: Told | None = None  # of the answer that the client got; None without one, and where its head went ahead of it


class PrefillResult(StrEnum):
    """What became of the leg at a prefill stage. Whatever is not computed there, the decode worker computes."""

    COMPUTED = "computed"  # the prompt was computed there, and the worker that answered was told where its blocks are
    LOST = "lost"  # computed there in vain: the decode worker failed, and the next one was told nothing
    NO_WORKER = "no_worker"  # none of them takes requests now
    REFUSED = "refused"  # it answered with an error
    FAILED = "failed"  # it could not be reached, or gave no whole answer
    TIMEOUT = "timeout"  # it took longer than it may
    NOT_OFFERED = "not_offered"  # it answered without saying where the blocks are: it has no connector for them
    ABANDONED = "abandoned"  # its client left, or its time was over


class HedgeResult(StrEnum):
    """What became of a request that was sent to a second worker because the first was late."""

    __hash__ = str.__hash__

    WON = "won"  # the second worker began to answer first
    LOST = "lost"  # the first did after all
    TOOK_OVER = "took_over"  # the first failed while both had it, and the second went on alone
    FAILED = "failed"  # the second failed or refused it, and the first went on alone
    ABANDONED = "abandoned"  # its client left, or its time was over, before either began


class Cause(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What made a request slow, and by how much."""

    name: str
    seconds: float


class RequestRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One request, finished. All durations in seconds from one monotonic clock."""

    request_id: str  # the client's where it is short and plain, else a new one; also in `x-request-id` of the answer
    ended_unix_seconds: float  # wall clock; for reading logs, never for arithmetic
    key: str | None = None  # configured name of the API key
    model: str = "unknown"  # configured model name; `unknown` when none matched
    pool: str = "none"  # `none` when no pool was chosen
    worker: str | None = None  # name of the worker that answered, or of the last one tried
    endpoint: str = "other"  # what was asked for: chat, completions, responses, messages, embeddings, …
    stream: bool = False  # the client asked for a stream
    status: int | None = None  # status sent to the client; None when no head was sent
    worker_status: int | None = None  # status the worker gave
    outcome: Outcome = Outcome.INTERNAL_ERROR  # how it ended
    reason: str | None = None  # why it ended so, unless it is ok; also the name of a limit or the code of an error
    fault: str | None = None  # what was wrong with the worker's answer, in words of the gateway
    phase: Phase | None = None  # where its client left; only with outcome `client_gone`
    attempts: int = 0  # times a worker was asked; a request that met a stale connection is sent once more
    pool_reason: str | None = None  # why this pool
    policy: str | None = None  # by which a worker was chosen
    route_reason: str | None = None  # why this worker
    finish_reasons: tuple[str, ...] = ()  # of each choice, as the worker said them

    ttft_seconds: float | None = None  # fully received -> first generated token; streams only
    ttft_visible_seconds: float | None = None  # fully received -> first visible text
    ttft_first_byte_seconds: float | None = None  # fully received -> first body byte from the worker
    ttft_delivered_seconds: float | None = None  # fully received -> first token handed to the client's socket
    upstream_ttft_seconds: float | None = None  # sent to the worker that answered -> first generated token
    tpot_seconds: float | None = None  # (last token - first token) / (completion_tokens - 1)
    stall_ratio: float | None = None  # largest gap between token events / their median gap
    e2e_seconds: float | None = None  # fully received -> last byte handed over (or the end, if earlier)
    upload_seconds: float | None = None  # first byte of the request -> fully received
    queue_seconds: float | None = None  # waiting in the gateway for a worker with room
    connect_seconds: float | None = None  # getting a connection to the worker; 0 for a kept one
    sent_seconds: float | None = None  # fully received -> sent to the worker that answered, or the last time it was sent
    client_wait_seconds: float | None = None  # time in which the client's socket took no more bytes
    overhead_seconds: float | None = None  # the gateway's own work, both ways

    prompt_tokens: int | None = None  # by the worker's usage, cached ones among them
    completion_tokens: int | None = None  # by the worker's usage, reasoning among them
    reasoning_tokens: int | None = None  # part of the completion
    cached_tokens: int | None = None  # prompt tokens that who computed it found in its prefix cache; None: it did not say
    cached_inferred: bool = False  # 0 was inferred from an absent field of a worker that reports hits otherwise
    completion_is_estimate: bool = False  # no usage arrived: token events were counted instead
    prompt_is_estimate: bool = False  # no usage arrived although tokens did: `estimated_prompt_tokens` stands in for it
    token_events: int = 0  # events that carried at least one token
    estimated_prompt_tokens: int | None = None  # before it was sent, from its bytes
    counted_prompt_tokens: int | None = None  # counted exactly, because a pool depended on it; without what a template adds
    count_result: CountResult | None = None  # what came of counting; None: it was not needed
    count_seconds: float | None = None  # that counting took
    misroute: Misroute | None = None  # the pool that the true tokens would have been given is another than the estimate's
    misroute_tokens: int | None = None  # then true prompt tokens - those the pool was chosen by
    max_tokens: int | None = None  # output limit declared by the client
    load_tokens: int | None = None  # what it counted for while in flight: estimated prompt and output budget
    request_bytes: int = 0  # of the client's body
    answer_bytes: int = 0  # of the body sent to the client
    no_token: NoToken | None = None  # why a stream has no first token
    missing_end: str | None = None  # which end marker a stream that counts as complete did not send
    is_batch: bool = False  # several prompts or choices, which no limit is held against
    ahead_tokens: int | None = None  # estimated prompt tokens of others at the worker, unanswered when this was sent
    beside_prefill_requests: float | None = None  # others in flight at the worker, mean from being sent to the first byte
    beside_prefill_prompt_tokens: float | None = None  # mean prompt of one of them
    joined_tokens: int | None = None  # prompt tokens that others sent there meanwhile
    beside_decode_requests: float | None = None  # the same from the first byte to the end, or of a plain request all along
    beside_decode_prompt_tokens: float | None = None  # mean prompt of one of them
    arrived_tokens: int | None = None  # prompt tokens that others sent there from the first byte to the end
    worker_ttft_seconds: float | None = None  # by the worker's own clock: scheduled -> first token
    worker_queue_seconds: float | None = None  # by the worker's own clock: in its queue
    worker_generation_seconds: float | None = None  # by the worker's own clock: first token -> last token
    worker_itl_seconds: float | None = None  # by the worker's own clock: mean gap between tokens
    prefill_result: PrefillResult | None = None  # what became of the leg at the pool's prefill stage; None without one
    prefill_worker: str | None = None  # name of the worker that was asked for it
    prefill_leg_seconds: float | None = None  # it chosen -> its answer complete; part of `ttft_seconds`
    trace_id: str | None = None  # the client's, or that of the trace which began here
    chain_id: str | None = None  # of the call chain: a hash of the configured header, or the client's trace id
    chain_call: int | None = None  # which call of its chain this is, from 1; known in the control process only
    trace: Trace | None = None  # only for a sampled request; not part of the log line
    prompt: Prompt | None = None  # what the estimate was made from, to learn from; not part of the log line
    prefix_hash: str | None = None  # of its system prompt, 16 hexadecimal digits; None without one worth a cache
    affinity: int | None = None  # of what ties it to a worker, where a policy looks at that; not part of the log line
    beginning: Beginning | None = None  # the same with what drift is found from; not part of the log line
    hedge: HedgeResult | None = None  # what became of sending it to a second worker as well; None: it was not
    outrun_worker: str | None = None  # name of the worker that was called off, whatever it had done until then
    outrun_seconds: float | None = None  # it asked -> called off, which it worked or waited for nothing
    outrun_prompt_tokens: int | None = None  # estimated, of the prompt it had: the most that it can have computed for nothing

    # Known in the control process only.
    expected_cached_tokens: int | None = None  # what such a prompt usually finds cached at this worker
    cache_lost: str | None = None  # why it found less than that: salted, restarted, elsewhere, evicted

    # Known in the control process only, and only where GPU and shape are configured. Seconds.
    ttft_floor_seconds: float | None = None  # physics: the least that `upstream_ttft_seconds` could have been
    ttft_reference_seconds: float | None = None  # the floor with the batch that really ran
    ttft_expected_seconds: float | None = None  # of a healthy worker; of a fully cold prompt where the hit is not known
    tpot_floor_seconds: float | None = None  # the least that `tpot_seconds` could have been
    tpot_reference_seconds: float | None = None  # the floor with the batch that really ran
    tpot_expected_seconds: float | None = None  # of a healthy worker
    e2e_floor_seconds: float | None = None  # plain requests only, less what gateway and client took
    e2e_reference_seconds: float | None = None  # the floor with the batch that really ran
    e2e_expected_seconds: float | None = None  # of a healthy worker
    deviations: tuple[str, ...] = ()  # figures that are far from what was expected: ttft, tpot, e2e
    causes: tuple[Cause, ...] = ()  # of the first of them, most seconds first, what is unexplained among them

    @property
    def hit_ratio(self) -> float | None:
        """The share of the prompt's tokens that came from a prefix cache; ``None`` where that is not known."""
        if self.cached_tokens is None or not self.prompt_tokens or self.prompt_is_estimate:
            return None
        return self.cached_tokens / self.prompt_tokens

    @property
    def is_cold(self) -> bool:
        """Whether it is known that most of the prompt had to be computed: what such requests take tells of capacity."""
        hit = self.hit_ratio
        return hit is not None and hit < COLD_HIT_RATIO

    @property
    def failed_attempts_seconds(self) -> float | None:
        """What went into asking workers before the one that answered, and is no part of the gateway's own work, of its queue,
        of connecting or of a prefill stage. 0 where the first one answered; ``None`` where it was not sent."""
        if self.attempts < 2:
            return 0.0
        if self.sent_seconds is None:
            return None
        others = (self.queue_seconds, self.connect_seconds, self.overhead_seconds, self.prefill_leg_seconds)
        return max(0.0, self.sent_seconds - sum(part for part in others if part is not None))

    @property
    def is_prefilled_elsewhere(self) -> bool:
        """Whether the prompt came from a prefill stage: `worker` fetched its blocks and computed none but the last."""
        return self.prefill_result is PrefillResult.COMPUTED

    @property
    def prefix_worker(self) -> str | None:
        """The worker whose prefix cache `cached_tokens` were found in."""
        return self.prefill_worker if self.is_prefilled_elsewhere else self.worker
