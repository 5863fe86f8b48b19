"""From an exchange that has ended to its record, its counts and its place in the log."""

from __future__ import annotations

from time import time as wall_clock
from typing import TYPE_CHECKING

from routing.topology import NO_POOL, UNKNOWN_MODEL
from telemetry.meter import Measurements, StreamMeter
from telemetry.record import NoToken, Outcome, RequestRecord

if TYPE_CHECKING:
    from proxy.exchange import Exchange
    from proxy.serving import Serving

SLOW_CLIENT_RATIO = 0.05
"""A stream that spent more of its time than this waiting for its client says nothing about the worker's pace."""


def account(serving: Serving, exchange: Exchange, outcome: Outcome, reason: str | None, now: float) -> None:
    """Make the record of an exchange that ended at ``now``, count it and send it to the control process."""
    decision = exchange.decision
    pool = decision.pool if decision else None
    worker = decision.worker if decision else None
    request, received_at, sent_at = exchange.request, exchange.received_at, exchange.sent_at
    found = exchange.found or Measurements()
    usage = found.usage
    is_stream = request is not None and request.stream
    first = found.first_token_at if is_stream else None
    e2e = now - received_at if received_at is not None else None
    was_slow_client = e2e is not None and exchange.client_wait_seconds > SLOW_CLIENT_RATIO * e2e
    tpot = found.tpot_seconds() if request is not None and request.choices == 1 else None
    if tpot is not None and was_slow_client:
        tpot = None
        serving.recorder.count_slow_client()
    completion = usage.completion_tokens if usage else None
    is_estimate = completion is None and is_stream and found.token_events > 0
    cached, inferred = _cached(serving, exchange, found)

    def since_received(at: float | None) -> float | None:
        return None if at is None or received_at is None else at - received_at

    record = RequestRecord(
        request_id=exchange.request_id,
        ended_unix_seconds=wall_clock(),
        key=exchange.key.name if exchange.key else None,
        model=exchange.model.name if exchange.model else UNKNOWN_MODEL,
        pool=pool.name if pool else NO_POOL,
        worker=worker.name if worker else None,
        endpoint=exchange.endpoint.name,
        stream=is_stream,
        status=exchange.status,
        worker_status=exchange.answer.status if exchange.answer else None,
        outcome=outcome,
        reason=reason,
        phase=exchange.phase if outcome is Outcome.CLIENT_GONE else None,
        attempts=exchange.attempts,
        pool_reason=decision.pool_reason if decision else None,
        policy=decision.policy if decision else None,
        route_reason=decision.reason if decision else None,
        finish_reasons=found.finish_reasons,
        ttft_seconds=since_received(first),
        ttft_visible_seconds=since_received(found.first_visible_at) if is_stream else None,
        ttft_first_byte_seconds=since_received(exchange.first_body_at),
        upstream_ttft_seconds=first - sent_at if first is not None and sent_at is not None else None,
        tpot_seconds=tpot,
        stall_ratio=found.stall_ratio,
        e2e_seconds=e2e,
        upload_seconds=received_at - exchange.started_at if received_at is not None else None,
        queue_seconds=0.0 if decision else None,
        connect_seconds=exchange.connect_seconds if exchange.attempts else None,
        client_wait_seconds=exchange.client_wait_seconds if exchange.head_sent else None,
        overhead_seconds=_overhead(exchange),
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=found.token_events if is_estimate else completion,
        reasoning_tokens=usage.reasoning_tokens if usage else None,
        cached_tokens=cached,
        cached_inferred=inferred,
        completion_is_estimate=is_estimate,
        token_events=found.token_events,
        estimated_prompt_tokens=exchange.estimate.tokens if exchange.estimate else None,
        max_tokens=request.max_tokens if request else None,
        request_bytes=exchange.request_bytes,
        answer_bytes=exchange.relay.answer_bytes if exchange.relay else 0,
        no_token=_no_token(exchange, found) if is_stream and first is None else None,
        missing_end=found.missing_end,
        trace_id=exchange.head.trace_id,
    )
    serving.finished(exchange, record, pool, worker, exchange.found)


def _cached(serving: Serving, exchange: Exchange, found: Measurements) -> tuple[int | None, bool]:
    """Cached tokens, and whether 0 was inferred: some versions leave the details out when nothing was cached."""
    usage = found.usage
    if usage is None or exchange.decision is None or usage.prompt_tokens is None:
        return None, False
    index = exchange.decision.worker.index
    if usage.has_details:
        if usage.cached_tokens is not None:
            serving.reports_cached.add(index)
        return usage.cached_tokens, False
    return (0, True) if index in serving.reports_cached else (None, False)


def _overhead(exchange: Exchange) -> float | None:
    """The gateway's own work on both ways; ``None`` unless an answer was written."""
    if exchange.first_written_at is None or exchange.first_body_at is None:
        return None
    return exchange.own_seconds + exchange.first_written_at - exchange.first_body_at


def _no_token(exchange: Exchange, found: Measurements) -> NoToken:
    answer = exchange.answer
    if answer is None:
        return NoToken.NOT_ANSWERED
    if answer.status >= 300 or found.is_error:
        return NoToken.REFUSED
    if exchange.relay is None or not isinstance(exchange.relay.meter, StreamMeter):
        return NoToken.UNMETERED
    return NoToken.EMPTY if found.is_complete else NoToken.CUT
