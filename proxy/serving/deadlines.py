"""Which limit a running request is over, if any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.wire.errors import ClientFault, ProxyError, WorkerFault
from routing.patience import expected_silence_seconds, first_byte_limit_seconds, held_tokens
from telemetry.meter import StreamMeter
from telemetry.record import Outcome, Phase

if TYPE_CHECKING:
    from proxy.serving.progress import Progress


FIRST_BYTE = "first_byte_timeout"
"""The reason of a request whose worker has not begun to answer: another one may be asked."""
_OF_WORKERS = frozenset({FIRST_BYTE, "worker_stalled"})
_OF_NOBODY = frozenset({"total_timeout", "write_timeout"})


def result_of_limit(error: ProxyError) -> str:
    """The label of an attempt that a worker's fault has ended; a limit that is not about the worker says nothing of it."""
    return "silent" if error.reason in _OF_WORKERS else "abandoned" if error.reason in _OF_NOBODY else "broken"


def overdue(exchange: Progress, now: float) -> ProxyError | None:
    """The error that a request ends with because of the time, or None. Looked at about twice a second."""
    limits = exchange.limits
    if exchange.received_at is None:
        if now - exchange.started_at > limits.request_body_seconds:
            return ClientFault("request_timeout", "The request body did not arrive in time.", status=408)
        return None
    if limits.total_seconds is not None and now - exchange.received_at > limits.total_seconds:
        return _timeout("total_timeout", "The answer took longer than allowed.")
    if exchange.paused_at is not None:
        if now - exchange.paused_at > limits.write_seconds:
            return _timeout("write_timeout", "The client took no bytes of its answer for too long.")
        return None
    if exchange.sent_at is None:
        return None
    if exchange.first_body_at is None:
        if now - exchange.sent_at > _first_byte_seconds(exchange):
            return _timeout(FIRST_BYTE, "The worker did not begin to answer in time.")
        return None
    if (
        exchange.phase is Phase.ANSWER
        and not _has_sign_since(exchange, now - limits.token_gap_seconds)
        and not (_is_thinking(exchange) and now - exchange.sent_at <= _first_byte_seconds(exchange))
    ):
        return _timeout("worker_stalled", "The worker fell silent in the middle of its answer.", Outcome.STALLED)
    return None


def _timeout(code: str, text: str, outcome: Outcome = Outcome.TIMEOUT) -> WorkerFault:
    return WorkerFault(code, text, status=504, outcome=outcome)


def _first_byte_seconds(exchange: Progress) -> float:
    return first_byte_limit_seconds(exchange.limits.first_byte_seconds, expected_seconds(exchange))


def expected_seconds(exchange: Progress) -> float | None:
    """How long the worker is expected to take until it says anything; None where it is not known how fast it is."""
    decision, prepared = exchange.decision, exchange.prepared
    if decision is None or prepared is None:
        return None
    pace = exchange.state.loads.guidance.workers.get(decision.worker.name)
    if pace is None or pace.prefill_tokens_per_second is None or pace.decode_tokens_per_second is None:
        return None
    demand, most = prepared.demand, pace.max_model_len
    return expected_silence_seconds(
        held_tokens(demand.estimate.tokens, most),
        0 if prepared.request.stream else held_tokens(demand.output_tokens, most),
        prefill_tokens_per_second=pace.prefill_tokens_per_second,
        decode_tokens_per_second=pace.decode_tokens_per_second,
    )


def _is_thinking(exchange: Progress) -> bool:
    """Whether a stream that does not show the model's reasoning may be silent because of it."""
    relay = exchange.relay
    return (
        exchange.prepared is not None
        and exchange.prepared.request.hides_reasoning
        and relay is not None
        and not relay.meter.found.token_events
    )


def _has_sign_since(exchange: Progress, instant: float) -> bool:
    """Whether the worker has sent what counts since then. What has arrived is read only where that decides: with thousands of
    streams, reading a token or two of each would hold the loop."""
    relay = exchange.relay
    if relay is not None and isinstance(relay.meter, StreamMeter):
        known = max(relay.meter.last_event_at, exchange.first_body_at or 0.0, exchange.resumed_at or 0.0)
        if known >= instant:
            return True
    return last_sign_at(exchange) >= instant


def last_sign_at(exchange: Progress) -> float:
    """When the worker last sent what counts: an event that is no comment in a stream, any byte otherwise."""
    relay = exchange.relay
    last_data_at = exchange.last_data_at or 0.0
    if relay is None or not isinstance(relay.meter, StreamMeter):
        return last_data_at
    relay.scan()
    return max(relay.meter.last_event_at, exchange.first_body_at or 0.0, exchange.resumed_at or 0.0)
