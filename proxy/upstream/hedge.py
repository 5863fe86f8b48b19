"""The second attempt of a request whose first worker is late: it asks, and listens until an answer has begun.

It runs beside an exchange, which still has its first worker. What has come by then goes to the exchange when this one wins;
when it loses, or fails, the worker's connection is closed, so that the worker stops.
"""

from __future__ import annotations

import logging
from time import monotonic as clock
from typing import TYPE_CHECKING

import msgspec

from proxy.upstream.answering import STALE_SECONDS
from proxy.upstream.attempts import Attempts
from proxy.upstream.relay import Relay, make_meter
from proxy.wire.errors import ProxyError
from proxy.wire.framing import AnswerHead, FramingError, take_answer_head
from routing.policy import Decision
from telemetry.meter import StreamMeter
from telemetry.record import HedgeResult, RequestRecord

if TYPE_CHECKING:
    from proxy.serving.hedged import HedgedExchange
    from proxy.upstream.connections import WorkerConnection

_log = logging.getLogger(__name__)

_MOST_RECEIVED_BYTES = 64 * 1024  # without a whole event: whatever it is, it has begun
_BUSY = frozenset({429, 503})
_OF_THE_GATEWAY = frozenset({401, 403})  # about its key, which no client can mend


class Hedge(Attempts):
    """One attempt, and what is known of the race when it is over. Make it, then `start`; it ends by `end` or `hand_over`."""

    __slots__ = ("_first", "outrun_prompt_tokens", "outrun_seconds", "outrun_worker", "received", "result")

    def __init__(self, first: HedgedExchange, decision: Decision) -> None:
        super().__init__(first.state, first.client, first.head, first.endpoint, first.started_at)
        self._first = first
        self.decision = decision
        self.prepared = first.prepared
        self.key = first.key
        self.received_at = first.received_at
        self.request_id = first.request_id
        self.trace = None if first.trace is None else first.trace.branch()
        self.limits = decision.pool.limits
        self.received = b""  # all of the answer so far
        self.result: HedgeResult | None = None  # None: the race is on
        self.outrun_worker: str | None = None
        self.outrun_seconds: float | None = None
        self.outrun_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        """Id and trace are those of the exchange."""

    def start(self, now: float) -> None:
        """Ask the worker."""
        assert self.decision is not None
        self._go(self.decision, now)

    def noted_in(self, record: RequestRecord) -> RequestRecord:
        """The record of the request with what became of the second attempt."""
        return msgspec.structs.replace(
            record,
            hedge=self.result,
            outrun_worker=self.outrun_worker,
            outrun_seconds=self.outrun_seconds,
            outrun_prompt_tokens=self.outrun_prompt_tokens,
        )

    def note_outrun(self, attempt: Attempts, now: float) -> None:
        """This attempt, of the two, is called off. One that was never sent has cost its worker nothing."""
        decision, prepared, sent_at = attempt.decision, attempt.prepared, attempt.sent_at
        if decision is not None and prepared is not None:
            self.outrun_worker = decision.worker.name
            self.outrun_seconds = 0.0 if sent_at is None else now - sent_at
            self.outrun_prompt_tokens = 0 if sent_at is None else prepared.demand.prompt_tokens

    def end(self, result: HedgeResult, label: str, now: float) -> None:
        """It is over, and the exchange goes on without it; ``label`` is the attempt's."""
        self.result = result
        self.ended = True
        self._stop_connecting()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.exchange = None
            connection.close()
        self._leave_worker(label)
        self._first.hedge_is_over(self, now)

    def hand_over(self, result: HedgeResult) -> WorkerConnection | None:
        """It is the exchange's own attempt from now on: give its connection away; ``None`` where that was still being made."""
        self.result = result
        self.ended = True
        if self._task is not None:
            self._stop_connecting()
            self.attempts = 0  # the exchange begins to connect anew
        self._load = None
        connection, self.connection = self.connection, None
        return connection

    def _stop_connecting(self) -> None:
        task = self._task
        if task is not None:
            self._end_of_connecting()
            task.cancel()

    def _lose(self, label: str) -> None:
        if not self.ended:
            self.end(HedgeResult.FAILED, label, clock())

    # What its connection calls

    def connect_failed(self, result: str, error: ProxyError | None = None) -> None:
        """No connection could be made."""
        self._end_of_connecting()
        self._lose(result)

    def worker_data(self, data: bytes, now: float) -> None:
        """Bytes from the worker."""
        self.last_data_at = now
        self.received += data
        try:
            has_begun = self._has_begun(data, now)
        except FramingError:
            self._lose("broken")
            return
        if has_begun:
            self._first.second_has_begun(now)

    def _has_begun(self, data: bytes, now: float) -> bool:
        """Whether an answer has begun that the client can be given. Ends the attempt for one that it cannot."""
        relay = self.relay
        if relay is None:
            answer, data = take_answer_head(self.received, self.state.answer_heads.read)
            if answer is None:
                return False
            self.answer = answer
            if answer.status >= 300:
                self._lose(_label_of(answer))
                return False
            relay = self.relay = self._reader(answer)
        out = relay.feed(data, now)
        meter = relay.meter
        if not isinstance(meter, StreamMeter):
            return bool(out) or relay.has_ended
        relay.scan()
        if (meter.found.is_error and not meter.found.token_events) or (relay.has_ended and not meter.events):
            self._lose("failed")
            return False
        return meter.events > 0 or len(self.received) > _MOST_RECEIVED_BYTES

    def _reader(self, answer: AnswerHead) -> Relay:
        """Reads the beginning of the answer; what it makes of it goes nowhere."""
        choices = 1 if self.prepared is None else self.prepared.request.choices
        return Relay(answer, make_meter(answer, choices, self.endpoint.dialect), strips_usage=False, is_http11=True)

    def worker_lost(self, error: Exception | None) -> None:
        """The worker's connection ended under the request. Nobody waits for this attempt alone, so it is not made again."""
        connection, self.connection = self.connection, None
        is_fresh = connection is None or not connection.is_reused or self.sent_at is None
        is_stale = not is_fresh and not self.received and clock() - (self.sent_at or 0.0) <= STALE_SECONDS
        self._lose("stale" if is_stale else "broken")

    # What an attempt needs

    def _asks_stage(self, decision: Decision, since: float) -> bool:
        return False

    def fail(self, error: ProxyError) -> None:
        """The exchange goes on without it, whatever it was."""
        self._lose("abandoned")

    def fail_unexpectedly(self) -> None:
        """The same for a fault of the gateway's own, which goes to its log."""
        _log.exception("the second attempt of request %s failed in the gateway", self.request_id)
        self._lose("abandoned")


def _label_of(answer: AnswerHead) -> str:
    """The label of an attempt that was answered by such a head, none of a success."""
    if answer.status in _BUSY:
        return "busy"
    if answer.status in _OF_THE_GATEWAY:
        return "broken"
    return "failed" if answer.status >= 500 and answer.status != 501 else "answered"
