"""An exchange that asks a second worker while the first has sent nothing of an answer's body: who begins first answers.

Made in place of `Exchange` where a pool hedges; nothing else knows of it. Decision: docs/decisions/0017-hedging.md.
"""

from __future__ import annotations

import asyncio
from time import monotonic as clock

from proxy.serving.exchange import Exchange
from proxy.upstream.failover import Verdict
from proxy.upstream.hedge import Hedge
from proxy.wire.inference import Work
from routing.guidance import pool_key
from routing.hedging import Withheld, choose_second, delay_seconds
from routing.policy import Decision
from telemetry.dialects import RESPONSES
from telemetry.record import HedgeResult, Phase


class HedgedExchange(Exchange):
    """The same state machine with a race in it, until the first byte of a body."""

    __slots__ = ("_due", "hedge")

    hedge: Hedge | None  # type: ignore[misc]  # others have no place for one
    _due: asyncio.TimerHandle | None  # when a second worker is asked; None: it will not be, or has been

    def __post_init__(self) -> None:
        """Nothing is sent twice yet."""
        super().__post_init__()
        self.hedge = self._due = None

    # When

    def _approach(self, since: float) -> None:
        super()._approach(since)
        if self._due is None and self.hedge is None and not self._tried and not self.ended:
            self._plan()

    def _plan(self) -> None:
        """The first worker is asked: say when a second one will be, if that may be."""
        decision, prepared = self.decision, self.prepared
        if decision is None or prepared is None or not self._may_be_sent_twice(decision):
            return
        pool, state = decision.pool, self.state
        budget = state.hedge_budgets.get((pool.model, pool.name))
        if budget is None:  # a reload has turned it off
            return
        budget.earn(pool.hedging.budget_ratio)
        known = state.loads.guidance.pools.get(pool_key(pool.model, pool.name))
        learned = () if known is None else known.hedge_seconds
        seconds = delay_seconds(pool.hedging, prepared.demand.estimate.tokens, learned)
        if seconds is not None:
            self._due = state.loop.call_later(seconds, self._ask_second)

    def _may_be_sent_twice(self, decision: Decision) -> bool:
        """Whether that changes nothing at a worker, and a first byte tells whether its engine has begun.

        A response may be kept by its worker, and its first event comes before the engine does anything; a plain answer comes
        when all is generated, and so does what a model thinks in silence.
        """
        prepared, pool = self.prepared, decision.pool
        return (
            pool.hedging.is_on
            and len(pool.workers) > 1
            and pool.prefill is None
            and prepared is not None
            and prepared.request.stream
            and not prepared.request.hides_reasoning
            and prepared.demand.sequences == 1
            and self.endpoint.work is Work.GENERATE
            and not self.endpoint.is_form
            and self.endpoint.dialect is not RESPONSES
            and self.state.topology.retries.max_attempts > 1
        )

    def _ask_second(self) -> None:
        """The first worker is late."""
        self._due = None
        decision, prepared, answer = self.decision, self.prepared, self.answer
        is_failing = answer is not None and answer.status >= 300  # and its error is being read
        if self.ended or decision is None or prepared is None or self.first_body_at is not None or is_failing:
            return
        pool, state = decision.pool, self.state
        found: Decision | Withheld = Withheld.LOAD
        if not state.admission.holds_back(prepared):
            snapshot = state.loads.snapshot(is_retry=True)
            found = choose_second(decision, prepared.demand, snapshot, state.loads.with_queues(pool))
        budget = state.hedge_budgets.get((pool.model, pool.name))
        if isinstance(found, Decision) and (budget is None or not budget.take()):
            found = Withheld.BUDGET
        if isinstance(found, Withheld):
            state.loads.count_withheld_hedge(pool, found)
            return
        self.hedge = hedge = Hedge(self, found)
        try:
            hedge.start(clock())
        except Exception:
            hedge.fail_unexpectedly()

    # Who

    def second_has_begun(self, now: float) -> None:
        """The second worker has begun to answer, and the first has not."""
        hedge, decision = self.hedge, self.decision
        assert hedge is not None
        assert decision is not None
        hedge.note_outrun(self, now)
        since = self._connect_at if self.sent_at is None else self.sent_at
        if since is not None:
            self.state.loads.health.outrun(decision.worker.name, since, now, self._trial)
        if self._task is not None:
            self._task.cancel()
            self._end_of_connecting()
        self._turn_from("outrun", decision, now)
        self._take_over(hedge, HedgeResult.WON, now)

    def fail_over(
        self, result: str, *, can_keep: bool = False, verdict: Verdict | None = None, needs_free: bool = False
    ) -> bool:
        """The second worker goes on alone if it is asked already; otherwise as ever."""
        self._cancel()
        hedge, decision = self.hedge, self.decision
        if hedge is None or hedge.ended or decision is None:
            return super().fail_over(result, can_keep=can_keep, verdict=verdict, needs_free=needs_free)
        now = clock()
        self._turn_from(result, decision, now, can_keep=can_keep)
        self._verdict = verdict or self._verdict
        self._take_over(hedge, HedgeResult.TOOK_OVER, now)
        return True

    def _take_over(self, hedge: Hedge, result: HedgeResult, now: float) -> None:
        """What was the second attempt is the one under way, with all that has come of it."""
        self.decision, self.limits, self.stay = hedge.decision, hedge.limits, hedge.stay
        self._load, self._load_tokens, self._trial, self._rank = hedge._load, hedge._load_tokens, hedge._trial, hedge._rank
        self._tells_usage = hedge._tells_usage
        self.connect_seconds += hedge.connect_seconds
        self.own_seconds += hedge.own_seconds
        connection = hedge.hand_over(result)
        self.hedge_is_over(hedge, now)
        if connection is None:  # it was still being made
            self._connect(now)
            return
        self.connection, connection.exchange = connection, self
        self.sent_at, self.last_data_at, self.asks_usage = hedge.sent_at, hedge.last_data_at, hedge.asks_usage
        self.phase = Phase.WAIT
        if self.paused_at is not None:
            connection.pause()
        if hedge.received:
            self.worker_data(hedge.received, now)

    def hedge_is_over(self, hedge: Hedge, now: float) -> None:
        """Take in what the second attempt has cost, and count what became of it. Called once, when it has its result."""
        assert hedge.result is not None
        assert hedge.decision is not None
        self.attempts += hedge.attempts
        if hedge.result is HedgeResult.FAILED:
            self._tried = (*self._tried, hedge.decision.worker.name)
        if self.trace is not None and hedge.trace is not None:
            self.trace.join(hedge.trace)
        self.state.loads.count_hedge(
            hedge.decision.pool, hedge.result, hedge.outrun_seconds or 0.0, hedge.outrun_prompt_tokens or 0
        )

    # When not

    def _note_first_body(self, now: float) -> None:
        self._call_off(HedgeResult.LOST, "outrun", now)
        super()._note_first_body(now)

    def _drop_worker(self, result: str) -> None:
        self._call_off(HedgeResult.ABANDONED, "abandoned", clock())
        super()._drop_worker(result)

    def _call_off(self, result: HedgeResult, label: str, now: float) -> None:
        self._cancel()
        hedge = self.hedge
        if hedge is not None and not hedge.ended:
            hedge.note_outrun(hedge, now)
            hedge.end(result, label, now)

    def _cancel(self) -> None:
        """Nobody is asked as well from now on."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
