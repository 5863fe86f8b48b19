"""From an exchange that has ended to its outcome, its record and its counts."""

from __future__ import annotations

from time import time as wall_clock
from typing import TYPE_CHECKING

from proxy.serving.estimating import judge_pool
from proxy.upstream.ledger import Beside, beside
from routing.sketch import Beginning
from routing.system_prompt import LEAST_BYTES, MOST_BYTES, may_have_system_prompt
from routing.topology import NO_POOL, UNKNOWN_MODEL
from telemetry.measurements import Measurements
from telemetry.record import CountResult, NoToken, Outcome, PrefillResult, RequestRecord

if TYPE_CHECKING:
    from proxy.serving.progress import Progress
    from proxy.serving.state import ServingState
    from proxy.wire.framing import AnswerHead
    from proxy.wire.inference import InferenceRequest

_NOTHING = Measurements()
_COUNTED, _COMPUTED = CountResult.COUNTED, PrefillResult.COMPUTED
_OK, _CLIENT_GONE = Outcome.OK, Outcome.CLIENT_GONE
SLOW_CLIENT_RATIO = 0.05
"""A stream that spent more of its time than this waiting for its client says nothing about the worker's pace."""


def judge(answer: AnswerHead, found: Measurements) -> tuple[Outcome, str | None]:
    """How a request ended whose answer was relayed to its end, and why if not well."""
    status = answer.status
    if status < 300:
        if found.is_error:
            return Outcome.WORKER_ERROR, "error_event" if answer.is_event_stream else "error_object"
        if found.is_aborted:
            return Outcome.ABORTED, "finish_reason"
        if not found.is_complete:
            return Outcome.TRUNCATED, "no_end_marker"
        return _OK, None
    if status in (429, 503):
        return Outcome.WORKER_BUSY, f"worker_{status}"
    if status >= 500:
        return Outcome.WORKER_ERROR, f"worker_{status}"
    return Outcome.CLIENT_ERROR, "worker_refused"


