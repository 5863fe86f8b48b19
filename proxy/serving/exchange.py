"""One request from its head to its record, whatever happens.

Not a task: a small state machine that two connections call. A client's connection makes one per request; the exchange takes a
worker's connection, relays, and ends in `_end` exactly once, which frees what it held and writes its record.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import monotonic as clock
from typing import TYPE_CHECKING

from proxy.serving.account import account
from proxy.serving.counted import CountsFirst
from proxy.serving.deadlines import FIRST_BYTE, overdue, result_of_limit
from proxy.serving.dispatch import admit, prepare
from proxy.serving.lookups import ASK_SECONDS
from proxy.serving.quotas import LOOK_SECONDS, tokens_used
from proxy.upstream.answering import Answering
from proxy.upstream.failover import FAILURE_SECONDS
from proxy.upstream.prefilling import PrefillsFirst
from proxy.wire import answers
from proxy.wire.errors import (
    ProxyError,
    WorkerFault,
    bodies_too_large,
    body_too_large,
    internal_error,
    response_not_found,
    shutting_down,
)
from proxy.wire.framing import Framing
from telemetry.meter import StreamMeter
from telemetry.record import Outcome, Phase

if TYPE_CHECKING:
    from routing.topology import Key

_log = logging.getLogger(__name__)

_SMALL_BODY_BYTES = 16 * 1024  # not worth counting
_QUEUE = Phase.QUEUE


@dataclass(slots=True, eq=False, repr=False)
class Exchange(CountsFirst, PrefillsFirst, Answering):
    """What happens to a request: the calls of the two connections, and how they end."""

    # The request

    def admit(self) -> None:
        """Judge what the head alone tells, before the body is read. Raises `ProxyError`."""
        self.key = admit(self.head, self.endpoint, self.state)
        if self.key is not None and self.key.quota is not None and not self._is_small:
            self.state.quotas.check(self.key, clock())
        if self.head.content_length is not None:
            self.check_size(self.head.content_length)
            if self.state.held_body_bytes + self.head.content_length > self.state.topology.limits.held_body_bytes:
                raise bodies_too_large()

    @property
    def _is_small(self) -> bool:
        """Whether it will be judged soon enough when all of it has come."""
        length = self.head.content_length
        return not self.head.is_chunked and (length is None or length <= _SMALL_BODY_BYTES)

    def check_size(self, size: int) -> None:
        """Raises `ClientFault` when a body of so many bytes is over the limit."""
        if size > self.limits.body_bytes:
            raise body_too_large(self.limits.body_bytes)

    def hold(self, size: int) -> None:
        """So many bytes more of its body are kept until it ends. Raises `Refusal` when that is too much for all together."""
        state = self.state
        if state.held_body_bytes + size > state.topology.limits.held_body_bytes:
            raise bodies_too_large()
        state.held_body_bytes += size
        self.held_bytes += size

    def run(self, body: bytes, now: float) -> None:
        """The request is complete: answer it here, or decide and send it on."""
        self.received_at = now
        self.request_bytes = len(body)
        self.phase = _QUEUE
        try:
            if len(body) > _SMALL_BODY_BYTES:
                self.hold(len(body) - self.held_bytes)
            if self.endpoint.answer is not None:
                self._reply(self.endpoint.answer(self.key))
            else:
                state = self.state
                if self.endpoint.response_id is None:
                    self.prepared = prepare(
                        body, self.endpoint, state.endpoints, self.key, self.head.forwarded, state.loads.guidance
                    )
                if self.key is None or self.key.quota is None or self._is_charged(self.key, now):
                    self._go_on(now)
        except ProxyError as error:
            self.fail(error)
        except Exception:
            self.fail_unexpectedly()

    def _go_on(self, now: float) -> None:
        """Nothing stands in its way any more: choose a worker, or find the one that has what is looked up."""
        if self.prepared is None:
            assert self.endpoint.response_id is not None
            self.look_up(self.endpoint.response_id, now)
        else:
            self._begin(self.prepared, now)

    def _is_charged(self, key: Key, now: float) -> bool:
        """Charge it to the quota of its key; False if it has to wait for that. Raises `ProxyError`."""
        tokens = 0 if self.prepared is None else self.prepared.demand.load_tokens
        self.charge = self.state.quotas.begin(key, tokens, now)
        if self.charge.is_waiting:
            self._waits = self.state.loop.call_later(LOOK_SECONDS, self._charge_again)
        return not self.charge.is_waiting

    def _charge_again(self) -> None:
        self._waits = None
        charge, now = self.charge, clock()
        if self.ended or charge is None:
            return
        try:
            if self.state.quotas.again(charge, now):
                self.queue_seconds += now - charge.since
                self._go_on(now)
            else:
                self._waits = self.state.loop.call_later(LOOK_SECONDS, self._charge_again)
        except ProxyError as error:
            self.fail(error)
        except Exception:
            self.fail_unexpectedly()

    # The client's side

    def client_gone(self) -> None:
        """The client's connection is closed: end the worker's too, in whatever phase this is."""
        if not self.ended:
            self._drop_worker("abandoned")
            self._end(Outcome.CLIENT_GONE, None, clock())

    def client_paused(self, now: float) -> None:
        """The client's socket takes no more: read no more from the worker."""
        self.paused_at = now
        if self.connection is not None:
            self.connection.pause()

    def client_resumed(self, now: float) -> None:
        """The client's socket takes bytes again."""
        if self.paused_at is not None:
            self.client_wait_seconds += now - self.paused_at
            self.paused_at = None
            self.last_data_at = self.resumed_at = now  # the silence of a worker that was not read is not its own
        if self.connection is not None:
            self.connection.resume()

    # Ends

    def expire(self, now: float) -> None:
        """Called about twice a second: end what is over one of its limits."""
        if self.ended:
            return
        if self._hears_out and now - (self.last_data_at or now) > FAILURE_SECONDS:
            self._hears_out = False
            if self.fail_over("failed"):
                return
        if self.is_held and self.sent_at is not None and now - self.sent_at > self.limits.head_hold_seconds:
            self.release_head(names_worker=False)
        is_asking = self.connection is not None and self.answer is None and self.sent_at is not None
        if self._owners and is_asking and now - (self.sent_at or now) > ASK_SECONDS:
            self.ask_another(now, can_keep=False)
        if self.is_head_sent and self.relay is not None:
            self.client.write(self.relay.release_late())
        error = overdue(self, now)
        if error is None:
            return
        if error.reason != FIRST_BYTE:
            self.fail(error)
        elif not self.fail_over("silent"):
            self.give_up(error, "silent")

    def shut_down(self) -> None:
        """The drain time is over."""
        self.fail(shutting_down())

    def fail(self, error: ProxyError) -> None:
        """End the request with an error: as an answer while none has begun, else so that the client can tell."""
        if self.ended:
            return
        if self.has_been_denied and isinstance(error, WorkerFault) and not self.is_head_sent:
            error = response_not_found()
        now = clock()
        relay = self.relay
        can_tell = self.is_head_sent and relay is not None and relay.can_insert and isinstance(relay.meter, StreamMeter)
        self._drop_worker(result_of_limit(error) if isinstance(error, WorkerFault) else "abandoned")
        if not self.is_head_sent:
            self.status = error.status
            self._end(error.outcome, error.reason, now)
            self.client.refuse(error, self.request_id, self.endpoint.dialect)
            return
        if can_tell and relay is not None:
            self.client.write(
                relay.release_late(is_last=True) + relay.insert(answers.error_event(error, self.endpoint.dialect))
            )
        elif relay is None and self._gone_head is not None and self._gone_head.is_event_stream:
            self.client.write(answers.framed(answers.error_event(error, self.endpoint.dialect), self._gone_framing))
        self._end(error.outcome, error.reason, now)
        # Without the last chunk, or short of the length: a cut must not look like an end. Where only the end of the connection
        # tells, it has to be a reset. A client that takes no bytes cannot be told.
        if (self._gone_framing if relay is None else relay.framing) is Framing.CLOSE:
            self.client.reset()
        elif self.paused_at is None:
            self.client.close()
        else:
            self.client.abort()

    def fail_unexpectedly(self) -> None:
        """The same for a fault of the gateway's own, which goes to its log."""
        _log.exception("request %s failed in the gateway", self.request_id)
        self.fail(internal_error())

    def _reply(self, body: bytes) -> None:
        """An answer of the gateway's own."""
        self.status = 200
        self.client.write(answers.json_answer(200, body, self.request_id, closes=not self.client.will_keep_alive))
        self._end(Outcome.OK, None, clock())
        self.client.answer_done(True)

    def _drop_worker(self, result: str) -> None:
        connection, task = self.connection, self._task
        if self.relay is not None and self.found is None:
            self.found = self.relay.finish(clock())
        self.connection = None
        if connection is not None:
            connection.exchange = None
            connection.close()
        if task is not None:
            self._end_of_connecting()
            task.cancel()
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
        self._leave_worker(result)

    def _end(self, outcome: Outcome, reason: str | None, now: float) -> None:
        self.ended = True
        self.state.held_body_bytes -= self.held_bytes
        if self.waiting is not None:
            self.state.admission.leave(self, now)
        if self.charge is not None:
            self.state.quotas.end(self.charge, tokens_used(self), now)
        if self.relay is not None:
            self.answer_bytes = self.relay.answer_bytes
        if self.paused_at is not None:
            self.client_wait_seconds += now - self.paused_at
        self.state.exchanges.discard(self)
        account(self, outcome, reason, now)
