"""A request as a row of the page: what it was, how it ended, and where its time went, one phase after the other."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from telemetry.record import Cause, RequestRecord


class Step(StrEnum):
    """A part of a request's time, in the order in which they come."""

    __hash__ = str.__hash__

    UPLOAD = "upload"  # its body arriving
    GATEWAY = "gateway"  # the gateway's own work
    QUEUE = "queue"  # waiting in the gateway for a worker with room
    STAGE = "stage"  # at a worker of the pool's prefill stage, whatever came of it
    EARLIER = "earlier"  # attempts at other workers that failed or were late
    CONNECT = "connect"
    WAIT = "wait"  # at the worker, before its prompt is computed
    FETCH = "fetch"  # the stage's blocks taken over, up to the first token: in the place of waiting and prefill
    PREFILL = "prefill"
    DECODE = "decode"
    ANSWER = "answer"  # of a plain request all that the worker did
    CLIENT_WAIT = "client_wait"  # the client took no more bytes


class Part(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One phase and its seconds."""

    step: Step
    seconds: float


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the page shows of a request; figures as in the record. Nothing of prompts, answers and headers."""

    id: str
    time: float  # unix seconds of its end
    key: str | None
    model: str
    pool: str
    worker: str | None
    endpoint: str
    stream: bool
    status: int | None
    outcome: str
    reason: str | None
    fault: str | None
    attempts: int
    ttft: float | None  # seconds, as all that follow
    upstream_ttft: float | None
    ttft_expected: float | None
    ttft_floor: float | None
    tpot: float | None
    tpot_expected: float | None
    tpot_floor: float | None
    e2e: float | None
    e2e_expected: float | None
    prompt: int | None  # tokens, as those that follow
    cached: int | None
    completion: int | None
    deviations: tuple[str, ...]
    causes: tuple[Cause, ...]
    parts: tuple[Part, ...]
    prefill_from: str | None  # where the end of waiting is known from: the worker, what was expected, or a prefill stage


def row_of(record: RequestRecord) -> Row:
    """The row of a record."""
    parts, prefill_from = phases(record)
    return Row(
        id=record.request_id,
        time=record.ended_unix_seconds,
        key=record.key,
        model=record.model,
        pool=record.pool,
        worker=record.worker,
        endpoint=record.endpoint,
        stream=record.stream,
        status=record.status,
        outcome=record.outcome,
        reason=record.reason or record.phase,
        fault=record.fault,
        attempts=record.attempts,
        ttft=record.ttft_seconds,
        upstream_ttft=record.upstream_ttft_seconds,
        ttft_expected=record.ttft_expected_seconds,
        ttft_floor=record.ttft_floor_seconds,
        tpot=record.tpot_seconds,
        tpot_expected=record.tpot_expected_seconds,
        tpot_floor=record.tpot_floor_seconds,
        e2e=record.e2e_seconds,
        e2e_expected=record.e2e_expected_seconds,
        prompt=record.prompt_tokens,
        cached=record.cached_tokens,
        completion=record.completion_tokens,
        deviations=record.deviations,
        causes=record.causes,
        parts=parts,
        prefill_from=prefill_from,
    )


def phases(record: RequestRecord) -> tuple[tuple[Part, ...], str | None]:
    """Where the time of a request went, and what tells waiting at the worker from computing its prompt.

    That is the worker itself where it gives its own times, else what was expected of the prefill, and ``None`` where neither is
    known: then all the time to the first token counts as prefill. A prompt that a stage computed has neither at its worker. The
    phases add up to the time from its first byte to its end.
    """
    found: list[Part] = []

    def add(step: Step, seconds: float | None, most: float | None = None) -> float:
        taken = max(0.0, seconds or 0.0) if most is None else min(max(0.0, seconds or 0.0), max(0.0, most))
        if taken > 0.0:
            found.append(Part(step, taken))
        return taken

    add(Step.UPLOAD, record.upload_seconds)
    total = record.e2e_seconds
    if total is None:
        return tuple(found), None
    left = total
    left -= add(Step.GATEWAY, record.overhead_seconds, left)
    left -= add(Step.QUEUE, record.queue_seconds, left)
    left -= add(Step.STAGE, record.prefill_leg_seconds, left)
    left -= add(Step.EARLIER, record.failed_attempts_seconds, left)
    left -= add(Step.CONNECT, record.connect_seconds, left)
    client = min(record.client_wait_seconds or 0.0, left)
    left -= client
    prefill_from = None
    if (upstream := record.upstream_ttft_seconds) is not None:
        until_first = min(upstream, left)
        if record.is_prefilled_elsewhere:
            add(Step.DECODE, left - add(Step.FETCH, until_first))
            add(Step.CLIENT_WAIT, client)
            return tuple(found), "stage"
        prefill, prefill_from = _prefill(record, until_first)
        left -= add(Step.WAIT, until_first - prefill)
        left -= add(Step.PREFILL, prefill, left)
        add(Step.DECODE, left)
    elif record.status is not None and record.token_events == 0 and record.stream:
        add(Step.WAIT, left)
    else:
        add(Step.ANSWER if record.worker is not None else Step.WAIT, left)
    add(Step.CLIENT_WAIT, client)
    return tuple(found), prefill_from


def _prefill(record: RequestRecord, until_first: float) -> tuple[float, str | None]:
    if record.worker_ttft_seconds is not None:
        return min(record.worker_ttft_seconds, until_first), "worker"
    if record.ttft_expected_seconds is not None:
        return min(record.ttft_expected_seconds, until_first), "expected"
    return until_first, None
