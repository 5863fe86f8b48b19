"""The step between the choice of a worker and asking it, where its pool has a prefill stage: the prompt is computed there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic as clock
from typing import TYPE_CHECKING

from proxy.upstream.attempts import Attempts
from proxy.upstream.lone_request import UnreachableError, ask
from proxy.upstream.prefill_leg import MOST_ANSWER_BYTES, Leg, prefill_body, transfer_in, usage_in
from proxy.wire.framing import FramingError
from routing.policy import Decision, choose_stage
from telemetry.record import Phase, PrefillResult

if TYPE_CHECKING:
    from proxy.serving.dispatch import Prepared

_BUSY = frozenset({429, 503})
_FAILURES = frozenset({"connect_failed", "broken", "failed", "silent"})


@dataclass(slots=True, eq=False, repr=False)
class PrefillsFirst(Attempts):
    """The part of an exchange that has two legs. It ends with the first as with a connection that is being made."""

    def _asks_stage(self, decision: Decision, since: float) -> bool:
        """Have the prompt computed by the pool's stage, and go on to the worker of this decision then; False: go on at once."""
        prepared, pool, state = self.prepared, decision.pool, self.state
        if prepared is None or not self.endpoint.has_usage or not _is_worth_it(prepared, pool.prefill_above_tokens):
            return False
        stage = next((each for each in prepared.model.stages if each.name == pool.prefill), None)
        body = None if stage is None else prefill_body(prepared.body)
        if stage is None or body is None:
            return False
        first = choose_stage(stage, prepared.demand, state.loads.snapshot(is_retry=True))
        if first is None:
            self.leg = Leg(PrefillResult.NO_WORKER)
            return False
        now = clock()
        self.own_seconds += now - since
        self.phase = Phase.WAIT
        self.leg = Leg(PrefillResult.ABANDONED, first.worker.name)  # until it has ended
        if self.trace is not None:
            self.trace.begin(first.worker.name, now)
        if self.stay is not None:
            state.loads.ledger.compute_elsewhere(self.stay)
        self._task = state.loop.create_task(self._prefill(first, body, pool.prefill_seconds, prepared.demand.estimate.tokens))
        return True

    async def _prefill(self, first: Decision, body: bytes, most_seconds: float, tokens: int) -> None:
        loads, name, began_at = self.state.loads, first.worker.name, clock()
        trial = loads.health.begins(name) if loads.health.half_open else None
        block = loads.begin(first, tokens)
        label, status = "abandoned", None
        try:
            leg, label, status = await self._ask_first(first, body, most_seconds)
        finally:
            now = clock()
            loads.end(block, tokens, label)
            if label in _FAILURES:
                loads.health.failed(name, label, now, trial)
            elif label == "busy":
                loads.health.is_busy(name, None, now, trial)
            elif label == "answered" and status is not None and status < 300:
                loads.health.succeeded(name)
                loads.health.has_begun(name, now)
            else:
                loads.health.undecided(name, trial)
        if self.ended:
            return
        self._task = None
        self.leg = leg._replace(worker=name, url=first.worker.url, seconds=now - began_at)
        if self.trace is not None:
            self.trace.end(label, now, status)
        if self.stay is not None and leg.transfer is None:
            loads.ledger.compute_here(self.stay)
        try:
            self._approach(now)
        except Exception:
            self.fail_unexpectedly()

    async def _ask_first(self, first: Decision, body: bytes, most_seconds: float) -> tuple[Leg, str, int | None]:
        """What came of it, the attempt's label, and the status of the answer."""
        forwarded = self.head.forwarded if self.trace is None else self.head.forwarded + self.trace.line()
        head = b"%b%bconnection: close\r\nx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            self.state.request_prefix(first, self.endpoint, self.head.query),
            forwarded,
            self.request_id.encode(),
            len(body),
        )
        try:
            async with asyncio.timeout(most_seconds):
                tls = self.state.worker_contexts.find(first.pool.worker_tls) if first.worker.is_tls else None
                status, answer = await ask(first.worker, first.pool, tls, (head, body), MOST_ANSWER_BYTES)
        except UnreachableError:
            return Leg(PrefillResult.FAILED), "connect_failed", None
        except TimeoutError:
            return Leg(PrefillResult.TIMEOUT), "silent", None
        except (OSError, FramingError, asyncio.IncompleteReadError):
            return Leg(PrefillResult.FAILED), "broken", None
        if status >= 300:
            label = "busy" if status in _BUSY else "failed" if status >= 500 else "answered"
            return Leg(PrefillResult.REFUSED), label, status
        transfer = transfer_in(answer)
        if transfer is None:
            return Leg(PrefillResult.NOT_OFFERED), "answered", status
        return Leg(PrefillResult.COMPUTED, transfer=transfer, usage=usage_in(answer)), "answered", status


def _is_worth_it(prepared: Prepared, above_tokens: int) -> bool:
    """Whether there is one prompt, long enough, with something to generate after its first token."""
    request = prepared.request
    return (
        request.choices == 1
        and request.prompts == 1
        and (request.max_tokens is None or request.max_tokens > 1)
        and prepared.demand.estimate.tokens >= above_tokens
    )
