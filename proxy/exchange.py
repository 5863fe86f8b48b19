"""One request from its head to its record, whatever happens.

Not a task: a small state machine that the two connections call. A client's connection makes one per request; the exchange
takes a worker's connection, relays, and ends in `_end` exactly once, which frees what it held and writes its record.
"""

from __future__ import annotations

import logging
from time import monotonic as clock
from typing import TYPE_CHECKING

from proxy import answers
from proxy.account import account
from proxy.errors import ClientFault, ProxyError, Refusal, WorkerFault
from proxy.framing import MAX_HEAD_BYTES, AnswerHead, FramingError, parse_answer_head
from proxy.inference import InferenceRequest, ask_for_usage, parse_request, rename_model
from proxy.relay import Framing, Relay
from routing.estimate import TokenEstimate, estimate_tokens
from routing.policy import Decision, Impossible, choose, total_tokens
from routing.topology import Key, Limits, Model
from telemetry.meter import Measurements, Meter, NoMeter, PlainMeter, StreamMeter
from telemetry.record import Outcome, Phase, Rejection
from telemetry.recorder import GAP_BOUNDS

if TYPE_CHECKING:
    from proxy.client import ClientConnection
    from proxy.request_head import RequestHead
    from proxy.serving import Endpoint, Serving
    from proxy.upstream import WorkerConnection

_log = logging.getLogger(__name__)

STALE_SECONDS = 0.25
"""A kept connection that closes this soon after a request was written, without an answer, was already closing."""
_MAX_HELD_BYTES = 64 * 1024  # of an answer whose head is still held


