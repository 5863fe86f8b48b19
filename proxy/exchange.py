"""One request from its head to its record, whatever happens.

Not a task: a small state machine that two connections call. A client's connection makes one per request; the exchange takes a
worker's connection, relays, and ends in `_end` exactly once, which frees what it held and writes its record.
"""

from __future__ import annotations

import logging
from time import monotonic as clock

from proxy import answers
from proxy.account import account, judge
from proxy.attempts import Attempts
from proxy.deadlines import overdue
from proxy.dispatch import admit, prepare
from proxy.errors import (
    ProxyError,
    WorkerFault,
    answer_cut,
    bodies_too_large,
    body_too_large,
    gateway_refused,
    internal_error,
    no_answer,
    response_not_found,
    shutting_down,
)
from proxy.framing import AnswerHead, Framing, FramingError, take_answer_head
from proxy.lookups import ASK_SECONDS
from proxy.relay import Relay, make_meter
from proxy.usage_refusals import is_about_usage, may_be_about_usage
from telemetry.measurements import Measurements
from telemetry.meter import StreamMeter
from telemetry.plain_meter import NOTHING_READ, read_plain
from telemetry.record import Outcome, Phase

_log = logging.getLogger(__name__)

STALE_SECONDS = 0.25
"""A kept connection that closes this soon after a request was written, without an answer, was already closing."""
_SMALL_BODY_BYTES = 16 * 1024  # not worth counting
_MAX_HELD_BYTES = 64 * 1024  # of an answer whose head is still held


