"""From the record of a sampled request to its spans: one for the request, and below it one for each attempt at a worker.

Names are those of OpenTelemetry's conventions for HTTP servers and for GenAI clients. The latter still change: `Semconv` says
which version is meant. What has no name there is `ridgeline.` and the name of the record's field. No text of a prompt or an
answer is in a record, and so none is in a span.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from telemetry.record import Asked, Attempt, Outcome, RequestRecord, Trace
from telemetry.wellformed import well_formed

PROVIDER = "vllm"
"""No well-known value of `gen_ai.provider.name` stands for vLLM; one's own is allowed."""

Value = str | bool | int | float | tuple[str, ...]
Routes = Mapping[str, tuple[str, str]]  # by the name of an endpoint: method and path
Addresses = Mapping[str, tuple[str, int]]  # by the name of a worker: host and port

OPERATIONS = {
    "chat": "chat",
    "completions": "text_completion",
    "responses": "chat",
    "messages": "chat",
    "embeddings": "embeddings",
}
"""`gen_ai.operation.name` by endpoint; an endpoint that is not here is an operation of its own name."""

# `ridgeline.` attributes: every known field but those that a span has in other ways, and what is only learned from.
_NOT_OWN = frozenset(
    {"trace", "trace_id", "ended_unix_seconds", "status", "endpoint", "cached_inferred", "affinity", "prompt", "beginning"}
)
_OWN = tuple((name, f"ridgeline.{name}") for name in RequestRecord.__struct_fields__ if name not in _NOT_OWN)
_LONGEST_TEXT = 256  # characters; finish reasons are a worker's own words
_INTEGERS = range(-(2**63), 2**63)  # that OTLP can carry
_NS = 1_000_000_000
_CLIENTS_TURN = frozenset({Outcome.OK, Outcome.CLIENT_ERROR, Outcome.REJECTED, Outcome.CLIENT_GONE})


class Semconv(Enum):
    """Versions of the GenAI conventions; the values are those of the configuration."""

    V1_41 = "v1.41"
    LATEST = "latest"  # 0.1 of the conventions on their own, which came after 1.41


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """Names of metrics that differ between the versions."""

    usage_histogram: str | None = None  # of prompt and completion tokens alike, told apart by `gen_ai.token.type`
    usage_counters: Mapping[str, str] = field(default_factory=dict)  # by our own family


