"""Asking another worker while the client has had nothing of an answer's body, and what it gets when all have failed."""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from dataclasses import dataclass
from random import random
from time import monotonic as clock
from typing import NamedTuple

import msgspec

from proxy.serving.dispatch import decide
from proxy.serving.lookups import MOST_ASKED
from proxy.upstream.attempts import Attempts
from proxy.upstream.relay import Relay
from proxy.wire.errors import ProxyError, no_worker
from proxy.wire.framing import AnswerHead, Framing
from routing.health import BUSY_SECONDS
from routing.policy import Decision, Reason
from routing.retry_budget import backoff_seconds
from telemetry.record import Phase

FAILURE_SECONDS = 1.0
"""How long a worker that answers with an error may keep us waiting for more of its text, when another can be asked."""

_FAILURES = frozenset({429, 500, 502, 503, 504})
_BUSY = frozenset({429, 503})
_CODE = re.compile(rb'"code"\s*:\s*"?([1-5]\d\d)\b')


class Verdict(NamedTuple):
    """A worker's own error answer, which the client gets if nobody does better."""

    decision: Decision
    answer: AnswerHead
    framing: Framing
    body: bytes  # framed for the client; of a stream as far as its error event
    relay: Relay | None  # that has read it; None for one that came whole
    sent_at: float


