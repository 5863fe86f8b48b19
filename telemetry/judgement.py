"""A finished request against its limits: floor, reference and expected of its TTFT, its TPOT, or its whole answer.

Streams are judged by TTFT and TPOT, plain requests end to end. TTFT is what the worker took (`upstream_ttft_seconds`); queues
of the gateway are not the worker's. Where the worker did not say how many tokens were cached, the least it can have had to
compute makes the floor, and TTFT is expected to lie between that of a fully warm and that of a fully cold prompt.

Of a prompt that a prefill stage computed only TPOT is judged: who generates computed none of it, the stage may have other GPUs,
and how long blocks take from one to the other is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from roofline.bound import Binds
from roofline.deployment import Deployment
from roofline.expected import Losses
from roofline.limits import Limit, Surroundings, decode_limit, e2e_seconds, prefill_limit
from telemetry.record import Outcome, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What the requests of one worker are held against."""

    deployment: Deployment
    losses: Losses
    chunk_tokens: int = 8192  # tokens that its engine computes in one step at most


class Held(NamedTuple):
    """One figure of one request beside its limits, in seconds."""

    measured_seconds: float
    floor_seconds: float
    reference_seconds: float
    expected_seconds: float  # fully cold, where it is not known how much was cached
    least_expected_seconds: float  # fully warm; the same as expected where it is known
    binds: Binds
    flop: float  # of the floor's work
    bytes: float  # of the floor's work
    around: Surroundings  # what ran beside it

    @property
    def floor_ratio(self) -> float:
        """Measured over floor; below 1 the facts are wrong."""
        return self.measured_seconds / self.floor_seconds

    @property
    def attained_ratio(self) -> float:
        """Expected over measured. Within the interval of an unknown hit it is 1: nothing is known to be lost."""
        nearest = min(max(self.measured_seconds, self.least_expected_seconds), self.expected_seconds)
        return nearest / self.measured_seconds

    @property
    def is_interval(self) -> bool:
        """Whether the hit is not known."""
        return self.least_expected_seconds < self.expected_seconds


class Judgement(NamedTuple):
    """The figures of a request that can be judged."""

    ttft: Held | None = None
    tpot: Held | None = None
    e2e: Held | None = None


NOT_JUDGED = Judgement()


def judge(record: RequestRecord, yardstick: Yardstick) -> Judgement:
    """Hold a request against its limits. Nothing is judged that did not end well, or whose tokens were not counted by the
    worker, or that was a batch."""
    prompt, completion = record.prompt_tokens, record.completion_tokens
    if record.outcome is not Outcome.OK or record.is_batch or record.prompt_is_estimate or record.completion_is_estimate:
        return NOT_JUDGED
    if not prompt or not completion:
        return NOT_JUDGED
    cached = record.cached_tokens
    if cached is not None and cached > prompt:
        return NOT_JUDGED
    if record.stream:
        first, pace = record.upstream_ttft_seconds, record.tpot_seconds
        ttft = None if first is None or record.is_prefilled_elsewhere else _ttft(record, yardstick, prompt, cached, first)
        tpot = None if pace is None or completion < 2 else _tpot(record, yardstick, prompt, completion, pace)
        return Judgement(ttft=ttft, tpot=tpot)
    measured = None if record.is_prefilled_elsewhere else worker_seconds(record)
    return NOT_JUDGED if measured is None else Judgement(e2e=_e2e(record, yardstick, prompt, cached, completion, measured))


def worker_seconds(record: RequestRecord) -> float | None:
    """What a plain request spent at its worker: end to end, less what the gateway, the client, a prefill stage and workers that
    were asked before took."""
    if record.e2e_seconds is None:
        return None
    own = (record.queue_seconds, record.connect_seconds, record.overhead_seconds, record.client_wait_seconds)
    others = (*own, record.prefill_leg_seconds, record.failed_attempts_seconds)
    seconds = record.e2e_seconds - sum(part for part in others if part is not None)
    return seconds if seconds > 0.0 else None


def _prefill_around(record: RequestRecord, yardstick: Yardstick) -> Surroundings:
    return _around(record, record.beside_prefill_requests, record.beside_prefill_prompt_tokens, yardstick)


def _decode_around(record: RequestRecord, yardstick: Yardstick) -> Surroundings:
    return _around(record, record.beside_decode_requests, record.beside_decode_prompt_tokens, yardstick)


def _around(record: RequestRecord, requests: float | None, prompt_tokens: float | None, yardstick: Yardstick) -> Surroundings:
    # Others are half way through their answers in the mean, which are taken to be as long as this one.
    context = round((prompt_tokens or 0.0) + (record.completion_tokens or 0) / 2)
    return Surroundings(requests or 0.0, context, yardstick.chunk_tokens)


def _ttft(record: RequestRecord, yardstick: Yardstick, prompt: int, cached: int | None, measured: float) -> Held:
    around = _prefill_around(record, yardstick)
    warm = _prefill(yardstick, prompt, prompt if cached is None else cached, around)
    cold = warm if cached is not None else _prefill(yardstick, prompt, 0, around)
    return _held(measured, warm, cold, around)


def _tpot(record: RequestRecord, yardstick: Yardstick, prompt: int, completion: int, measured: float) -> Held:
    around = _decode_around(record, yardstick)
    limit = _decode(yardstick, prompt, completion, around)
    return _held(measured, limit, limit, around)


def _e2e(
    record: RequestRecord, yardstick: Yardstick, prompt: int, cached: int | None, completion: int, measured: float
) -> Held:
    around = _decode_around(record, yardstick)
    decode = _decode(yardstick, prompt, completion, around) if completion > 1 else None
    warm = _whole(_prefill(yardstick, prompt, prompt if cached is None else cached, around), decode, completion)
    cold = warm if cached is not None else _whole(_prefill(yardstick, prompt, 0, around), decode, completion)
    return _held(measured, warm, cold, around)


def _whole(prefill: Limit, decode: Limit | None, completion: int) -> Limit:
    if decode is None:
        return prefill
    steps = completion - 1
    binds = prefill.binds if prefill.floor_seconds > steps * decode.floor_seconds else decode.binds
    return Limit(
        e2e_seconds(prefill.floor_seconds, decode.floor_seconds, completion),
        e2e_seconds(prefill.reference_seconds, decode.reference_seconds, completion),
        e2e_seconds(prefill.expected_seconds, decode.expected_seconds, completion),
        binds,
        prefill.flop + steps * decode.flop,
        prefill.bytes + steps * decode.bytes,
    )


def _prefill(yardstick: Yardstick, prompt: int, cached: int, around: Surroundings) -> Limit:
    return prefill_limit(yardstick.deployment, yardstick.losses, prompt_tokens=prompt, cached_tokens=cached, around=around)


def _decode(yardstick: Yardstick, prompt: int, completion: int, around: Surroundings) -> Limit:
    return decode_limit(
        yardstick.deployment, yardstick.losses, context_tokens=prompt, completion_tokens=completion, around=around
    )


def _held(measured: float, warm: Limit, cold: Limit, around: Surroundings) -> Held:
    return Held(
        measured,
        warm.floor_seconds,
        cold.reference_seconds,
        cold.expected_seconds,
        warm.expected_seconds,
        warm.binds,
        warm.flop,
        warm.bytes,
        around,
    )