def account(exchange: Progress, outcome: Outcome, reason: str | None, now: float) -> None:
    """Make the record of an exchange that ended at ``now``, count it and send it to the control process."""
    state = exchange.state
    decision, prepared, answer, key = exchange.decision, exchange.prepared, exchange.answer, exchange.key
    pool = worker = None
    if decision is not None:
        pool, worker = decision.pool, decision.worker
    elif exchange.queued_for is not None:
        pool = exchange.queued_for
    request = demand = estimated = None
    if prepared is not None:
        request, demand = prepared.request, prepared.demand
        estimated = demand.prompt_tokens
    # What came decides, where something came: some workers stream for a `stream` that is not quite true.
    is_lookup = exchange.endpoint.response_id is not None  # an answer that is shown again has been counted
    is_stream = request is not None and (request.stream if answer is None or answer.status >= 300 else answer.streams)
    is_stream = is_stream and not is_lookup
    found = exchange.found or _NOTHING
    has_tokens = not is_lookup and (answer is None or answer.status < 300)
    usage = found.usage if has_tokens else None
    times = found.times
    received_at = exchange.received_at
    e2e = None if received_at is None else now - received_at
    first_body = None if received_at is None or exchange.first_body_at is None else exchange.first_body_at - received_at
    sent = None if received_at is None or exchange.sent_at is None else exchange.sent_at - received_at
    ttft = visible = upstream_ttft = tpot = None
    if is_stream and received_at is not None and found.first_token_at is not None:
        ttft = found.first_token_at - received_at
        if found.first_visible_at is not None:
            visible = found.first_visible_at - received_at
        if sent is not None:
            upstream_ttft = ttft - sent
        if request is not None and request.choices == 1:
            tpot = found.tpot_seconds()
        if tpot is not None and e2e is not None and exchange.client_wait_seconds > SLOW_CLIENT_RATIO * e2e:
            tpot = None
            state.recorder.count_slow_client()
    completion = usage.completion_tokens if usage is not None else None
    is_estimate = completion is None and is_stream and found.token_events > 0 and has_tokens
    prompt = usage.prompt_tokens if usage is not None else None
    misroute = misroute_tokens = None
    if prepared is not None and prompt is not None and len(prepared.model.pools) > 1 and request is not None:
        misroute, misroute_tokens = judge_pool(prepared.model, prepared.demand, prompt)
    # Of what showed tokens, the prompt was computed. Nothing is known of an upload.
    guess = (estimated or None) if has_tokens and found.token_events else None
    cached, inferred = (None, False) if usage is None else _cached(state, exchange, found)
    before, after = _beside(exchange)
    leg, written = exchange.leg, exchange.write_seconds  # the gateway's own work is known only where an answer was written
    beginning = None if request is None or is_lookup or not has_tokens else _beginning(state, request, now)
    record = RequestRecord(
        exchange.request_id,  # request_id
        wall_clock(),  # ended_unix_seconds
        None if key is None else key.name,  # key
        UNKNOWN_MODEL if prepared is None else prepared.model.name,  # model
        NO_POOL if pool is None else pool.name,  # pool
        None if worker is None else worker.name,  # worker
        exchange.endpoint.name,  # endpoint
        is_stream,  # stream
        exchange.status,  # status
        None if answer is None else answer.status,  # worker_status
        outcome,  # outcome
        reason,  # reason
        exchange.fault,  # fault
        exchange.phase if outcome is _CLIENT_GONE else None,  # phase
        exchange.attempts,  # attempts
        None if decision is None or is_lookup else decision.pool_reason,  # pool_reason
        None if decision is None or is_lookup else decision.policy,  # policy
        None if decision is None or is_lookup else decision.reason,  # route_reason
        found.finish_reasons,  # finish_reasons
        ttft,  # ttft_seconds
        visible,  # ttft_visible_seconds
        first_body,  # ttft_first_byte_seconds
        None if ttft is None else _delivered(exchange, ttft),  # ttft_delivered_seconds
        upstream_ttft,  # upstream_ttft_seconds
        tpot,  # tpot_seconds
        found.stall_ratio,  # stall_ratio
        e2e,  # e2e_seconds
        None if received_at is None else received_at - exchange.started_at,  # upload_seconds
        exchange.queue_seconds if decision is not None or exchange.queue_seconds else None,  # queue_seconds
        exchange.connect_seconds if exchange.attempts else None,  # connect_seconds
        sent,  # sent_seconds
        exchange.client_wait_seconds if exchange.is_head_sent else None,  # client_wait_seconds
        None if written is None else exchange.own_seconds + written,  # overhead_seconds
        guess if prompt is None else prompt,  # prompt_tokens
        found.token_events if is_estimate else completion,  # completion_tokens
        None if usage is None else usage.reasoning_tokens,  # reasoning_tokens
        cached,  # cached_tokens
        inferred,  # cached_inferred
        is_estimate,  # completion_is_estimate
        prompt is None and guess is not None,  # prompt_is_estimate
        found.token_events,  # token_events
        estimated,  # estimated_prompt_tokens
        None if exchange.count_result is not _COUNTED or demand is None else demand.estimate.tokens,  # counted_prompt_tokens
        exchange.count_result,  # count_result
        exchange.count_seconds,  # count_seconds
        misroute,  # misroute
        misroute_tokens,  # misroute_tokens
        None if request is None else request.max_tokens,  # max_tokens
        None if demand is None or is_lookup else demand.load_tokens,  # load_tokens
        exchange.request_bytes,  # request_bytes
        exchange.answer_bytes,  # answer_bytes
        _no_token(exchange, found) if is_stream and ttft is None else None,  # no_token
        found.missing_end,  # missing_end
        request is not None and request.choices != 1,  # is_batch
        None if exchange.stay is None else int(exchange.stay.begun[4]),  # ahead_tokens
        None if before is None else before.requests,  # beside_prefill_requests
        None if before is None else before.prompt_tokens,  # beside_prefill_prompt_tokens
        None if before is None else int(before.sent_tokens),  # joined_tokens
        None if after is None else after.requests,  # beside_decode_requests
        None if after is None else after.prompt_tokens,  # beside_decode_prompt_tokens
        None if after is None else int(after.sent_tokens),  # arrived_tokens
        None if times is None else times.ttft_seconds,  # worker_ttft_seconds
        None if times is None else times.queue_seconds,  # worker_queue_seconds
        None if times is None else times.generation_seconds,  # worker_generation_seconds
        None if times is None else times.itl_seconds,  # worker_itl_seconds
        None if leg is None else leg.result,  # prefill_result
        None if leg is None else leg.worker,  # prefill_worker
        None if leg is None else leg.seconds,  # prefill_leg_seconds
        exchange.head.trace_id,  # trace_id
        state.chain_id(exchange.head),  # chain_id
        None,  # chain_call
        None
        if exchange.trace is None
        else exchange.trace.finish(exchange.started_at, now, None if prepared is None else prepared.body),  # trace
        None if prompt is None or demand is None else demand.prompt,  # prompt
        None if beginning is None else f"{beginning.family:016x}",  # prefix_hash
        None if demand is None else demand.affinity,  # affinity
        beginning,  # beginning
    )
    if exchange.hedge is not None:
        record = exchange.hedge.noted_in(record)
    state.recorder.count(record, None if is_lookup else exchange.found)
    state.sender.put(record)