METRIC_NAMES: Mapping[Semconv, MetricNames] = {
    Semconv.V1_41: MetricNames(usage_histogram="gen_ai.client.token.usage"),
    Semconv.LATEST: MetricNames(
        usage_counters={
            "ridgeline_prompt_tokens_total": "gen_ai.client.inference.usage.input_tokens",
            "ridgeline_completion_tokens_total": "gen_ai.client.inference.usage.output_tokens",
            "ridgeline_cached_tokens_total": "gen_ai.client.inference.usage.cache_read.input_tokens",
        },
    ),
}
SERVER_HISTOGRAMS: Mapping[str, str] = {
    "ridgeline_e2e_seconds": "gen_ai.server.request.duration",
    "ridgeline_ttft_seconds": "gen_ai.server.time_to_first_token",
    "ridgeline_tpot_seconds": "gen_ai.server.time_per_output_token",
}
"""The same in both versions, by our own family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened within a span."""

    name: str
    unix_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span as a value. Ids are lower-case hexadecimal digits."""

    name: str
    is_server: bool  # kind SERVER; otherwise CLIENT
    trace_id: str
    span_id: str
    parent_id: str | None
    parent_is_remote: bool
    started_unix_ns: int
    ended_unix_ns: int
    attributes: Mapping[str, Value]
    events: tuple[Event, ...] = ()
    error: str | None = None  # also the attribute `error.type`; None: the status stays unset


def spans_of(
    record: RequestRecord, routes: Routes, addresses: Addresses, semconv: Semconv = Semconv.LATEST
) -> tuple[Span, ...]:
    """The request's span and those of its attempts, in this order; none for a request that was not sampled.

    The wall clock is read once, at the end of a request: whatever came before stands at its distance from there.
    """
    trace = record.trace
    if trace is None or record.trace_id is None:
        return ()
    record = well_formed(record)
    start = round((record.ended_unix_seconds - trace.seconds) * _NS)
    last = len(trace.attempts) - 1
    attempts = (
        _attempt_span(record, trace, attempt, start, addresses, semconv, is_last=number == last)
        for number, attempt in enumerate(trace.attempts)
    )
    return (_request_span(record, trace, start, routes), *attempts)


def operation_of(endpoint: str) -> str:
    """The value of `gen_ai.operation.name` for an endpoint."""
    return OPERATIONS.get(endpoint, endpoint)


def _request_span(record: RequestRecord, trace: Trace, start: int, routes: Routes) -> Span:
    method, path = routes.get(record.endpoint, ("HTTP", ""))
    attributes: dict[str, Value] = {own: value for name, own in _OWN if (value := _value(getattr(record, name))) is not None}
    if path:
        attributes |= {"http.request.method": method, "http.route": path}
    if record.status is not None:
        attributes["http.response.status_code"] = record.status
    error = None if record.outcome in _CLIENTS_TURN else record.outcome.value
    if error is not None:
        attributes["error.type"] = error
    return Span(
        name=f"{method} {path}" if path else method,
        is_server=True,
        trace_id=record.trace_id or "",
        span_id=trace.span_id,
        parent_id=trace.parent_id,
        parent_is_remote=True,
        started_unix_ns=start,
        ended_unix_ns=start + round(trace.seconds * _NS),
        attributes=attributes,
        error=error,
    )


def _attempt_span(
    record: RequestRecord,
    trace: Trace,
    attempt: Attempt,
    start: int,
    addresses: Addresses,
    semconv: Semconv,
    *,
    is_last: bool,
) -> Span:
    operation = operation_of(record.endpoint)
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model,
        "gen_ai.request.max_tokens": record.max_tokens,
        "ridgeline.pool": record.pool,
        "ridgeline.worker": attempt.worker,
        "ridgeline.attempt_result": attempt.result,
        "http.response.status_code": attempt.status,
    }
    if record.stream:
        attributes["gen_ai.request.stream"] = True
    if trace.asked is not None:
        attributes |= _sampling(trace.asked, semconv)
    if attempt.worker in addresses:
        attributes["server.address"], attributes["server.port"] = addresses[attempt.worker]
    if is_last:
        attributes |= _usage(record)
        if trace.told is not None:
            attributes |= {"gen_ai.response.id": trace.told.answer_id, "gen_ai.response.model": trace.told.model}
    error = _attempt_error(record, attempt, is_last=is_last)
    if error is not None:
        attributes["error.type"] = error
    return Span(
        name=f"{operation} {record.model}",
        is_server=False,
        trace_id=record.trace_id or "",
        span_id=attempt.span_id,
        parent_id=trace.span_id,
        parent_is_remote=False,
        started_unix_ns=start + round(attempt.began_seconds * _NS),
        ended_unix_ns=start + round(attempt.ended_seconds * _NS),
        attributes={name: value for name, given in attributes.items() if (value := _value(given)) is not None},
        events=_events(record, start) if is_last else (),
        error=error,
    )


def _sampling(asked: Asked, semconv: Semconv) -> dict[str, Value | None]:
    """What the request asked for. A choice alone has no name, and 1.41 has none for the response that it goes on from."""
    top_k = asked.top_k
    return {
        "gen_ai.request.temperature": asked.temperature,
        "gen_ai.request.top_p": asked.top_p,
        # A number of candidates; 1.41 has it as a fraction.
        "gen_ai.request.top_k": float(top_k) if top_k is not None and semconv is Semconv.V1_41 else top_k,
        "gen_ai.request.seed": asked.seed,
        "gen_ai.request.frequency_penalty": asked.frequency_penalty,
        "gen_ai.request.presence_penalty": asked.presence_penalty,
        "gen_ai.request.choice.count": None if asked.choices == 1 else asked.choices,
        "gen_ai.request.previous_response.id": asked.previous_id if semconv is Semconv.LATEST else None,
    }


def _usage(record: RequestRecord) -> dict[str, Value | None]:
    return {
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": None if record.completion_is_estimate else record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": record.reasoning_tokens,
        "gen_ai.response.finish_reasons": record.finish_reasons,
        "ridgeline.upstream_ttft_seconds": record.upstream_ttft_seconds,
        "gen_ai.response.time_to_first_chunk": _first_chunk(record),
        "ridgeline.tpot_seconds": record.tpot_seconds,
    }


def _first_chunk(record: RequestRecord) -> float | None:
    """Request sent to the worker that answered -> first body byte of its stream."""
    if record.upstream_ttft_seconds is None or record.ttft_seconds is None or record.ttft_first_byte_seconds is None:
        return None
    return max(0.0, record.upstream_ttft_seconds - record.ttft_seconds + record.ttft_first_byte_seconds)


def _attempt_error(record: RequestRecord, attempt: Attempt, *, is_last: bool) -> str | None:
    """What went wrong with an attempt: the worker's error status, how it failed, or what became of its answer."""
    if attempt.result in ("answered", "failed", "busy") and attempt.status is not None and attempt.status >= 400:
        return str(attempt.status)
    if attempt.result == "outrun":  # another worker was sooner, which is no fault of this one that is known
        return None
    if attempt.result == "answered":
        return record.outcome.value if is_last and record.outcome not in _CLIENTS_TURN else None
    if attempt.result == "abandoned":  # by us: for a limit that ran out, or because the client had left
        return None if record.outcome is Outcome.CLIENT_GONE else record.outcome.value
    return attempt.result


def _events(record: RequestRecord, start: int) -> tuple[Event, ...]:
    if record.upload_seconds is None:
        return ()
    received = start + round(record.upload_seconds * _NS)
    instants = (("ridgeline.first_token", record.ttft_seconds), ("ridgeline.first_visible_text", record.ttft_visible_seconds))
    return tuple(Event(name=name, unix_ns=received + round(seconds * _NS)) for name, seconds in instants if seconds is not None)


def _value(given: object) -> Value | None:
    """A field as an attribute; None for what is unknown, empty, or an integer that OTLP has no room for."""
    if isinstance(given, str):
        return str(given)[:_LONGEST_TEXT]
    if isinstance(given, tuple):
        return tuple(str(item)[:_LONGEST_TEXT] for item in given) or None
    if isinstance(given, int):
        return given if given in _INTEGERS else None
    return given if isinstance(given, float) else None
