"""Asking workers: which one, over which connection, and whom next when that fails."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from time import monotonic as clock
from typing import TYPE_CHECKING

import msgspec

from proxy.serving.dispatch import decide, prepare_lookup
from proxy.serving.lookups import possible_owners, serves_one_model
from proxy.serving.progress import Progress
from proxy.upstream.prefill_leg import with_transfer
from proxy.upstream.usage_refusals import may_quote, says_unknown
from proxy.wire.errors import ProxyError, no_worker, response_not_found
from routing.policy import Decision
from telemetry.record import Phase

if TYPE_CHECKING:
    from proxy.serving.dispatch import Prepared
    from proxy.upstream.connections import WorkerConnection
    from proxy.upstream.load import Block
    from routing.admission import Caps

_FAILURES = frozenset({"connect_failed", "connect_timeout", "broken", "failed", "silent"})
_ABOUT_REQUEST = frozenset({400, 409, 422})
_ABOUT_BLOCKS = frozenset({400, 422})  # may be; the prefill worker has taken the same request
_JOINED_BYTES = 16 * 1024  # a request up to this size is joined into one write
_WAIT, _CONNECT, _QUEUE = Phase.WAIT, Phase.CONNECT, Phase.QUEUE


@dataclass(slots=True, eq=False, repr=False)
class Attempts(Progress, ABC):
    """The half of an exchange that chooses a worker and sends; the other half takes what comes back."""

    _connect_at: float | None = None
    _task: asyncio.Task[None] | None = None  # makes a connection
    _tried: tuple[str, ...] = ()  # workers that have failed the request before the client had anything of an answer's body
    _load: Block | None = None  # the worker's figures that this request adds to, while it does
    _load_tokens: int = 0  # what it adds
    _further: int = 0  # sequences beyond one that it is to the worker
    _trial: int | None = None  # its number, if it is the one that decides about a worker that was left out
    _rank: int | None = None  # of the worker, if requests name its data-parallel ranks
    _owners: list[Decision] | None = None  # of a lookup: who may have the answer and has not been asked
    _refused_by: str | None = None  # URL of the worker that refused the question for usage
    _tells_usage: bool = False  # the worker was not asked, so as to see whether usage comes all the same
    _is_plain_refusal: bool = False  # and it said so in words that cannot be the client's
    has_been_denied: bool = False  # a worker has said that it does not have the answer
    _known_url: str | None = None  # of the worker that is known to have it
    _prefix: bytes = b""  # of an answer's head that is not complete
    _held: bytes = b""  # of its body, waiting with the head

    @abstractmethod
    def fail(self, error: ProxyError) -> None:
        """End the request with an error."""

    @abstractmethod
    def fail_unexpectedly(self) -> None:
        """End the request because of the exception that is being handled."""

    @abstractmethod
    def connect_failed(self, result: str, error: ProxyError | None = None) -> None:
        """No connection could be made; ``result`` is the attempt's label."""

    @abstractmethod
    def _asks_stage(self, decision: Decision, since: float) -> bool:
        """Whether another worker is asked first, which computes the prompt; this one is then."""

    def _attempt(self, since: float) -> None:
        """Choose the first worker and send, on a kept connection at once or when a new one is there."""
        if self._owners is not None:
            self._ask_owner(since)
            return
        prepared = self.prepared
        assert prepared is not None
        state = self.state
        previous = prepared.request.previous_id
        state.retry_budget.requests += 1
        owner = None if previous is None else self._owner_of(previous)
        if owner is None and state.admission.holds_back(prepared):
            self._wait(prepared, since)
            return
        decision = decide(prepared, state.endpoints, state.loads.snapshot(), (), owner)
        if decision is None:
            self._wait(prepared, since)
        else:
            self._go(decision, since)

    def _go(self, decision: Decision, since: float) -> None:
        """Send to the worker of this decision, which has more to do from now on."""
        prepared = self.prepared
        assert prepared is not None
        self.decision = decision
        self.limits = decision.pool.limits
        self._load_tokens = prepared.demand.load_tokens
        self._further = prepared.demand.sequences - 1
        loads = self.state.loads
        self.stay = stay = loads.enter(decision, prepared.demand.estimate.tokens, since)
        self._load = loads.begin(decision, self._load_tokens, self._further, stay.block)
        if decision.worker.data_parallel_ranks > 1:
            self._rank = self._load.enter_rank(decision.worker.data_parallel_ranks, prepared.demand, self._load_tokens)
        if loads.health.half_open:
            self._trial = loads.health.begins(decision.worker.name)
        if decision.pool.prefill is not None:
            if self.leg is not None:
                self.leg = self.leg.lost()  # the blocks were for the worker that has failed
            elif self._asks_stage(decision, since):
                return
        self._approach(since)

    def _wait(self, prepared: Prepared, since: float) -> None:
        """No worker has room: into the queue. Raises `ProxyError` when that is full."""
        self.phase = _QUEUE
        self.sent_at = None
        now = clock()
        self.own_seconds += now - since
        self.state.admission.wait(self, prepared, now)  # type: ignore[arg-type]  # every one is an Exchange

    def resume(self, now: float, caps: Caps | None) -> bool:
        """Go on from the queue if a worker has room now; ``caps`` are those in force unless given. Raises `ProxyError`."""
        prepared, state = self.prepared, self.state
        assert prepared is not None
        snapshot = state.loads.snapshot(is_retry=bool(self._tried))
        if caps is not None:
            snapshot = msgspec.structs.replace(snapshot, caps=caps)
        closed = state.loads.health.closed(now, snapshot.in_flight)
        try:
            decision = decide(prepared, state.endpoints, snapshot, (*self._tried, *closed))
        except ProxyError:
            if not closed:
                raise
            decide(prepared, state.endpoints, snapshot, self._tried)  # it raises where there will be nobody either
            return False
        if decision is None:
            return False
        state.admission.leave(self, now, is_served=True)  # type: ignore[arg-type]  # the same
        self._go(decision, now)
        return True

    def _approach(self, since: float) -> None:
        """Send to the worker of the decision, once a connection is there."""
        assert self.decision is not None
        connection = self.state.connections_to(self.decision.worker).take()
        if connection is None:
            self._connect(since)
        else:
            self.attempts += 1
            if self.trace is not None:
                self.trace.begin(self.decision.worker.name, since)
            self._send(connection, since)

    def look_up(self, answer_id: str, since: float) -> None:
        """Ask the worker that has an answer, or those that may have it, in turn. Raises `ProxyError`."""
        state = self.state
        is_up = state.loads.snapshot(is_retry=True).is_up
        known = state.owners.find(answer_id)
        self._owners = possible_owners(state.topology, self.key, is_up, known)
        self._known_url = None if known is None else known.url
        self._ask_owner(since)

    def _owner_of(self, answer_id: str) -> str | None:
        """The URL of the worker with an answer to go on from. Raises `ProxyError` if the key may not use the answer's model."""
        owner = self.state.owners.find(answer_id)
        if owner is None:
            return None
        key = self.key
        if key is not None and key.models is not None and owner.model not in key.models:
            raise response_not_found()
        return owner.url

    def note_owner(self, answer_id: str) -> None:
        """The worker has made this answer or shows it; of which model one is that it shows, is not known if it has several."""
        decision, state = self.decision, self.state
        assert decision is not None
        url = decision.worker.url
        if self._owners is None or serves_one_model(state.topology, url):
            state.owners.remember(answer_id, url, decision.pool.model)
        previous = None if self.prepared is None else self.prepared.request.previous_id
        if previous is not None and state.owners.find(previous) is None:  # it has gone on from that one, so it has it
            state.owners.remember(previous, url, decision.pool.model)

    def _ask_owner(self, since: float) -> None:
        """The next one that may have the answer; it is no load for a worker, and counts as none."""
        if not self._owners:
            raise response_not_found() if self.has_been_denied else no_worker(has_tried=bool(self.attempts))
        self.decision = decision = self._owners.pop(0)
        self.limits = decision.pool.limits
        self.prepared = prepare_lookup(decision, self.state.endpoints)
        self._approach(since)

    def may_ask_another(self, status: int) -> bool:
        """Whether this is not the answer that is looked up, and another worker may have it.

        Who is known to have it is believed why it does not do what it is asked to.
        """
        if not self._owners or 200 <= status < 300:
            return False
        is_known = self.decision is not None and self.decision.worker.url == self._known_url
        return not (is_known and status in _ABOUT_REQUEST)

    def ask_another(self, now: float, *, can_keep: bool, status: int | None = None) -> None:
        """Go on with the next one; this one answered with this status, or not at all."""
        self.has_been_denied = self.has_been_denied or status == 404
        self._let_go(now, can_keep=can_keep)
        try:
            self._ask_owner(now)
        except ProxyError as error:
            self.fail(error)

    def ask_without_usage(self, now: float, refusal: bytes, *, can_keep: bool) -> None:
        """The worker refused the question for usage and generated nothing: it gets the request as the client wrote it."""
        assert self.decision is not None
        assert self.prepared is not None
        self._refused_by = self.decision.worker.url
        self._is_plain_refusal = says_unknown(refusal) and not may_quote(self.prepared.body)
        self._let_go(now, can_keep=can_keep)
        if self._load is not None:
            self.state.loads.count_attempt(self._load, "answered")
        self._approach(now)

    def computes_here(self, status: int, now: float) -> bool:
        """Whether the worker refuses what it was told of the prompt's blocks, as it seems: then it is asked to compute them."""
        leg, decision = self.leg, self.decision
        if leg is None or leg.transfer is None or decision is None:
            return False
        if status not in _ABOUT_BLOCKS and not (status == 500 and len(decision.pool.workers) == 1):  # others are asked first
            return False
        self.leg = leg.lost()
        if self.stay is not None:
            self.state.loads.ledger.compute_here(self.stay)
        self._let_go(now, can_keep=False)
        if self._load is not None:
            self.state.loads.count_attempt(self._load, "answered")
        self._approach(now)
        return True

    def note_answer(self, now: float) -> None:
        """An answer has begun that is none of an error: remember how it came about."""
        refusals = self.state.usage_refusals
        if self.asks_usage:
            if refusals.suspects and self.decision is not None:
                refusals.clear(self.decision.worker.url)
        elif self._is_plain_refusal and self.decision is not None and self._refused_by == self.decision.worker.url:
            refusals.add(self._refused_by, now)

    def _let_go(self, now: float, *, can_keep: bool) -> None:
        """Forget an answer that the client does not get, and free its connection."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.exchange = None
            if can_keep and connection.has_sent_all:
                connection.release()
            else:
                connection.close()
        if self.trace is not None:
            if self.answer is None:
                self.trace.end("broken", now, None)
            else:
                self.trace.end("answered", now, self.answer.status)
        self.answer = self.relay = self.first_body_at = None
        self._prefix = self._held = b""
        self.is_held = False

    def _connect(self, since: float) -> None:
        assert self.decision is not None
        self.attempts += 1
        self.phase = _CONNECT
        if self.trace is not None:
            self.trace.begin(self.decision.worker.name, since)
        self._connect_at = clock()
        self.own_seconds += self._connect_at - since
        self._task = self.state.connections_to(self.decision.worker).connect(self)  # type: ignore[arg-type]  # every one is an Exchange

    def connected(self, connection: WorkerConnection) -> None:
        """A new connection is there."""
        now = self._end_of_connecting()
        if self.ended:
            connection.close()
            return
        try:
            self._send(connection, now)
        except Exception:
            self.fail_unexpectedly()

    def _end_of_connecting(self) -> float:
        now = clock()
        self._task = None
        if self._connect_at is not None:
            self.connect_seconds += now - self._connect_at
            self._connect_at = None
        return now

    def _send(self, connection: WorkerConnection, since: float) -> None:
        prepared, decision = self.prepared, self.decision
        assert prepared is not None
        assert decision is not None
        self.connection = connection
        connection.exchange = self  # type: ignore[assignment]  # the same
        self.asks_usage = asks = (
            prepared.strips_usage
            and decision.pool.asks_usage
            and self._refused_by is None
            and not self.state.usage_refusals.has(decision.worker.url, since)
        )
        if asks and self.state.forced_usage.unasked and decision.worker.name in self.state.forced_usage.unasked:
            self.asks_usage = asks = False
            self._tells_usage = self.state.forced_usage.begins(decision.worker.name)
        pieces, size = (prepared.pieces, prepared.size) if asks else ([prepared.body], len(prepared.body))
        if self.leg is not None and self.leg.transfer is not None:
            pieces = with_transfer(pieces, self.leg.transfer)
            size = sum(map(len, pieces))
        forwarded = self.head.forwarded if self.trace is None else self.head.forwarded + self.trace.line()
        if self._rank is not None:
            forwarded += b"x-data-parallel-rank: %d\r\n" % self._rank
        lines = b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            self.state.request_prefix(decision, self.endpoint, self.head.query),
            forwarded,
            self.request_id.encode(),
            size,
        )
        if self.paused_at is not None:
            connection.pause()
        self.phase = _WAIT
        # Before it is handed over: a process that has to wait for a core just behind the write would seem to have a worker that
        # answers faster than its GPU can.
        self.sent_at = self.last_data_at = clock()
        if size <= _JOINED_BYTES:
            connection.transport.write(b"".join((lines, *pieces)))
        else:
            connection.transport.writelines((lines, *pieces))
        self.own_seconds += clock() - since

    def _leave_worker(self, result: str, *, is_proof: bool = True) -> None:
        """The worker has no more to do with this request.

        ``result`` is the attempt's label; an answer is no ``is_proof`` of health if it says only what the client did wrong.
        """
        if self._load is not None:
            loads, decision = self.state.loads, self.decision
            assert decision is not None
            if self.stay is not None:
                loads.ledger.remove(self.stay, clock())
            if self._rank is not None:
                self._load.leave_rank(self._rank, self._load_tokens)
                self._rank = None
            loads.end(self._load, self._load_tokens, result, self._further)
            self._load = None
            trial, self._trial = self._trial, None
            if result == "answered" and is_proof:
                loads.health.succeeded(decision.worker.name)
            elif result in _FAILURES:
                loads.health.failed(decision.worker.name, result, clock(), trial)
            elif result == "busy":
                seconds = None if self.answer is None else self.answer.retry_after_seconds
                loads.health.is_busy(decision.worker.name, seconds, clock(), trial, loads.in_flight(decision.worker))
            else:
                loads.health.undecided(decision.worker.name, trial)
            if self._tells_usage:
                self._tells_usage = False
                found = self.found
                is_told = found is not None and found.is_complete and not found.is_error
                self.state.forced_usage.ends(decision.worker.name, found.usage_is_final if is_told and found else None)
            if self.trace is not None:
                self.trace.end(result, clock(), None if self.answer is None else self.answer.status)