def _cached(state: ServingState, exchange: Progress, found: Measurements) -> tuple[int | None, bool]:
    """Cached tokens, and whether 0 was inferred: some versions leave the details out when nothing was cached.

    ``None`` when the worker did not say, and for a batch, of which it says what one prompt had. A prompt that a prefill stage
    computed was cached there or not: its decode worker reports everything as cached that it fetched.
    """
    usage, prepared, leg = found.usage, exchange.prepared, exchange.leg
    if usage is None or usage.prompt_tokens is None or exchange.decision is None or prepared is None:
        return None, False
    told, url, is_final = usage, exchange.decision.worker.url, found.usage_is_final
    if leg is not None and leg.result is _COMPUTED:
        if leg.usage is None or leg.usage.prompt_tokens is None:
            return None, False
        told, url, is_final = leg.usage, leg.url, True
    cached, is_one = told.cached_tokens, prepared.request.prompts == 1
    if told.has_details:
        if cached is not None and exchange.endpoint.has_usage:  # elsewhere it is told by all workers
            state.reports_cached.add(url)
        is_possible = cached is not None and cached <= usage.prompt_tokens
        return (cached if is_one and is_possible else None), False
    is_told = is_final and is_one and exchange.endpoint.has_usage and url in state.reports_cached
    return (0, True) if is_told else (None, False)


def _beside(exchange: Progress) -> tuple[Beside | None, Beside | None]:
    """What ran beside the request until its answer began, and from then on; for an answer in one read, the latter is all."""
    stay = exchange.stay
    if stay is None or stay.ended is None:
        return None, None
    began = stay.answer_began
    if began is None:
        return None, beside(stay.begun, stay.ended, stay.prompt_tokens)
    return beside(stay.begun, began, stay.prompt_tokens), beside(began, stay.ended, stay.prompt_tokens)


def _beginning(state: ServingState, request: InferenceRequest, now: float) -> Beginning | None:
    """How its prompt begins, for control to see whether it has changed; once the answer is out, so that nobody waits for it."""
    leading, system = request.messages, request.system
    if len(leading) < LEAST_BYTES > len(system):
        return None
    if not system and not may_have_system_prompt(leading):
        return None
    head = memoryview(leading)[:MOST_BYTES].tobytes()
    beside = memoryview(system)[:MOST_BYTES].tobytes() if system else b""
    return state.beginnings.find(head, beside, now, is_salted=request.is_salted)


def _delivered(exchange: Progress, ttft: float) -> float | None:
    """TTFT and what it took to hand that token on; ``None`` for a client that was not taking bytes all the time."""
    if exchange.write_seconds is None or exchange.client_wait_seconds:
        return None
    return ttft + exchange.write_seconds


def _no_token(exchange: Progress, found: Measurements) -> NoToken:
    answer = exchange.answer
    if answer is None:
        return NoToken.NOT_ANSWERED
    if answer.status >= 300 or found.is_error:
        return NoToken.REFUSED
    if found.is_unmetered:
        return NoToken.UNMETERED
    if not found.is_complete:
        return NoToken.CUT
    return NoToken.HIDDEN if found.usage is not None and found.usage.completion_tokens else NoToken.EMPTY
