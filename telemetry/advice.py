"""What a pool's recent requests suggest to set otherwise: the engine's chunk, its batch, and the boundary between pools.

Each piece of advice names a setting, a value for it, and the observation that it follows from. Nothing is changed by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from statistics import median

import msgspec

from roofline.capacity.admission import cap_requests
from roofline.capacity.chunking import Direction, chunk_direction, recommend_chunk
from roofline.capacity.targets import JITTER_RATIO
from roofline.capacity.workload import Workload
from telemetry.judgement import Yardstick
from telemetry.record import RequestRecord

REMEMBERED = 512
LEAST_REQUESTS = 50  # before anything is said
_LEAST_COLD = 12  # prompts that a chunk is measured by
_OFTEN_RATIO = 0.05  # of the requests: more is no accident
_MOST_MISROUTED_RATIO = 0.005


class Setting(StrEnum):
    """What can be set otherwise."""

    __hash__ = str.__hash__

    CHUNK = "--max-num-batched-tokens"
    BATCH = "--max-num-seqs"
    BOUNDARY = "max_total_tokens"


class Advice(msgspec.Struct, frozen=True, gc=False):
    """One thing to change, and why."""

    setting: Setting
    value: int | None  # None: it is to be moved, but not known to where
    why: str


class Lately:
    """What advice about a pool is made from: its last requests."""

    __slots__ = ("_misroutes", "_streams")

    def __init__(self) -> None:
        self._streams: deque[RequestRecord] = deque(maxlen=REMEMBERED)
        self._misroutes: deque[int] = deque(maxlen=REMEMBERED)  # tokens that a request was longer than it was taken for, or 0

    def __repr__(self) -> str:
        return f"<Lately {len(self._streams)} streams>"

    def take(self, record: RequestRecord) -> None:
        """Remember a finished request."""
        if record.tpot_seconds is not None and record.prompt_tokens and record.completion_tokens:
            self._streams.append(record)
        if record.estimated_prompt_tokens is not None and record.prompt_tokens is not None and not record.prompt_is_estimate:
            self._misroutes.append(record.misroute_tokens or 0)

    def advise(self, yardstick: Yardstick | None) -> tuple[Advice, ...]:
        """What follows; nothing from too few requests, and nothing about engines whose GPU or shape is not known."""
        found = list(self._about_boundary())
        if yardstick is not None and len(self._streams) >= LEAST_REQUESTS:
            found += self._about_chunk(yardstick)
            found += self._about_batch(yardstick)
        return tuple(found)

    def _about_chunk(self, yardstick: Yardstick) -> Iterable[Advice]:
        streams = self._streams
        # Only where prompts were computed beside them can chunks be why they stuttered.
        beside = [one.stall_ratio for one in streams if one.stall_ratio is not None and one.arrived_tokens]
        if len(beside) < LEAST_REQUESTS / 2:
            return
        jitter = median(beside)
        missed = sum("ttft" in one.deviations for one in streams) / len(streams)
        direction = chunk_direction(is_ttft_missed=missed > _OFTEN_RATIO, is_jitter_high=jitter > JITTER_RATIO)
        if direction is Direction.KEEP:
            return
        why = f"the longest gap of a stream beside prompts is {jitter:.1f} times its median, and {missed:.0%} miss their TTFT"
        if direction is Direction.NEITHER:
            yield Advice(Setting.CHUNK, None, f"{why}: no chunk mends both, less load or more workers do")
            return
        cold = [one.prompt_tokens or 1 for one in streams if one.is_cold]
        if len(cold) < _LEAST_COLD:
            lacking = f"only {len(cold)} prompts were mostly computed and not found cached, too few to say how large"
            yield Advice(Setting.CHUNK, None, f"{why}: make it {direction.value}; {lacking}")
            return
        workload = Workload(
            prompt_tokens=round(sum(cold) / len(cold)),
            completion_tokens=max(1, round(sum(one.completion_tokens or 1 for one in streams) / len(streams))),
        )
        batch = 1.0 + sum(one.beside_decode_requests or 0.0 for one in streams) / len(streams)
        fitting = recommend_chunk(yardstick.deployment, yardstick.losses, workload, batch=batch)
        yield Advice(Setting.CHUNK, fitting.budget_tokens, f"{why}: make it {direction.value}")

    def _about_batch(self, yardstick: Yardstick) -> Iterable[Advice]:
        streams = self._streams
        running = 1.0 + median(one.beside_decode_requests or 0.0 for one in streams)
        context = median((one.prompt_tokens or 0) + (one.completion_tokens or 0) / 2 for one in streams)
        most = cap_requests(yardstick.deployment, yardstick.losses, max(1, round(context)))
        if running > most:
            yield Advice(
                Setting.BATCH,
                max(1, int(most)),
                f"{running:.0f} requests run at once with {context:.0f} tokens of context each; beyond {most:.0f} every one of "
                "them is slower and throughput hardly more",
            )

    def _about_boundary(self) -> Iterable[Advice]:
        seen = self._misroutes
        astray = [tokens for tokens in seen if tokens]
        if len(seen) < LEAST_REQUESTS or len(astray) <= _MOST_MISROUTED_RATIO * len(seen):
            return
        share, off = len(astray) / len(seen), median(map(abs, astray))
        side = "longer" if sum(tokens > 0 for tokens in astray) * 2 > len(astray) else "shorter"
        yield Advice(
            Setting.BOUNDARY,
            None,
            f"{share:.1%} of the requests belonged into another pool, most {side} than estimated, by {off:.0f} tokens: move "
            "the boundary away from where many prompts end, or give the model a `tokenizer`, so that they are counted",
        )