@dataclass(slots=True, eq=False, repr=False)
class Failover(Attempts):
    """The part of an exchange that decides whether a failed attempt is followed by one at another worker."""

    _verdict: Verdict | None = None
    _hears_out: bool = False  # an error answer is being read to its end, to be kept while another worker is asked
    _went_alone: bool = False  # the head has gone out, and nothing of a body
    _gone_head: AnswerHead | None = None  # which head that was, when another worker is asked after it
    _gone_framing: Framing = Framing.CHUNKED
    is_clients_fault: bool = False  # an error event that a stream began with is about the request
    _busy_workers: int = 0  # that have refused the request
    _waits: asyncio.TimerHandle | None = None  # until another one is asked
    _has_retried_stale: bool = False

    @abstractmethod
    def pass_on(self, verdict: Verdict) -> None:
        """End the request with a worker's error answer that was kept."""

    def may_fail_over(self, *, was_sent: bool = True) -> bool:
        """Whether another worker may be asked, as far as the request itself goes.

        Only the worker that made an answer can go on from it: what it says of the request is believed, once it has it.
        """
        decision = self.decision
        return (
            self._owners is None
            and decision is not None
            and not (was_sent and decision.reason is Reason.OWNER)
            and len(self._tried) + 1 < self.state.topology.retries.max_attempts
            and (not self.is_head_sent or self._went_alone)
        )

    def fail_over(
        self, result: str, *, can_keep: bool = False, verdict: Verdict | None = None, needs_free: bool = False
    ) -> bool:
        """Leave this worker for another one, unless there is none or too much is tried again already.

        ``result`` is the attempt's label. ``needs_free``: only for one that nothing is held against. One that is busy is
        followed by none that is busy too or says nothing, but by one that is left out for its errors: trying is better than
        refusing. When False comes back, nothing has changed.
        """
        state, decision = self.state, self.decision
        if decision is None or not self.may_fail_over(was_sent=not result.startswith("connect")):
            return False
        tried = (*self._tried, decision.worker.name)
        is_busy = result == "busy"
        health = state.loads.health
        following = self._next(tried)
        if is_busy and following is not None and not health.is_free(following.worker.index):
            following = self._next((*tried, *health.no_relief()))
        if following is None or (needs_free and not health.is_free(following.worker.index)):
            return is_busy and self._waits_for_room(result, decision, can_keep=can_keep, verdict=verdict)
        now = clock()
        if not state.retry_budget.take(now):
            state.loads.count_refused_retry(decision.pool)
            return False
        self._turn_from(result, decision, now, can_keep=can_keep)
        self._verdict = verdict or self._verdict
        self._busy_workers += is_busy
        wait = backoff_seconds(state.topology.retries.backoff_seconds, self._busy_workers, random()) if is_busy else 0.0  # noqa: S311 -- jitter
        if wait:
            self.phase = Phase.QUEUE
            self._waits = state.loop.call_later(wait, self._ask_next)
        else:
            self._send_to(following, now)
        return True

    def _waits_for_room(
        self, result: str, decision: Decision, *, can_keep: bool = False, verdict: Verdict | None = None
    ) -> bool:
        """Leave this worker and wait in the queue of the pool, where one of its workers takes more in time.

        Not in a pool of one worker: its word is the client's. When False comes back, nothing has changed.
        """
        state, prepared, pool = self.state, self.prepared, decision.pool
        if prepared is None or self.is_head_sent or len(pool.workers) < 2 or pool.admission.queue_requests < 1:
            return False
        now, health = clock(), state.loads.health
        seconds = health.seconds_to_room(pool.index, now)
        if result == "busy":
            said = None if self.answer is None else self.answer.retry_after_seconds
            seconds = min(seconds, said or BUSY_SECONDS)
        if seconds >= pool.admission.queue_seconds - self.queue_seconds:
            return False
        if not state.retry_budget.take(now):
            state.loads.count_refused_retry(pool)
            return False
        self._turn_from(result, decision, now, can_keep=can_keep)
        self._verdict = verdict or self._verdict
        self._tried = tuple(name for name in self._tried if name not in health.refusing)
        try:
            self._wait(prepared, now)
        except ProxyError as error:
            self.give_up(error)
        return True

    def _turn_from(self, result: str, decision: Decision, now: float, *, can_keep: bool = False) -> None:
        """Leave the worker of this decision, of whose answer the client gets nothing but a head that has gone out."""
        self._leave_worker(result)
        if self.is_head_sent and self._gone_head is None and self.relay is not None:
            self._gone_head, self._gone_framing = self.answer, self.relay.framing
        self._let_go(now, can_keep=can_keep)
        self._tried = (*self._tried, decision.worker.name)
        self._hears_out = self._has_retried_stale = False
        self.sent_at = self.last_data_at = None

    def seek_previous(self, now: float, *, can_keep: bool) -> bool:
        """A worker answered 404 to a request that goes on from an answer which nobody here is known to have: ask the next one.

        Nothing has been computed, so it is no retry that a budget has to bound; workers are asked in turn, as for a lookup.
        False when this one's word is the last.
        """
        prepared, decision = self.prepared, self.decision
        if prepared is None or decision is None or prepared.request.previous_id is None:
            return False
        if decision.reason is Reason.OWNER or self.is_head_sent or len(self._tried) + 1 >= MOST_ASKED:
            return False
        following = self._next((*self._tried, decision.worker.name))
        if following is None:
            return False
        self._leave_worker("answered", is_proof=False)
        self._turn_from("answered", decision, now, can_keep=can_keep)
        self._send_to(following, now)
        return True

    def _next(self, tried: tuple[str, ...]) -> Decision | None:
        prepared, state = self.prepared, self.state
        assert prepared is not None
        snapshot = state.loads.snapshot(is_retry=True)
        try:
            following = decide(prepared, state.endpoints, snapshot, tried)
            if following is None:
                # Nobody has room. It has been let in already, so one goes over its cap for it; the budget bounds how often.
                uncapped = msgspec.structs.replace(snapshot, caps=None)
                following = decide(prepared, state.endpoints, uncapped, tried)
        except ProxyError:
            return None
        return following

    def _ask_next(self) -> None:
        """The back-off is over. Workers may have gone meanwhile."""
        self._waits = None
        if self.ended:
            return
        following = self._next(self._tried)
        if following is None:
            self.give_up(no_worker(has_tried=True))
        else:
            self._send_to(following, clock())

    def _send_to(self, decision: Decision, now: float) -> None:
        try:
            self._go(decision, now)
        except Exception:
            self.fail_unexpectedly()

    def give_up(self, error: ProxyError, result: str = "broken") -> None:
        """End the request with the best there is: what a worker has said of it, else this error.

        ``result`` is the label of the attempt under way, if there is one.
        """
        verdict, decision = self._verdict, self.decision
        is_waiting = verdict is not None and verdict.answer.status in _BUSY and decision is not None and self._load is not None
        if is_waiting and decision is not None and self._waits_for_room(result, decision):
            return
        self._leave_worker(result)
        if self._verdict is not None and not self.is_head_sent:
            self.pass_on(self._verdict)
        else:
            self.fail(error)

    def connect_failed(self, result: str, error: ProxyError | None = None) -> None:
        """No connection could be made (``result`` is the attempt's label): another worker may get the request.

        ``error`` is what to end with if none does, where more is known than that.
        """
        self._end_of_connecting()
        if self.ended or self.decision is None:
            return
        if self._owners is not None and result != "abandoned":
            self.ask_another(clock(), can_keep=False)
            return
        if not self.fail_over(result):
            self.give_up(error or no_worker(has_tried=True), result)

    # Answers that are failures

    def is_failure(self, answer: AnswerHead) -> bool:
        """Whether this answer is one for which another worker is asked, if that is possible."""
        return answer.status in _FAILURES and self.may_fail_over()

    def result_of(self, answer: AnswerHead) -> str:
        """The label of an attempt that was answered like this."""
        return "busy" if answer.status in _BUSY else "failed" if answer.status in _FAILURES else "answered"

    def verdict_of(self, answer: AnswerHead, framing: Framing, body: bytes, relay: Relay | None = None) -> Verdict:
        """What this worker has said, to be passed on later."""
        assert self.decision is not None
        assert self.sent_at is not None
        return Verdict(self.decision, answer, framing, body, relay, self.sent_at)

    def fail_over_from_event(self, relay: Relay, held: bytes) -> bool:
        """The first event of a stream under status 200 is an error: ask another worker, unless the request is at fault."""
        answer = self.answer
        code = _CODE.search(held)
        status = 500 if code is None else int(code[1])
        self.is_clients_fault = 400 <= status < 500 and status != 429
        if answer is None or self.is_clients_fault or not self.may_fail_over():
            return False
        verdict = None if self.is_head_sent else self.verdict_of(answer, relay.framing, held, relay)
        result = "busy" if status in _BUSY else "failed"
        return self.fail_over(result, can_keep=answer.keeps_alive and relay.has_ended, verdict=verdict)

    def goes_on(self, answer: AnswerHead, framing: Framing) -> bool:
        """Whether this answer can follow the head that has gone out alone."""
        gone = self._gone_head
        return gone is None or (
            (answer.status, answer.content_type, answer.is_encoded) == (gone.status, gone.content_type, gone.is_encoded)
            and framing is self._gone_framing
            and framing is not Framing.LENGTH
        )
