"""What a worker sends back: relayed byte by byte, held back while another worker may have to be asked, judged at its end."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from time import monotonic as clock

from proxy.serving.account import judge
from proxy.upstream.failover import Failover, Verdict
from proxy.upstream.relay import Relay, make_meter
from proxy.upstream.usage_refusals import is_about_usage, may_be_about_usage
from proxy.wire import answers
from proxy.wire.errors import answer_cut, gateway_refused, no_answer, response_not_found
from proxy.wire.framing import AnswerHead, Framing, FramingError, take_answer_head
from telemetry.measurements import Measurements
from telemetry.meter import StreamMeter
from telemetry.plain_meter import NOTHING_READ, read_plain
from telemetry.record import Outcome, Phase

STALE_SECONDS = 0.25
"""A kept connection that closes this soon after a request was written, without an answer, was already closing."""
_MAX_HELD_BYTES = 64 * 1024  # of an answer whose head is still held
_ANSWER = Phase.ANSWER
_LENGTH, _CLOSE = Framing.LENGTH, Framing.CLOSE


@dataclass(slots=True, eq=False, repr=False)
class Answering(Failover):
    """The half of an exchange that takes a worker's answer: what a worker's connection calls."""

    _answer_lines: bytes = b""
    _is_beginning: bool = False  # nothing of the answer's body has been written, or its head went out alone

    @abstractmethod
    def _drop_worker(self, result: str) -> None:
        """End what goes on at the worker, if anything does."""

    @abstractmethod
    def _end(self, outcome: Outcome, reason: str | None, now: float) -> None:
        """The request is over."""

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
            if not self._is_for_the_client(relay, out, now):
                return
        elif out:
            self.client.transport.write(out)
        if relay.has_ended:
            self._answer_complete(relay, now)

    def _is_for_the_client(self, relay: Relay, out: bytes, now: float) -> bool:
        """Take the beginning of an answer; False if it is a failure or refusal that the client need not see."""
        if self._hears_out and self._is_failure_heard(relay, out, now):
            return False
        if self._is_refusal_of_usage(relay, out, now):
            return False
        self._take_first_body(relay, out, now)
        return self.relay is relay

    def _note_first_body(self, now: float) -> None:
        self.first_body_at = now
        self.phase = _ANSWER
        health = self.state.loads.health
        if health.ejected and self.decision is not None and self.answer is not None and self.answer.status < 300:
            relay = self.relay
            if relay is None or not relay.meter.found.is_error:
                health.has_begun(self.decision.worker.name, now)

    def _take_answer_head(self, data: bytes, now: float) -> None:
        try:
            answer, data = take_answer_head(self._prefix + data if self._prefix else data, self.state.answer_heads.read)
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
        if answer.status == 404 and self.prepared is not None and self.prepared.request.previous_id is not None:
            self.answer = answer
            if self.seek_previous(now, can_keep=len(data) == answer.content_length and answer.keeps_alive):
                return
        if answer.status in (401, 403):  # about the key of the gateway, which no client can mend
            self.answer = answer
            if not self.fail_over("broken"):
                self.give_up(gateway_refused())
            return
        if self.has_been_denied and answer.status >= 300 and answer.status != 404:  # no more of use than what another has said
            self.answer = answer
            self.fail(response_not_found())
            return
        if answer.status < 300:
            self.note_answer(now)
        else:
            self.answer = answer
            if self.computes_here(answer.status, now):
                return
        if len(data) == answer.content_length and not answer.streams and self._gone_head is None:
            self._take_whole_answer(answer, data, now)
            return
        relay = self._begin_answer(answer, now)
        if self._gone_head is not None and not self.goes_on(answer, relay.framing):
            self.relay = None
            self._worker_broke("another kind of answer than the one whose head has gone out", self.result_of(answer))
            return
        if data or relay.has_ended:
            self.worker_data(data, now)

    def _take_whole_answer(self, answer: AnswerHead, body: bytes, now: float) -> None:
        """A plain answer that came in one read, as most do, needs nothing that relays."""
        self.answer = answer
        if self.asks_usage and may_be_about_usage(answer.status) and is_about_usage(body):
            self.ask_without_usage(now, body, can_keep=answer.keeps_alive)
            return
        if answer.status >= 300 and self.is_failure(answer):
            verdict = self.verdict_of(answer, _LENGTH, body)
            if self.fail_over(self.result_of(answer), can_keep=answer.keeps_alive, verdict=verdict):
                return
        self._note_first_body(now)
        self.answer_bytes = len(body)
        self._answer_lines = self._lines(answer, _LENGTH, now)
        self._held = body
        self.release_head(names_worker=True)
        self.write_seconds = clock() - now
        self._end_answer(answer, self._read_whole(answer, body), b"", can_keep=True)

    def _read_whole(self, answer: AnswerHead, body: bytes) -> Measurements:
        return read_plain(body, self.endpoint.dialect) if answer.is_json else NOTHING_READ

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
        self._is_beginning = True
        self.is_held = not self.is_head_sent
        self._hears_out = answer.status >= 300 and self.is_held and self.is_failure(answer)
        return relay

    def _lines(self, answer: AnswerHead, framing: Framing, now: float) -> bytes:
        received_at, sent_at = self.received_at, self.sent_at
        assert received_at is not None
        assert sent_at is not None
        return answers.answer_lines(
            answer,
            framing,
            request_id=self.request_id,
            closes=not self.client.will_keep_alive or framing is _CLOSE,
            timing=(received_at - self.started_at, self.connect_seconds, now - sent_at),
            queue_seconds=self.queue_seconds,
            more=b"" if self.charge is None else self.state.quotas.lines(self.charge, now),
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

    def _is_failure_heard(self, relay: Relay, out: bytes, now: float) -> bool:
        """Whether an error answer is still being read to its end, or has been and another worker is asked."""
        answer, held = self.answer, self._held + out
        assert answer is not None
        if not relay.has_ended and len(held) < _MAX_HELD_BYTES:
            self._held = held
            return True
        self._hears_out = False
        if not relay.has_ended:
            return False
        verdict = self.verdict_of(answer, relay.framing, held, relay)
        can_keep = answer.keeps_alive and not relay.rest
        return self.fail_over(self.result_of(answer), can_keep=can_keep, verdict=verdict)

    def _take_first_body(self, relay: Relay, out: bytes, now: float) -> None:
        """The head goes out with the first event of a stream, or the first bytes of anything else."""
        if self._held:
            out = self._held + out
        waits = not out
        meter = relay.meter
        if isinstance(meter, StreamMeter) and (self.is_held or self._went_alone):
            relay.scan()
            waits = not meter.events
            if meter.found.is_error and not meter.found.token_events and self.fail_over_from_event(relay, out):
                return
        if self.first_body_at is None and (out or relay.has_ended):
            self._note_first_body(now)
            if self.stay is not None and not relay.has_ended:
                self.state.loads.ledger.note_answer(self.stay, now)
        if not self.is_held:  # the head had to go before the body began
            self._is_beginning = not out
            if out:
                self._went_alone = False
                self.client.transport.write(out)
            return
        if waits and not relay.has_ended and len(out) < _MAX_HELD_BYTES:
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
        self.is_held = self._hears_out = False
        self.is_head_sent = True
        self.status = None if self.answer is None else self.answer.status
        self._went_alone = not names_worker and not held and self.status == 200
        if self.trace is not None and held:
            self.trace.note_answer(held)
        self.client.transport.write(b"%b%b\r\n%b" % (self._answer_lines, named, held))

    def _answer_complete(self, relay: Relay, now: float) -> None:
        answer = self.answer
        assert answer is not None
        found = relay.finish(now)
        if relay.fingerprint is not None and self.decision is not None:
            self.state.fingerprints[self.decision.worker.url] = relay.fingerprint
        self._end_answer(answer, found, relay.rest, can_keep=relay.framing is not _CLOSE)

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
        outcome, reason = judge(answer, found)
        if answer.status < 300 and not found.is_error:
            self._leave_worker("answered")
        elif answer.status < 300:
            is_workers = answer.is_event_stream and not self.is_clients_fault
            self._leave_worker("failed" if is_workers else "answered", is_proof=False)
        else:
            self._leave_worker(self.result_of(answer), is_proof=False)
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
                if not self._is_for_the_client(relay, out, now):
                    return
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

    def _worker_broke(self, what: str, result: str = "broken") -> None:
        """The worker's answer cannot be relayed any further; ``what`` goes into the record, never to the client."""
        if self._owners and not self.is_head_sent:
            self.ask_another(clock(), can_keep=False)
            return
        self.fault = what
        if not self.fail_over(result):
            self.give_up(answer_cut() if self.is_head_sent else no_answer(), result)

    def pass_on(self, verdict: Verdict) -> None:
        """End the request with a worker's error answer that was kept."""
        now = clock()
        self._drop_worker("broken")
        self.decision, self.answer, self.sent_at, self.relay = verdict.decision, verdict.answer, verdict.sent_at, None
        self.first_body_at = now
        self.phase = _ANSWER
        self.answer_bytes = len(verdict.body)
        self._answer_lines = self._lines(verdict.answer, verdict.framing, now)
        self._held = verdict.body
        self.release_head(names_worker=True)
        found = verdict.relay.finish(now) if verdict.relay is not None else self._read_whole(verdict.answer, verdict.body)
        is_whole = verdict.relay is None or verdict.relay.has_ended
        self._end_answer(verdict.answer, found, b"", can_keep=is_whole and verdict.framing is not _CLOSE)