class Exchange:
    """A request and what became of it. Instants (``_at``) are monotonic seconds, ``None`` until they happen."""

    __slots__ = (
        "_answer_lines",
        "_held",
        "_is_fresh_try",
        "_load_tokens",
        "_prefix",
        "_serving",
        "_strips_usage",
        "_task",
        "_tried",
        "_upstream_body",
        "answer",
        "attempts",
        "client",
        "client_wait_seconds",
        "connect_at",
        "connect_seconds",
        "connection",
        "decision",
        "endpoint",
        "ended",
        "estimate",
        "first_body_at",
        "first_written_at",
        "found",
        "head",
        "head_sent",
        "key",
        "last_data_at",
        "limits",
        "model",
        "own_seconds",
        "paused_at",
        "phase",
        "received_at",
        "relay",
        "request",
        "request_bytes",
        "request_id",
        "sent_at",
        "started_at",
        "status",
    )

    def __init__(
        self, serving: Serving, client: ClientConnection, head: RequestHead, endpoint: Endpoint, started_at: float
    ) -> None:
        self._serving = serving
        self.client = client
        self.head = head
        self.endpoint = endpoint
        self.started_at = started_at  # first byte of the request
        self.request_id = head.request_id or serving.new_request_id()
        self.key: Key | None = None
        self.limits: Limits = serving.topology.limits
        self.phase = Phase.UPLOAD
        self.ended = False
        self.received_at: float | None = None
        self.request: InferenceRequest | None = None
        self.request_bytes = 0
        self.model: Model | None = None
        self.estimate: TokenEstimate | None = None
        self.decision: Decision | None = None
        self.attempts = 0
        self.connection: WorkerConnection | None = None
        self.connect_at: float | None = None
        self.connect_seconds = 0.0
        self.sent_at: float | None = None
        self.answer: AnswerHead | None = None
        self.relay: Relay | None = None
        self.first_body_at: float | None = None
        self.first_written_at: float | None = None
        self.last_data_at: float | None = None
        self.found: Measurements | None = None
        self.head_sent = False
        self.status: int | None = None
        self.own_seconds = 0.0
        self.paused_at: float | None = None
        self.client_wait_seconds = 0.0
        self._task: object = None  # the connection being made, to be cancelled
        self._tried: tuple[int, ...] = ()
        self._is_fresh_try = False  # the one retry after a stale connection is under way or done
        self._load_tokens: int | None = None  # what this request adds to its worker's load; None while it has none
        self._upstream_body: list[bytes | memoryview] = []
        self._strips_usage = False
        self._prefix = b""  # bytes of an answer's head that is not complete
        self._answer_lines = b""  # the answer's header lines, ready to go
        self._held: list[bytes] | None = None  # body bytes waiting with the head; None once the head is out

    def __repr__(self) -> str:
        worker = self.decision.worker.name if self.decision else "no worker"
        return f"<Exchange {self.request_id} {'ended' if self.ended else self.phase.value}, {worker}>"

    # The request

    def admit(self) -> None:
        """Judge what the head alone tells, before the body is read. Raises `ProxyError`."""
        serving = self._serving
        head = self.head
        if serving.keys:
            key = serving.find_key(head.api_key)
            if key is None:
                what = "No API key was given" if head.api_key is None else "The API key is not known"
                raise Refusal(401, "invalid_api_key", f"{what}; send it as 'Authorization: Bearer KEY'.", reason=Rejection.AUTH)
            self.key = key
        if head.is_encoded:
            raise ClientFault("unsupported_encoding", "Compressed request bodies are not accepted.", status=415)
        if head.content_length is not None:
            self.check_size(head.content_length)

    def check_size(self, size: int) -> None:
        """Raises `ClientFault` when a body of so many bytes is over the limit."""
        if size > self.limits.body_bytes:
            raise ClientFault(
                "body_too_large", f"The request body is over the limit of {self.limits.body_bytes} bytes.", status=413
            )

    def run(self, body: bytes, now: float) -> None:
        """The request is complete: decide and send it on."""
        self.received_at = now
        self.request_bytes = len(body)
        self.phase = Phase.QUEUE
        try:
            if self.endpoint.answer is not None:
                self._reply(self.endpoint.answer(self))
                return
            self._prepare(body)
            self._attempt()
        except ProxyError as error:
            self.fail(error)
        except Exception:
            self._fail_unexpectedly()

    def _prepare(self, body: bytes) -> None:
        self.request = request = parse_request(body)
        self.model = model = self._serving.find_model(request.model)
        if self.key is not None and self.key.models is not None and model.name not in self.key.models:
            raise Refusal(403, "model_not_allowed", "This API key may not use this model.", reason=Rejection.AUTH)
        self.estimate = estimate_tokens(request.text)
        if request.model is not None and request.model != model.name:
            renamed = rename_model(body, request.model, model.name)
            if renamed is None:
                raise ClientFault("invalid_model", "The model field could not be read.")
            body = renamed
        self._upstream_body = [body]
        if request.stream and request.include_usage is not True and self.endpoint.has_usage and model.pools[0].asks_usage:
            asking = ask_for_usage(body, request)
            if asking is not None:
                self._upstream_body = asking
                self._strips_usage = True

    def _attempt(self) -> None:
        """Choose a worker and send, on a kept connection at once or when a new one is there."""
        assert self.model is not None
        assert self.request is not None
        assert self.estimate is not None
        serving = self._serving
        max_tokens = self.request.max_tokens
        decision = choose(self.model, self.estimate, max_tokens, serving.snapshot(), self._tried)
        if decision is Impossible.FIT:
            limit = self.model.pools[-1].max_total_tokens
            raise Refusal(
                400,
                "context_length_exceeded",
                f"The prompt (at least {self.estimate.least} tokens) and the output budget of {max_tokens or 0} tokens "
                f"are over the {limit} tokens that this model is served with.",
                reason=Rejection.FIT,
            )
        if isinstance(decision, Impossible):
            if self._tried:
                raise WorkerFault("worker_unreachable", "No worker could be reached for this model.")
            raise Refusal(
                503, "no_worker", "No worker is up for this model.", reason=Rejection.NO_WORKER, retry_after_seconds=2
            )
        self.decision = decision
        self.limits = decision.pool.limits
        self._load_tokens = total_tokens(self.estimate, max_tokens)
        serving.begin_work(decision, self._load_tokens)
        self._connect(may_reuse=True)

    def _connect(self, *, may_reuse: bool) -> None:
        assert self.decision is not None
        assert self.received_at is not None
        self.attempts += 1
        connections = self._serving.connections[self.decision.worker.index]
        connection = connections.take() if may_reuse else None
        if connection is not None:
            self._send(connection)
            self.own_seconds += self.sent_at - self.received_at if self.sent_at else 0.0
            return
        self.phase = Phase.CONNECT
        self.connect_at = clock()
        if self.attempts == 1:
            self.own_seconds += self.connect_at - self.received_at
        self._task = connections.connect(self)

    def connected(self, connection: WorkerConnection) -> None:
        """A new connection is there."""
        self._end_of_connecting()
        if self.ended:
            connection.close()
            return
        self._send(connection)

    def connect_failed(self, result: str) -> None:
        """No connection could be made (``result`` is the attempt's label): another worker may get the request."""
        self._end_of_connecting()
        if self.ended:
            return
        assert self.decision is not None
        self._leave_worker(result)
        self._tried = (*self._tried, self.decision.worker.index)
        try:
            self._attempt()
        except ProxyError as error:
            self.fail(error)
        except Exception:
            self._fail_unexpectedly()

    def _end_of_connecting(self) -> None:
        self._task = None
        if self.connect_at is not None:
            self.connect_seconds += clock() - self.connect_at
            self.connect_at = None

    def _send(self, connection: WorkerConnection) -> None:
        assert self.decision is not None
        self.connection = connection
        connection.exchange = self
        body = self._upstream_body
        size = sum(map(len, body))
        head = self._serving.request_prefix(self.decision, self.endpoint)
        lines = b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            head,
            self.head.forwarded,
            self.request_id.encode(),
            size,
        )
        if size <= 16384:
            connection.write(b"".join((lines, *body)))
        else:
            connection.write_pieces([lines, *body])
        self.phase = Phase.WAIT
        self.sent_at = self.last_data_at = clock()

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
        if self._held is not None:
            self._take_first_body(out, now)
        elif out:
            self.client.write(out)
        if relay.has_ended:
            self._answer_complete(now)

    def _take_answer_head(self, data: bytes, now: float) -> None:
        data = self._prefix + data if self._prefix else data
        try:
            while True:
                end = data.find(b"\r\n\r\n")
                if end < 0:
                    if len(data) > MAX_HEAD_BYTES:
                        raise FramingError("a head without end")
                    self._prefix = data
                    return
                answer = parse_answer_head(data[: end + 4])
                data = data[end + 4 :]
                if answer.status >= 200:
                    break
            if 300 <= answer.status < 400:
                raise FramingError("a redirect, which is not followed")
        except FramingError as error:
            self._worker_broke(str(error))
            return
        self._prefix = b""
        self.answer = answer
        self._begin_answer(answer, now)
        if data or (self.relay is not None and self.relay.has_ended):
            self.worker_data(data, now)

    def _begin_answer(self, answer: AnswerHead, now: float) -> None:
        assert self.request is not None
        assert self.sent_at is not None
        assert self.received_at is not None
        is_ok = answer.status < 300
        meter: Meter
        if answer.is_event_stream and is_ok:
            meter = StreamMeter(self.request.choices, GAP_BOUNDS)
        elif answer.is_encoded or not answer.content_type.startswith(b"application/json"):
            meter = NoMeter()
        else:
            meter = PlainMeter()
        strips = self._strips_usage and answer.is_event_stream and is_ok
        self.relay = relay = Relay(answer, meter, strips_usage=strips, is_http11=self.head.is_http11)
        self.status = answer.status
        lines = [
            answers.status_line(answer.status),
            answers.passed_headers(answer),
            b"x-request-id: %b\r\n" % self.request_id.encode(),
        ]
        lines.append(
            b"server-timing: upload;dur=%.1f, connect;dur=%.1f, wait;dur=%.1f\r\n"
            % (
                1e3 * (self.received_at - self.started_at),
                1e3 * self.connect_seconds,
                1e3 * (now - self.sent_at),
            )
        )
        if relay.framing is Framing.LENGTH:
            lines.append(b"content-length: %d\r\n" % (answer.content_length or 0))
        elif relay.framing is Framing.CHUNKED:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.client.will_keep_alive or relay.framing is Framing.CLOSE:
            lines.append(b"connection: close\r\n")
        self._answer_lines = b"".join(lines)
        self._held = []

    def _take_first_body(self, out: bytes, now: float) -> None:
        """The head goes out with the first event of a stream, or the first bytes of anything else."""
        assert self._held is not None
        assert self.relay is not None
        if self.first_body_at is None and (out or self.relay.has_ended):
            self.first_body_at = now
            self.phase = Phase.ANSWER
        if out:
            self._held.append(out)
        if not self.relay.has_ended and self.relay.framing is not Framing.LENGTH:
            self.relay.scan()
            waits = isinstance(self.relay.meter, StreamMeter) and not self.relay.meter.events
            if (waits or not out) and sum(map(len, self._held)) < _MAX_HELD_BYTES:
                return
        self._release_head(names_worker=True)

    def _release_head(self, *, names_worker: bool) -> None:
        assert self.decision is not None
        held = self._held or []
        self._held = None
        named = self._serving.worker_lines[self.decision.worker.index] if names_worker else b""
        self.head_sent = True
        self.client.write(b"".join((self._answer_lines, named, b"\r\n", *held)))
        if self.first_body_at is not None:
            self.first_written_at = clock()

    def _answer_complete(self, now: float) -> None:
        relay, connection, answer = self.relay, self.connection, self.answer
        assert relay is not None
        assert answer is not None
        assert connection is not None
        self.found = relay.finish(now)
        self.connection = None
        connection.exchange = None
        if answer.keeps_alive and not relay.rest:
            connection.release()
        else:
            connection.close()
        self._leave_worker("answered")
        outcome, reason = judge(answer, self.found)
        keeps = relay.framing is not Framing.CLOSE
        self._end(outcome, reason, clock())
        self.client.answer_done(keeps)

    def worker_lost(self, error: Exception | None) -> None:
        """The worker's connection ended under the request."""
        connection, now = self.connection, clock()
        self.connection = None
        assert connection is not None
        assert self.sent_at is not None
        relay = self.relay
        if relay is not None and error is None:
            try:
                out = relay.end_of_connection()
            except FramingError:
                pass
            else:
                self._close_delimited_end(out, now)
                return
        if (
            relay is None
            and not self._prefix
            and connection.is_reused
            and not self._is_fresh_try
            and now - self.sent_at <= STALE_SECONDS
        ):
            assert self.decision is not None
            self._is_fresh_try = True
            self._serving.count_attempt(self.decision.worker, "stale")
            self._connect(may_reuse=False)
            return
        self._worker_broke("the connection ended inside the answer" if relay else "the connection ended without an answer")

    def _close_delimited_end(self, out: bytes, now: float) -> None:
        assert self.relay is not None
        assert self.answer is not None
        if self._held is not None:
            self._held.append(out)
            self.first_body_at = self.first_body_at or now
            self._release_head(names_worker=True)
        elif out:
            self.client.write(out)
        self.found = self.relay.finish(now)
        self._leave_worker("answered")
        outcome, reason = judge(self.answer, self.found)
        keeps = self.relay.framing is not Framing.CLOSE
        self._end(outcome, reason, clock())
        self.client.answer_done(keeps)

    def _worker_broke(self, what: str) -> None:
        """The worker's answer cannot be relayed any further; ``what`` goes to the log, never to the client."""
        _log.warning("worker %s: %s", self.decision.worker.name if self.decision else "?", what)
        if self.head_sent:
            self.fail(
                WorkerFault(
                    "worker_disconnected", "The worker stopped before its answer was complete.", outcome=Outcome.TRUNCATED
                )
            )
        else:
            self.fail(WorkerFault("worker_failed", "The worker gave no usable answer."))

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
            # Silence of a worker that was not being read is not the worker's.
            self.last_data_at = now
        if self.connection is not None:
            self.connection.resume()

    # Limits

    def expire(self, now: float) -> None:
        """Called about twice a second: end what is over one of its limits, and the holding of a head."""
        limits = self.limits
        if self.received_at is None:
            if now - self.started_at > limits.request_body_seconds:
                self.fail(ClientFault("request_timeout", "The request body did not arrive in time.", status=408))
            return
        if self._held is not None and self.sent_at is not None and now - self.sent_at > limits.head_hold_seconds:
            self._release_head(names_worker=False)
        if limits.total_seconds is not None and now - self.received_at > limits.total_seconds:
            self.fail(WorkerFault("total_timeout", "The answer took longer than allowed.", status=504, outcome=Outcome.TIMEOUT))
        elif self.paused_at is not None:
            if now - self.paused_at > limits.write_seconds:
                self._drop_worker("answered")
                self._end(Outcome.TIMEOUT, "write", now)
                self.client.abort()
        elif self.phase is Phase.WAIT and self.sent_at is not None:
            if now - self.sent_at > limits.first_byte_seconds:
                self.fail(
                    WorkerFault(
                        "first_byte_timeout", "The worker did not begin to answer in time.", status=504, outcome=Outcome.TIMEOUT
                    )
                )
        elif self.phase is Phase.ANSWER and now - self._last_event_at() > limits.token_gap_seconds:
            self.fail(
                WorkerFault(
                    "worker_stalled", "The worker fell silent in the middle of its answer.", status=504, outcome=Outcome.STALLED
                )
            )

    def _last_event_at(self) -> float:
        """When the worker last sent something that counts: any byte of a plain answer, an event that is no comment of a stream."""
        relay = self.relay
        assert self.last_data_at is not None
        if relay is None or not isinstance(relay.meter, StreamMeter):
            return self.last_data_at
        relay.scan()
        return max(relay.meter.last_event_at, self.first_body_at or 0.0)

    # Ends

    def shut_down(self) -> None:
        """The drain time is over."""
        self.fail(ProxyError(503, "shutting_down", "The gateway is shutting down.", outcome=Outcome.SHUTDOWN, reason="drain"))

    def fail(self, error: ProxyError) -> None:
        """End the request with an error: as an answer while none has begun, else so that the client can tell."""
        if self.ended:
            return
        now = clock()
        relay = self.relay
        may_insert = relay is not None and relay.can_insert and relay.meter.events > 0 if self.head_sent else False
        self._drop_worker("broken" if isinstance(error, WorkerFault) else "abandoned")
        if not self.head_sent:
            self.status = error.status
            self._end(error.outcome, error.reason, now)
            self.client.refuse(error, self.request_id)
            return
        if may_insert and isinstance(relay, Relay) and isinstance(relay.meter, StreamMeter):
            self.client.write(relay.insert(answers.error_event(error)))
        self._end(error.outcome, error.reason, now)
        self.client.close()  # without the last chunk: a cut must not look like an end

    def _fail_unexpectedly(self) -> None:
        _log.exception("request %s failed in the gateway", self.request_id)
        self.fail(
            ProxyError(500, "internal_error", "The gateway failed.", outcome=Outcome.INTERNAL_ERROR, reason="internal_error")
        )

    def _reply(self, body: bytes) -> None:
        """An answer of the gateway's own."""
        self.status = 200
        self.client.write(answers.json_answer(200, body, self.request_id, closes=not self.client.will_keep_alive))
        self._end(Outcome.OK, None, clock())
        self.client.answer_done(True)

    def _leave_worker(self, result: str) -> None:
        """The worker is done with this request, one way or another."""
        if self._load_tokens is not None and self.decision is not None:
            self._serving.end_work(self.decision, self._load_tokens, result)
            self._load_tokens = None

    def _drop_worker(self, result: str) -> None:
        connection, task = self.connection, self._task
        if self.relay is not None and self.found is None:
            self.found = self.relay.finish(clock())
        self.connection = None
        if connection is not None:
            connection.exchange = None
            connection.close()
        if task is not None:
            self._task = None
            self._serving.cancel(task)
            self._end_of_connecting()
        self._leave_worker(result)

    def _end(self, outcome: Outcome, reason: str | None, now: float) -> None:
        assert not self.ended
        self.ended = True
        if self.paused_at is not None:
            self.client_wait_seconds += now - self.paused_at
        self._upstream_body = []
        self._held = None
        account(self._serving, self, outcome, reason, now)


def judge(answer: AnswerHead, found: Measurements) -> tuple[Outcome, str | None]:
    """How a request ended whose answer was relayed to its end, and why if not well."""
    status = answer.status
    if status in (429, 503):
        return Outcome.WORKER_BUSY, f"worker_{status}"
    if status >= 500:
        return Outcome.WORKER_ERROR, f"worker_{status}"
    if status >= 400:
        return Outcome.CLIENT_ERROR, "worker_refused"
    if found.is_error:
        return Outcome.WORKER_ERROR, "error_event" if answer.is_event_stream else "error_object"
    if found.is_aborted:
        return Outcome.ABORTED, "finish_reason"
    if not found.is_complete:
        return Outcome.TRUNCATED, "no_end_marker"
    return Outcome.OK, None
