"""A finished request as a value: what happened, with every figure that was reached and nothing that was not.

The serving process makes exactly one `RequestRecord` for each request and sends it to the control process, which hands it
to the sinks. A figure that was not reached or not reported is ``None``; 0 is a measured zero.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

# Enum's own hash is a Python function, and members are looked up in dicts several times a request; as strings they hash in C.


class Outcome(StrEnum):
    """How a request ended. Every request has exactly one; the order is the order of the cells that count them."""

    __hash__ = str.__hash__

    OK = "ok"
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

    AUTH = "auth"
    RATE = "rate"
    QUEUE = "queue"
    FIT = "fit"
    NO_WORKER = "no_worker"
    DRAINING = "draining"


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


class Trace(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """What only the record of a sampled request has: enough to build its spans."""

    span_id: str  # of the request itself
    parent_id: str | None = None  # the client's span; None when the trace begins here
    seconds: float = 0.0  # first byte of the request -> its end
    attempts: tuple[Attempt, ...] = ()  # oldest first; very many are not all kept


class RequestRecord(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One request, finished. All durations in seconds from one monotonic clock."""

    request_id: str
    ended_unix_seconds: float  # wall clock; for reading logs, never for arithmetic
    key: str | None = None  # configured name of the API key
    model: str = "unknown"  # configured model name; "unknown" when none matched
    pool: str = "none"  # "none" when no pool was chosen
    worker: str | None = None  # name of the worker that answered, or of the last one tried
    endpoint: str = "other"
    stream: bool = False
    status: int | None = None  # status sent to the client; None when no head was sent
    worker_status: int | None = None  # status the worker gave
    outcome: Outcome = Outcome.INTERNAL_ERROR
    reason: str | None = None
    fault: str | None = None  # what was wrong with the worker's answer, in words of the gateway
    phase: Phase | None = None  # only with outcome client_gone
    attempts: int = 0  # workers asked
    pool_reason: str | None = None
    policy: str | None = None
    route_reason: str | None = None
    finish_reasons: tuple[str, ...] = ()

    ttft_seconds: float | None = None  # fully received -> first generated token; streams only
    ttft_visible_seconds: float | None = None  # fully received -> first visible text
    ttft_first_byte_seconds: float | None = None  # fully received -> first body byte from the worker
    ttft_delivered_seconds: float | None = None  # fully received -> first token handed to the client's socket
    upstream_ttft_seconds: float | None = None  # sent to the worker that answered -> first generated token
    tpot_seconds: float | None = None  # (last token - first token) / (completion_tokens - 1)
    stall_ratio: float | None = None  # largest gap between token events / their median gap
    e2e_seconds: float | None = None  # fully received -> last byte handed over (or the end, if earlier)
    upload_seconds: float | None = None  # first byte of the request -> fully received
    queue_seconds: float | None = None
    connect_seconds: float | None = None  # getting a connection to the worker; 0 for a kept one
    client_wait_seconds: float | None = None  # time in which the client's socket took no more bytes
    overhead_seconds: float | None = None  # the gateway's own work

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None  # None: the worker did not say
    cached_inferred: bool = False  # 0 was inferred from an absent field of a worker that reports hits otherwise
    completion_is_estimate: bool = False  # no usage arrived: token events were counted instead
    prompt_is_estimate: bool = False  # no usage arrived although tokens did: `estimated_prompt_tokens` stands in for it
    token_events: int = 0  # events that carried at least one token
    estimated_prompt_tokens: int | None = None
    max_tokens: int | None = None  # output limit declared by the client
    request_bytes: int = 0
    answer_bytes: int = 0
    no_token: NoToken | None = None
    missing_end: str | None = None  # which end marker a stream that counts as complete did not send
    worker_ttft_seconds: float | None = None  # by the worker's own clock: scheduled -> first token
    worker_queue_seconds: float | None = None  # the same: in its queue
    worker_generation_seconds: float | None = None  # the same: first token -> last token
    worker_itl_seconds: float | None = None  # the same: mean gap between tokens
    trace_id: str | None = None  # the client's, or that of the trace which began here
    chain_id: str | None = None  # of the call chain: a hash of the configured header, or the client's trace id
    chain_call: int | None = None  # which call of its chain this is, from 1; known in the control process only
    trace: Trace | None = None  # only for a sampled request; not part of the log line
    prefix_hash: str | None = None  # of what its prompt begins with, where a policy looks at it; 16 hexadecimal digits