class Exchange(Attempts):
    """What happens to a request: the calls of the two connections, and how they end."""

    _has_retried_stale = False
    _answer_lines = b""
    _is_beginning = False  # nothing of the answer's body has been written, or its head went out alone

    # The request

    def admit(self) -> None:
        """Judge what the head alone tells, before the body is read. Raises `ProxyError`."""
        self.key = admit(self.head, self.endpoint, self.state)
        if self.head.content_length is not None:
            self.check_size(self.head.content_length)
            if self.state.held_body_bytes + self.head.content_length > self.state.topology.limits.held_body_bytes:
                raise bodies_too_large()

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
        self.phase = Phase.QUEUE
        try:
            if len(body) > _SMALL_BODY_BYTES:
                self.hold(len(body) - self.held_bytes)
            if self.endpoint.answer is not None:
                self._reply(self.endpoint.answer(self.key))
            else:
                if self.endpoint.response_id is not None:
                    self.look_up(self.endpoint.response_id, now)
                    return
                self.prepared = prepare(body, self.endpoint, self.state.endpoints, self.key, self.head.forwarded)
                self._attempt(now)
        except ProxyError as error:
            self.fail(error)
        except Exception:
            self.fail_unexpectedly()

    # The worker's side

    def worker_data(self, data: bytes, now: float) -> None:
        """Bytes from the worker: the hot path."""
        self.last_data_at = now
        relay = self.relay
        if relay is None:
            self._take_answer_head(data, now)
            return
        try:
            out = relay.feed(data, now)
        except FramingError as error:
            self._worker_broke(str(error))
            return
        if self._is_beginning:
            if self._is_refusal_of_usage(relay, out, now):
                return
            self._take_first_body(relay, out, now)
        elif out:
            self.client.transport.write(out)
        if relay.has_ended:
            self._answer_complete(relay, now)

    def _note_first_body(self, now: float) -> None:
        self.first_body_at = now
        self.phase = Phase.ANSWER

    def _take_answer_head(self, data: bytes, now: float) -> None:
        try:
            answer, data = take_answer_head(self._prefix + data if self._prefix else data)
        except FramingError as error:
            self._worker_broke(str(error))
            return
        if answer is None:
            self._prefix = data
            return
        self._prefix = b""
        if self.may_ask_another(answer.status):
            self.answer = answer
            is_whole = len(data) == answer.content_length and answer.keeps_alive
            self.ask_another(now, can_keep=is_whole, status=answer.status)
            return
        if answer.status in (401, 403):  # about the key of the gateway, which no client can mend
            self.answer = answer
            self.fail(gateway_refused())
            return
        if self.has_been_denied and answer.status >= 300 and answer.status != 404:  # no more of use than what another has said
            self.answer = answer
            self.fail(response_not_found())
            return
        if answer.status < 300:
            self.note_answer(now)
        if len(data) == answer.content_length and not answer.streams:
            self._take_whole_answer(answer, data, now)
            return
        relay = self._begin_answer(answer, now)
        if data or relay.has_ended:
            self.worker_data(data, now)

    def _take_whole_answer(self, answer: AnswerHead, body: bytes, now: float) -> None:
        """A plain answer that came in one read, as most do, needs nothing that relays."""
        self.answer = answer
        if self.asks_usage and may_be_about_usage(answer.status) and is_about_usage(body):
            self.ask_without_usage(now, body, can_keep=answer.keeps_alive)
            return
        self.first_body_at = now
        self.phase = Phase.ANSWER
        self.answer_bytes = len(body)
        self._answer_lines = self._lines(answer, Framing.LENGTH, now)
        self._held = body
        self.release_head(names_worker=True)
        self.write_seconds = clock() - now
        self._end_answer(
            answer, read_plain(body, self.endpoint.dialect) if answer.is_json else NOTHING_READ, b"", can_keep=True
        )

    def _begin_answer(self, answer: AnswerHead, now: float) -> Relay:
        assert self.prepared is not None
        assert self.decision is not None
        request = self.prepared.request
        self.answer = answer
        self.relay = relay = Relay(
            answer,
            make_meter(answer, request.choices, self.endpoint.dialect, echoes=request.echoes),
            strips_usage=self.asks_usage and answer.is_event_stream and answer.status < 300,
            is_http11=self.head.is_http11,
            choices=request.choices,
            fingerprint=self.state.fingerprints.get(self.decision.worker.url),
        )
        self._answer_lines = self._lines(answer, relay.framing, now)
        self.is_held = self._is_beginning = True
        return relay

    def _lines(self, answer: AnswerHead, framing: Framing, now: float) -> bytes:
        received_at, sent_at = self.received_at, self.sent_at
        assert received_at is not None
        assert sent_at is not None
        return answers.answer_lines(
            answer,
            framing,
            request_id=self.request_id,
            closes=not self.client.will_keep_alive or framing is Framing.CLOSE,
            timing=(received_at - self.started_at, self.connect_seconds, now - sent_at),
            queue_seconds=self.queue_seconds,
        )

    def _is_refusal_of_usage(self, relay: Relay, out: bytes, now: float) -> bool:
        """Whether what is held is a refusal that may be, or is, about the question for usage, and so is not for the client."""
        answer = self.answer
        if answer is None or not self.is_held or not self.asks_usage or not may_be_about_usage(answer.status):
            return False
        if out and self.first_body_at is None:
            self._note_first_body(now)
        held = self._held + out
        if relay.has_ended and is_about_usage(held):
            self.ask_without_usage(now, held, can_keep=answer.keeps_alive and not relay.rest)
        elif relay.has_ended or len(held) >= _MAX_HELD_BYTES:
            self._held = b""
            self._take_first_body(relay, held, now)
            if relay.has_ended:
                self._answer_complete(relay, now)
        else:
            self._held = held
        return True

    def _take_first_body(self, relay: Relay, out: bytes, now: float) -> None:
        """The head goes out with the first event of a stream, or the first bytes of anything else."""
        if self.first_body_at is None and (out or relay.has_ended):
            self._note_first_body(now)
        if not self.is_held:  # the head had to go before the body began
            self._is_beginning = not out
            if out:
                self.client.transport.write(out)
            return
        if self._held:
            out = self._held + out
        if not relay.has_ended:
            if isinstance(relay.meter, StreamMeter):
                relay.scan()
                waits = not relay.meter.events
            else:
                waits = not out
            if waits and len(out) < _MAX_HELD_BYTES:
                self._held = out
                return
        self._held = out
        if answer_id := relay.meter.found.answer_id:
            self.note_owner(answer_id)
        self._is_beginning = False
        self.release_head(names_worker=True)
        self.write_seconds = clock() - now

    def release_head(self, *, names_worker: bool) -> None:
        """Send the head and what waited with it. Without the worker's name, since it had to go before its first event."""
        assert self.decision is not None
        named = self.state.worker_lines(self.decision) if names_worker else b""
        held, self._held = self._held, b""
        self.is_held = False
        self.is_head_sent = True
        self.status = None if self.answer is None else self.answer.status
        self.client.transport.write(b"%b%b\r\n%b" % (self._answer_lines, named, held))

    def _answer_complete(self, relay: Relay, now: float) -> None:
        answer = self.answer
        assert answer is not None
        found = relay.finish(now)
        if relay.fingerprint is not None and self.decision is not None:
            self.state.fingerprints[self.decision.worker.url] = relay.fingerprint
        self._end_answer(answer, found, relay.rest, can_keep=relay.framing is not Framing.CLOSE)

    def _end_answer(self, answer: AnswerHead, found: Measurements, rest: bytes, *, can_keep: bool) -> None:
        """The answer is complete; ``rest`` came behind it, and ``can_keep`` says whether its end shows in the framing."""
        connection = self.connection
        self.found = found
        if found.answer_id is not None and self.decision is not None:
            self.note_owner(found.answer_id)
        self.connection = None
        if connection is not None:
            connection.exchange = None
            if answer.keeps_alive and not rest and connection.has_sent_all:
                connection.release()
            else:
                connection.close()
        self._leave_worker("answered")
        outcome, reason = judge(answer, found)
        self._end(outcome, reason, clock())
        self.client.answer_done(can_keep)

    def worker_lost(self, error: Exception | None) -> None:
        """The worker's connection ended under the request."""
        connection, now, relay = self.connection, clock(), self.relay
        self.connection = None
        assert connection is not None
        assert self.sent_at is not None
        if relay is not None:
            try:
                out = relay.end_of_connection(is_clean=error is None)
            except FramingError as fault:
                self._worker_broke(str(fault))
                return
            if self.is_held:
                if self._is_refusal_of_usage(relay, out, now):
                    return
                self._take_first_body(relay, out, now)
            elif out:
                self.client.transport.write(out)
            self._answer_complete(relay, now)
        elif (
            connection.is_reused
            and self.last_data_at == self.sent_at
            and not self._has_retried_stale
            and now - self.sent_at <= STALE_SECONDS
        ):
            self._has_retried_stale = True
            if self._load is not None:
                self.state.loads.count_attempt(self._load, "stale")
            if self.trace is not None:
                self.trace.end("stale", now, None)
            self._connect(now)
        else:
            self._worker_broke("the connection ended without an answer")

    def _worker_broke(self, what: str) -> None:
        """The worker's answer cannot be relayed any further; ``what`` goes into the record, never to the client."""
        if self._owners and not self.is_head_sent:
            self.ask_another(clock(), can_keep=False)
            return
        self.fault = what
        self.fail(answer_cut() if self.is_head_sent else no_answer())

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
        if self.is_held and self.sent_at is not None and now - self.sent_at > self.limits.head_hold_seconds:
            self.release_head(names_worker=False)
        is_asking = self.connection is not None and self.answer is None and self.sent_at is not None
        if self._owners and is_asking and now - (self.sent_at or now) > ASK_SECONDS:
            self.ask_another(now, can_keep=False)
        if self.is_head_sent and self.relay is not None:
            self.client.write(self.relay.release_late())
        error = overdue(self, now)
        if error is not None:
            self.fail(error)

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
        self._drop_worker("broken" if isinstance(error, WorkerFault) else "abandoned")
        if not self.is_head_sent:
            self.status = error.status
            self._end(error.outcome, error.reason, now)
            self.client.refuse(error, self.request_id, self.endpoint.dialect)
            return
        if can_tell and relay is not None:
            self.client.write(
                relay.release_late(is_last=True) + relay.insert(answers.error_event(error, self.endpoint.dialect))
            )
        self._end(error.outcome, error.reason, now)
        # Without the last chunk, or short of the length: a cut must not look like an end. Where only the end of the connection
        # tells, it has to be a reset. A client that takes no bytes cannot be told.
        if relay is not None and relay.framing is Framing.CLOSE:
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
        self._leave_worker(result)

    def _end(self, outcome: Outcome, reason: str | None, now: float) -> None:
        self.ended = True
        self.state.held_body_bytes -= self.held_bytes
        if self.waiting is not None:
            self.state.admission.leave(self, now)
        if self.relay is not None:
            self.answer_bytes = self.relay.answer_bytes
        if self.paused_at is not None:
            self.client_wait_seconds += now - self.paused_at
        self.state.exchanges.discard(self)
        account(self, outcome, reason, now)
