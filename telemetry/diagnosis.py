"""Why a request was slow: the seconds over what it should have taken, cause by cause, and the rest that nothing explains.

A request should have taken what is expected of it with the prefix hit that could be expected and the batch that is usual at
its worker. What it took beyond that is shared out in a fixed order: first what was measured (queues, connecting, attempts at
other workers, the client),
then what follows from lengths (a hit that was not delivered, prefills of others in the same steps, batch, contexts), then what
is known of the worker (slower than it used to be or than its peers, a queue, a full cache). No cause gets more than is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from roofline.limits import Surroundings, decode_limit, prefill_limit
from telemetry.judgement import Held, Judgement, Yardstick, decode_around, prefill_around
from telemetry.record import Cause, RequestRecord

_KV_FULL_RATIO = 0.95
_KV_SCARCE_RATIO = 0.85
_PREEMPTED_RATIO = 5.0  # largest gap over the median: computing a whole context again
_SLOWER_RATIO = 1.15  # below it a worker counts as its own kind
_UNUSUAL = 1.5  # times the median: less is as usual
_FEW = 2.0  # sequences more than that are no other batch
_LAG_SECONDS = 0.005  # of the gateway's own work; more is a loop that was held


class CauseName(StrEnum):
    """What can make a request slow; the names are label values."""

    __hash__ = str.__hash__

    GATEWAY_QUEUE = "gateway_queue"  # it waited in the gateway for a worker with room
    CONNECT = "connect"  # getting a connection to the worker
    LOOP_LAG = "loop_lag"  # the gateway itself was late
    PREFILL_STAGE = "prefill_stage"  # the pool's prefill stage was asked first, and did not help
    FAILED_ATTEMPTS = "failed_attempts"  # other workers were asked before, and failed
    SLOW_CLIENT = "slow_client"  # the client took the answer no faster
    MISSED_PREFIX = "missed_prefix"  # a hit that could be expected was not delivered
    ENGINE_QUEUE = "engine_queue"  # it waited in the worker
    OTHERS_PREFILL = "others_prefill"  # prompts of others, computed in the same steps or before
    BATCH = "batch"  # more sequences than usual
    CONTEXT = "context"  # a longer context than usual
    KV_PRESSURE = "kv_pressure"  # a full cache: waiting for blocks, or computing again
    SLOWER_THAN_PEERS = "slower_than_peers"  # the worker, lately, beside others of its kind
    SLOWER_THAN_ITSELF = "slower_than_itself"  # than when its calibration was accepted
    FACTS = "facts"  # faster than can be: model, GPU or format is not what is configured
    UNEXPLAINED = "unexplained"  # what is left


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """What is known of a worker around a request. ``None``: not known.

    The ratios are measured over expected, lately: of the worker over that of its peers, and of the worker over its own
    reference.
    """

    waiting_requests: float | None = None
    kv_usage_ratio: float | None = None
    peers_ratio: float | None = None
    own_ratio: float | None = None
    usual_running: float | None = None  # other sequences beside a request
    usual_context_tokens: float | None = None  # of a request


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
    state: WorkerState,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> tuple[Diagnosis, ...]:
    """A diagnosis for each figure that deviates; none for a request that is as it should be."""
    found: list[Diagnosis] = []
    for figure, held in zip(judgement._fields, judgement, strict=True):
        if held is None:
            continue
        if held.floor_ratio < 1.0:
            beaten = held.floor_seconds - held.measured_seconds
            found.append(Diagnosis(figure, -beaten, (Cause(CauseName.FACTS, beaten),)))
        elif figure == "ttft":
            found += _ttft(record, held, yardstick, state, thresholds)
        elif figure == "tpot":
            found += _tpot(record, held, yardstick, state, thresholds)
        else:
            found += _e2e(record, held, yardstick, state, thresholds)
    return tuple(found)


def _deviates(measured: float, due: float, thresholds: Thresholds, least_excess: float) -> bool:
    return due < thresholds.attained_ratio * measured and measured - due > least_excess


class _Shares:
    """Seconds to be shared out; each cause takes at most what is left."""

    def __init__(self, seconds: float) -> None:
        self.left = self.total = seconds
        self._taken: dict[CauseName, float] = {}

    def take(self, cause: CauseName, seconds: float | None) -> None:
        """Give a cause what it explains."""
        if seconds is not None and (taken := min(seconds, self.left)) > 0.0:
            self._taken[cause] = self._taken.get(cause, 0.0) + taken
            self.left -= taken

    def taken(self, cause: CauseName) -> float:
        """What a cause has got so far."""
        return self._taken.get(cause, 0.0)

    def diagnosis(self, figure: str) -> Diagnosis:
        """Everything, the most first."""
        if self.left > 0.0:
            self._taken[CauseName.UNEXPLAINED] = self.left
        causes = sorted(self._taken.items(), key=lambda item: -item[1])
        return Diagnosis(figure, self.total, tuple(Cause(cause, seconds) for cause, seconds in causes))


def _ttft(
    record: RequestRecord, held: Held, yardstick: Yardstick, state: WorkerState, thresholds: Thresholds
) -> list[Diagnosis]:
    measured = record.ttft_seconds or held.measured_seconds
    around = prefill_around(record, yardstick)
    usual, warm, cold = _prefills(record, yardstick, state, around, held.expected_seconds)
    due = min(usual, held.expected_seconds)
    if not _deviates(measured, due, thresholds, thresholds.ttft_excess_seconds):
        return []
    shares = _Shares(measured - due)
    _take_waits(shares, record)
    shares.take(CauseName.MISSED_PREFIX, cold - warm)
    shares.take(CauseName.BATCH, warm - usual)
    others = _before_first_token(record, yardstick)
    _take_engine(shares, record, yardstick, state, others, around, held.expected_seconds)
    return [shares.diagnosis("ttft")]


def _tpot(
    record: RequestRecord, held: Held, yardstick: Yardstick, state: WorkerState, thresholds: Thresholds
) -> list[Diagnosis]:
    steps = (record.completion_tokens or 2) - 1
    around = decode_around(record, yardstick)
    usual, usual_batch = _decodes(record, yardstick, state, around, held.expected_seconds)
    due = min(usual, held.expected_seconds)
    if not _deviates(held.measured_seconds, due, thresholds, thresholds.tpot_excess_seconds):
        return []
    shares = _Shares((held.measured_seconds - due) * steps)
    shares.take(CauseName.BATCH, (held.expected_seconds - usual_batch) * steps)
    shares.take(CauseName.CONTEXT, (usual_batch - usual) * steps)
    # Behind a prefill stage what came to others was mostly computed there: how much was not, nobody knows.
    arrived = None if record.is_prefilled_elsewhere else record.arrived_tokens
    _take_others(shares, record, yardstick, state, arrived, around)
    if (state.kv_usage_ratio or 0.0) >= _KV_FULL_RATIO and (record.stall_ratio or 0.0) >= _PREEMPTED_RATIO:
        shares.take(CauseName.KV_PRESSURE, shares.left)
    _take_worker(shares, state, held.expected_seconds * steps)
    return [shares.diagnosis("tpot")]


def _e2e(
    record: RequestRecord, held: Held, yardstick: Yardstick, state: WorkerState, thresholds: Thresholds
) -> list[Diagnosis]:
    measured = record.e2e_seconds or held.measured_seconds
    steps = max(0, (record.completion_tokens or 1) - 1)
    around = decode_around(record, yardstick)
    prefill = _prefill(yardstick, record.prompt_tokens or 1, record.cached_tokens or 0, around)
    usual, warm, cold = _prefills(record, yardstick, state, around, prefill)
    pace = (held.expected_seconds - cold) / steps if steps else 0.0
    usual_pace, usual_batch = _decodes(record, yardstick, state, around, pace) if steps else (0.0, 0.0)
    due = min(usual + steps * usual_pace, held.expected_seconds)
    if not _deviates(measured, due, thresholds, thresholds.e2e_excess_seconds):
        return []
    shares = _Shares(measured - due)
    _take_waits(shares, record)
    shares.take(CauseName.SLOW_CLIENT, record.client_wait_seconds)
    shares.take(CauseName.MISSED_PREFIX, cold - warm)
    shares.take(CauseName.BATCH, (pace - usual_batch) * steps + warm - usual)
    shares.take(CauseName.CONTEXT, (usual_batch - usual_pace) * steps)
    others = _before_first_token(record, yardstick) + (record.arrived_tokens or 0)
    _take_engine(shares, record, yardstick, state, others, around, held.expected_seconds)
    return [shares.diagnosis("e2e")]


def _take_waits(shares: _Shares, record: RequestRecord) -> None:
    """What was measured before the worker had the request."""
    shares.take(CauseName.GATEWAY_QUEUE, record.queue_seconds)
    shares.take(CauseName.CONNECT, record.connect_seconds)
    shares.take(CauseName.LOOP_LAG, (record.overhead_seconds or 0.0) - _LAG_SECONDS)
    shares.take(CauseName.PREFILL_STAGE, record.prefill_leg_seconds)
    shares.take(CauseName.FAILED_ATTEMPTS, record.failed_attempts_seconds)


def _before_first_token(record: RequestRecord, yardstick: Yardstick) -> int:
    """Prompt tokens of others that were computed before or with its own: all ahead, and a step of those that joined."""
    return (record.ahead_tokens or 0) + min(record.joined_tokens or 0, yardstick.chunk_tokens)


def _take_others(
    shares: _Shares,
    record: RequestRecord,
    yardstick: Yardstick,
    state: WorkerState,
    tokens: int | None,
    around: Surroundings,
) -> None:
    """The prompts of others, as many tokens in all: how they were cut does not matter beside their sum.

    They may have been partly computed when the request came. At a worker that is slower than it should be, they explain no more
    than they would have taken at its proper pace.
    """
    if not tokens:
        return
    mean = max(1, round(max(record.beside_prefill_prompt_tokens or 0.0, record.beside_decode_prompt_tokens or 0.0)))
    length = min(tokens, mean)
    each = _prefill(yardstick, length, 0, around)
    own = _step(yardstick, around) if around.running else 0.0  # decoding goes on in the same steps
    slower = max(state.own_ratio or 1.0, state.peers_ratio or 1.0)
    most = shares.left / slower if slower > _SLOWER_RATIO else shares.left
    shares.take(CauseName.OTHERS_PREFILL, min(most, max(0.0, each - own) * tokens / length))


def _take_engine(
    shares: _Shares,
    record: RequestRecord,
    yardstick: Yardstick,
    state: WorkerState,
    others_tokens: int | None,
    around: Surroundings,
    expected_seconds: float,
) -> None:
    """What the worker did: others' prompts, its pace, and whatever it let the request wait for beyond that.

    A queue that the worker told is taken as told; one that only its gauge shows gets what nothing else explains.
    """
    _take_others(shares, record, yardstick, state, others_tokens, around)
    has_waiting = (state.waiting_requests or 0.0) >= 1.0
    # Who waits for blocks leaves some free: those of a prompt that does not fit.
    is_full = (state.kv_usage_ratio or 0.0) >= (_KV_SCARCE_RATIO if has_waiting else _KV_FULL_RATIO)
    queue = CauseName.KV_PRESSURE if is_full else CauseName.ENGINE_QUEUE
    told = record.worker_queue_seconds
    shares.take(queue, told)
    _take_worker(shares, state, expected_seconds)
    if told is None and has_waiting:
        shares.take(queue, shares.left)


def _take_worker(shares: _Shares, state: WorkerState, expected_seconds: float) -> None:
    """What is known to be wrong with the worker: itself first, since what its reference knows is nearer than its peers.

    It was slower at the prompts of others, too.
    """
    seconds = expected_seconds + shares.taken(CauseName.OTHERS_PREFILL)
    for cause, ratio in ((CauseName.SLOWER_THAN_ITSELF, state.own_ratio), (CauseName.SLOWER_THAN_PEERS, state.peers_ratio)):
        if ratio is not None and ratio > _SLOWER_RATIO:
            shares.take(cause, seconds * (ratio - 1.0))
            return


def _prefills(
    record: RequestRecord, yardstick: Yardstick, state: WorkerState, around: Surroundings, expected: float
) -> tuple[float, float, float]:
    """Expected prefill with the hit and the batch to be expected, with the hit alone, and as it was, which is known."""
    prompt = record.prompt_tokens or 1
    cached = min(record.cached_tokens or 0, prompt)
    hit = max(cached, min(record.expected_cached_tokens or 0, prompt))
    warm = expected if hit == cached else _prefill(yardstick, prompt, hit, around)
    calm = _usual(around, state)
    return (warm if calm is around else _prefill(yardstick, prompt, hit, calm)), warm, expected


def _decodes(
    record: RequestRecord, yardstick: Yardstick, state: WorkerState, around: Surroundings, expected: float
) -> tuple[float, float]:
    """Expected TPOT with the usual batch and the usual context, and with the usual batch alone; as it was is known."""
    prompt, completion = record.prompt_tokens or 1, record.completion_tokens or 2
    calm = _usual(around, state)
    batch = expected if calm is around else _decode(yardstick, prompt, completion, calm)
    usual = state.usual_context_tokens
    if usual is None or prompt < _UNUSUAL * usual:
        return batch, batch
    return _decode(yardstick, max(1, round(usual)), completion, calm), batch


def _usual(around: Surroundings, state: WorkerState) -> Surroundings:
    usual = state.usual_running
    if usual is None or around.running < _UNUSUAL * usual + _FEW:
        return around
    return Surroundings(running=usual, context_tokens=around.context_tokens, chunk_tokens=around.chunk_tokens)


def _step(yardstick: Yardstick, around: Surroundings) -> float:
    return _decode(yardstick, max(1, around.context_tokens), 2, around)


def _prefill(yardstick: Yardstick, prompt: int, cached: int, around: Surroundings) -> float:
    limit = prefill_limit(yardstick.deployment, yardstick.losses, prompt_tokens=prompt, cached_tokens=cached, around=around)
    return limit.expected_seconds


def _decode(yardstick: Yardstick, prompt: int, completion: int, around: Surroundings) -> float:
    limit = decode_limit(
        yardstick.deployment, yardstick.losses, context_tokens=prompt, completion_tokens=completion, around=around
    )
    return limit.expected_seconds
