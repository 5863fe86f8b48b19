"""Why a request was slow: the seconds over what it should have taken, cause by cause, and the rest that nothing explains.

A request should have taken what is expected of it with the prefix hit that could be expected and the batch that is usual at
its worker. What it took beyond that is shared out in a fixed order: first what was measured (queues, connecting, attempts at
other workers, the client), then what follows from lengths (a hit that was not delivered, prefills of others in the same steps,
batch, contexts), then what is known of the worker (its GPUs, slower than it used to be or than its peers, a queue, a full
cache). No cause gets more than is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from roofline.limits import Surroundings
from telemetry.causes import CauseName, Usual, WorkerState
from telemetry.judgement import Held, Judgement, Yardstick
from telemetry.record import Cause, RequestRecord
from telemetry.shares import (
    KV_FULL_RATIO,
    Shares,
    before_first_token,
    decode_seconds,
    prefill_seconds,
    take_clocks,
    take_engine,
    take_memory,
    take_others,
    take_waits,
    take_worker,
)

_PREEMPTED_RATIO = 5.0  # largest gap over the median: computing a whole context again
_UNUSUAL = 1.5  # times the median: less is as usual
_FEW = 2.0  # sequences more than that are no other batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a figure deviates: less attained than the ratio, and later than expected by so much."""

    attained_ratio: float = 0.5
    ttft_excess_seconds: float = 0.1
    tpot_excess_seconds: float = 0.002
    e2e_excess_seconds: float = 0.1


DEFAULT_THRESHOLDS = Thresholds()


class Diagnosis(msgspec.Struct, frozen=True, gc=False):
    """Of one figure that deviates."""

    figure: str  # "ttft", "tpot" or "e2e"
    excess_seconds: float  # over what it should have taken; of a TPOT, all tokens together
    causes: tuple[Cause, ...]  # most seconds first, what is unexplained among them


