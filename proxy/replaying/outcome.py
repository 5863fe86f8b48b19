"""A finished replay as one value, and what it means in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.replay.layouts import Figures, Result
from simulator.replay.search import Answer
from simulator.replay.shapes import Reading

_SMOOTH_RATIO = 1.5
_LATE_FACTOR = 1.5
_HOPELESS_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was replayed, on what, and what came of it."""

    records: str
    reading: Reading
    requests: int  # of them that were served again
    trace_seconds: float
    gpu: str
    shape: str
    workers: int
    answer: Answer
    seconds: float  # of computing


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that is worth knowing; ``code`` is for programs."""

    code: str
    text: str


def remarks_of(outcome: Outcome) -> tuple[Remark, ...]:
    """The suggestion first, then its reasons, what it depends on, and what the records did not tell."""
    answer = outcome.answer
    found: list[Remark] = []
    if answer.after is None:
        kept, does = (
            ("Keep these pools", "these do") if answer.before.layout.is_recorded else ("Have one pool", "one pool does")
        )
        found.append(
            Remark(
                "stay",
                f"{kept}: no division of {outcome.workers} workers serves more requests within the targets than "
                f"{answer.before.met_ratio:.1%}, which {does}.",
            )
        )
    else:
        found += _suggested(answer, answer.after)
    found += _policies(answer)
    found += _told(outcome)
    return tuple(found)


def _suggested(answer: Answer, after: Result) -> Iterator[Remark]:
    before, boundary, short = answer.before, after.layout.boundary_tokens, after.layout.parts[0].workers
    if boundary is None:
        yield Remark(
            "suggestion",
            f"One pool of all {short} workers: {after.met_ratio:.1%} of requests within the targets instead of "
            f"{before.met_ratio:.1%}.",
        )
        yield from _loads(answer)
        return
    long = after.layout.parts[1].workers
    yield Remark(
        "suggestion",
        f"max_total_tokens: {boundary} for {short} of the workers, the other {long} for everything above: "
        f"{after.met_ratio:.1%} of requests within the targets instead of {before.met_ratio:.1%}.",
    )
    first, then = before.short.stall_ratio, after.short.stall_ratio
    if first is not None and then is not None:
        smooth = " (above 1.5 is felt)" if first > _SMOOTH_RATIO else ""
        yield Remark(
            "smoothness",
            f"TPOT P99 over P50 of the {after.short.requests:,} requests up to {boundary:,} tokens is {then:.2f} instead of "
            f"{first:.2f}{smooth}.",
        )
    yield from _long(before.long, after.long, boundary)
    if len(answer.near_boundaries) > 1:
        low, high = answer.near_boundaries[0], answer.near_boundaries[-1]
        yield Remark(
            "boundary_is_flat",
            f"Anything from {low:,} to {high:,} tokens does nearly as well (within one percent of the requests).",
        )
    else:
        yield Remark("boundary_is_sharp", "Other boundaries that were tried lose over one percent of the requests.")
    yield from _loads(answer)


def _loads(answer: Answer) -> Iterator[Remark]:
    for check in answer.loads:
        kept = "holds" if check.after_met_ratio > check.before_met_ratio else "does not hold"
        yield Remark(
            "load_check",
            f"At {check.load_ratio:.0%} of the load it {kept}: {check.after_met_ratio:.1%} instead of "
            f"{check.before_met_ratio:.1%}.",
        )


def _long(before: Figures, after: Figures, boundary: int) -> Iterator[Remark]:
    if not before.ttft.p99 or not after.ttft.p99:
        return
    worse = after.ttft.p99 > _LATE_FACTOR * before.ttft.p99
    tpot = ""
    if before.tpot.p99 and after.tpot.p99:
        worse = worse or after.tpot.p99 > _LATE_FACTOR * before.tpot.p99
        tpot = f", a TPOT P99 of {1000 * after.tpot.p99:.0f} ms instead of {1000 * before.tpot.p99:.0f} ms"
    yield Remark(
        "long_pay" if worse else "long_do_not_pay",
        f"The {after.requests:,} longer requests have a TTFT P99 of {after.ttft.p99:.1f} s instead of {before.ttft.p99:.1f} s"
        + tpot
        + (f": they pay for it. If that is too much, give one more worker to those above {boundary:,}." if worse else "."),
    )


def _policies(answer: Answer) -> Iterator[Remark]:
    if len(answer.policies) < 2:
        return
    best = max(answer.policies, key=lambda result: result.met_ratio)
    worst = min(answer.policies, key=lambda result: result.met_ratio)
    yield Remark(
        "policies",
        f"In one pool {best.layout.policy} serves {best.met_ratio:.1%} within the targets, {worst.layout.policy} "
        f"{worst.met_ratio:.1%}.",
    )


def _told(outcome: Outcome) -> Iterator[Remark]:
    reading, before = outcome.reading, outcome.answer.before
    if reading.bad:
        yield Remark("bad_lines", f"{reading.bad:,} of {reading.lines:,} lines could not be read, first {reading.first_bad}.")
    for reason, count in reading.passed_over.items():
        yield Remark("passed_over", f"{count:,} requests {reason} were passed over.")
    pools = {shape.pool for shape in reading.shapes if shape.pool is not None}
    recorded = outcome.answer.before.layout
    if recorded.is_recorded and recorded.workers != outcome.workers:
        yield Remark(
            "other_workers",
            f"The records come from {recorded.workers} workers, everything else here has {outcome.workers}: compare with "
            f"--workers {recorded.workers}.",
        )
    if len(pools) > 1 and not recorded.is_recorded:
        yield Remark(
            "recorded_in_pools",
            f"The records come from {len(pools)} pools, but do not tell of one model's workers in each. Everything here is "
            "compared with one pool of all workers, not with those: for a row of theirs give --threshold and --short-workers.",
        )
    if not any(shape.cached_tokens or shape.blocks for shape in reading.shapes):
        yield Remark(
            "no_hits",
            "The records tell of no prefix hits: every prompt counts as new, and prefills may be longer here than they were.",
        )
    if before.refused:
        yield Remark("too_long", f"{before.refused:,} requests are longer than what one worker's KV cache holds.")
    if (before.short.ttft.p50 or 0.0) > _HOPELESS_SECONDS:
        yield Remark(
            "overloaded",
            f"{outcome.workers} workers are too few for these requests on any layout: half of them wait "
            f"{before.short.ttft.p50 or 0.0:.0f} s or longer for their first token.",
        )