def diagnose(
    record: RequestRecord,
    judgement: Judgement,
    yardstick: Yardstick,
    usual: Usual,
    state_of: Callable[[], WorkerState],
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> tuple[Diagnosis, ...]:
    """A diagnosis for each figure that deviates; none for a request that is as it should be.

    ``state_of`` gives what is known of its worker, and is asked only about a figure that deviates.
    """
    found: list[Diagnosis] = []
    for figure, held in zip(judgement._fields, judgement, strict=True):
        if held is None:
            continue
        if held.floor_ratio < 1.0:
            beaten = held.floor_seconds - held.measured_seconds
            found.append(Diagnosis(figure, -beaten, (Cause(CauseName.FACTS, beaten),)))
        elif figure == "ttft":
            found += _ttft(record, held, yardstick, usual, state_of, thresholds)
        elif figure == "tpot":
            found += _tpot(record, held, yardstick, usual, state_of, thresholds)
        else:
            found += _e2e(record, held, yardstick, usual, state_of, thresholds)
    return tuple(found)


def _deviates(measured: float, due: float, thresholds: Thresholds, least_excess: float) -> bool:
    return due < thresholds.attained_ratio * measured and measured - due > least_excess


def _ttft(
    record: RequestRecord,
    held: Held,
    yardstick: Yardstick,
    usual: Usual,
    state_of: Callable[[], WorkerState],
    thresholds: Thresholds,
) -> list[Diagnosis]:
    measured = record.ttft_seconds or held.measured_seconds
    around = held.around
    calm, warm, cold = _prefills(record, yardstick, usual, around, held.expected_seconds)
    due = min(calm, held.expected_seconds)
    if not _deviates(measured, due, thresholds, thresholds.ttft_excess_seconds):
        return []
    shares = Shares(measured - due)
    take_waits(shares, record)
    shares.take(CauseName.MISSED_PREFIX, cold - warm)
    shares.take(CauseName.BATCH, warm - calm)
    others = before_first_token(record, yardstick)
    computing = held.expected_seconds if held.binds == "compute" else 0.0
    take_engine(shares, record, yardstick, state_of(), others, around, held.expected_seconds, computing)
    return [Diagnosis("ttft", shares.total, shares.causes())]


def _tpot(
    record: RequestRecord,
    held: Held,
    yardstick: Yardstick,
    usual: Usual,
    state_of: Callable[[], WorkerState],
    thresholds: Thresholds,
) -> list[Diagnosis]:
    steps = (record.completion_tokens or 2) - 1
    around = held.around
    calm, calm_batch = _decodes(record, yardstick, usual, around, held.expected_seconds)
    due = min(calm, held.expected_seconds)
    if not _deviates(held.measured_seconds, due, thresholds, thresholds.tpot_excess_seconds):
        return []
    shares = Shares((held.measured_seconds - due) * steps)
    shares.take(CauseName.BATCH, (held.expected_seconds - calm_batch) * steps)
    shares.take(CauseName.CONTEXT, (calm_batch - calm) * steps)
    state = state_of()
    # Behind a prefill stage what came to others was mostly computed there: how much was not, nobody knows.
    arrived = None if record.is_prefilled_elsewhere else record.arrived_tokens
    take_others(shares, record, yardstick, state, arrived, around)
    if (state.kv_usage_ratio or 0.0) >= KV_FULL_RATIO and (record.stall_ratio or 0.0) >= _PREEMPTED_RATIO:
        shares.take(CauseName.KV_PRESSURE, shares.left)
    if held.binds == "compute":
        take_clocks(shares, state, held.expected_seconds * steps)
    else:
        take_memory(shares, state, held.expected_seconds * steps)
    take_worker(shares, state, held.expected_seconds * steps)
    return [Diagnosis("tpot", shares.total, shares.causes())]


def _e2e(
    record: RequestRecord,
    held: Held,
    yardstick: Yardstick,
    usual: Usual,
    state_of: Callable[[], WorkerState],
    thresholds: Thresholds,
) -> list[Diagnosis]:
    measured = record.e2e_seconds or held.measured_seconds
    steps = max(0, (record.completion_tokens or 1) - 1)
    around = held.around
    prefill = prefill_seconds(yardstick, record.prompt_tokens or 1, record.cached_tokens or 0, around)
    calm, warm, cold = _prefills(record, yardstick, usual, around, prefill)
    pace = (held.expected_seconds - cold) / steps if steps else 0.0
    calm_pace, calm_batch = _decodes(record, yardstick, usual, around, pace) if steps else (0.0, 0.0)
    due = min(calm + steps * calm_pace, held.expected_seconds)
    if not _deviates(measured, due, thresholds, thresholds.e2e_excess_seconds):
        return []
    shares = Shares(measured - due)
    take_waits(shares, record)
    shares.take(CauseName.SLOW_CLIENT, record.client_wait_seconds)
    shares.take(CauseName.MISSED_PREFIX, cold - warm)
    shares.take(CauseName.BATCH, (pace - calm_batch) * steps + warm - calm)
    shares.take(CauseName.CONTEXT, (calm_batch - calm_pace) * steps)
    others = before_first_token(record, yardstick) + (record.arrived_tokens or 0)
    take_engine(shares, record, yardstick, state_of(), others, around, held.expected_seconds, prefill)
    return [Diagnosis("e2e", shares.total, shares.causes())]


def _prefills(
    record: RequestRecord, yardstick: Yardstick, usual: Usual, around: Surroundings, expected: float
) -> tuple[float, float, float]:
    """Expected prefill with the hit and the batch to be expected, with the hit alone, and as it was, which is known."""
    prompt = record.prompt_tokens or 1
    cached = min(record.cached_tokens or 0, prompt)
    hit = max(cached, min(record.expected_cached_tokens or 0, prompt))
    warm = expected if hit == cached else prefill_seconds(yardstick, prompt, hit, around)
    calm = _calm(around, usual)
    return (warm if calm is around else prefill_seconds(yardstick, prompt, hit, calm)), warm, expected


def _decodes(
    record: RequestRecord, yardstick: Yardstick, usual: Usual, around: Surroundings, expected: float
) -> tuple[float, float]:
    """Expected TPOT with the usual batch and the usual context, and with the usual batch alone; as it was is known."""
    prompt, completion = record.prompt_tokens or 1, record.completion_tokens or 2
    calm = _calm(around, usual)
    batch = expected if calm is around else decode_seconds(yardstick, prompt, completion, calm)
    context = usual.context_tokens
    if context is None or prompt < _UNUSUAL * context:
        return batch, batch
    return decode_seconds(yardstick, max(1, round(context)), completion, calm), batch


def _calm(around: Surroundings, usual: Usual) -> Surroundings:
    """The same with the batch that is usual, where there were clearly more."""
    running = usual.running
    if running is None or around.running < _UNUSUAL * running + _FEW:
        return around
    return Surroundings(running=running, context_tokens=around.context_tokens, chunk_tokens=around.chunk_tokens)
