"""Warnings of a plan about load: more at once than there is room for, more than can be served in time, and head-room."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from roofline.capacity.targets import Verdict
from roofline.plan.plan import Plan
from roofline.plan.question import Origin
from roofline.plan.warning import PlanWarning, WarningCode, note, warning
from roofline.plan.words import given_time, several, time_text


def load_warnings(plan: Plan) -> Iterator[PlanWarning]:
    """What was asked for and cannot be kept. Nothing if not one request fits: then there is no load."""
    if plan.load is None:
        return
    yield from _concurrency(plan)
    yield from _rate(plan)
    yield from _ttft(plan)
    yield from _tpot(plan)
    yield from _ceiling(plan)


def reserve_notes(plan: Plan) -> Iterator[PlanWarning]:
    """Head-room: too little of it, or more than anyone notices. Only if a load was asked for."""
    if plan.load is None or not _is_asked(plan):
        return
    found, latency, targets = plan.load.capacity, plan.latency, plan.question.targets
    recommended = found.recommended_concurrency
    if max(1, recommended) < plan.concurrency <= found.max_concurrency:
        yield note(
            WarningCode.ABOVE_RECOMMENDED,
            f"{plan.concurrency:,.0f} requests at once lie between {found.recommended_ratio:.0%} and {found.hard_ratio:.0%} "
            "of the capacity: little head-room for bursts",
            f"{recommended:,} a worker are recommended",
        )
    if plan.running > plan.knee.batch:
        yield note(
            WarningCode.BEYOND_KNEE,
            f"{plan.running:,.0f} requests at once are beyond the knee ({plan.knee.batch:,.0f} at this context): "
            "each further one slows all and brings less than a quarter of what the first one brought",
        )
    if latency is None or latency.tpot_seconds is None or recommended <= plan.concurrency:
        return
    if targets.tpot_verdict(latency.tpot_seconds) is Verdict.NO_GAIN:
        yield note(
            WarningCode.FASTER_THAN_NEEDED,
            f"TPOT of {time_text(latency.tpot_seconds)} is faster than anyone notices "
            f"(below {given_time(targets.tpot_no_gain_seconds or 0.0)}): there is room for more",
            f"{recommended:,} requests at once are recommended",
        )


_LIMIT_WORDS = {
    "kv_cache": "the KV cache",
    "tpot_target": "the TPOT target",
    "knee": "the knee",
    "max_sequences": "--max-num-seqs",
}


def _is_asked(plan: Plan) -> bool:
    """Whether a number of requests at once was asked for, directly or by a rate."""
    return plan.origin is not Origin.ASSUMED


def _concurrency(plan: Plan) -> Iterator[PlanWarning]:
    if not _is_asked(plan) or plan.load is None:
        return
    asked, held = plan.concurrency, plan.max_concurrency
    limit = plan.budget.reserve.limits.sequences * plan.deployment.parallelism.data
    if asked > held:
        workers = ceil(asked / max(1, plan.load.capacity.recommended_concurrency))
        yield warning(
            WarningCode.CONCURRENCY_ABOVE_KV,
            f"{asked:,.0f} requests at once are more than the {held:,} of {plan.question.workload.total_tokens:,} tokens "
            "that the KV cache holds: the others wait",
            f"{several(workers, 'worker')} at the recommended load, a narrower cache, or shorter requests",
        )
    elif asked > limit:
        text = f"{asked:,.0f} requests at once are more than the {limit:,} that may run (--max-num-seqs): the others wait"
        yield warning(WarningCode.CONCURRENCY_ABOVE_SEQUENCES, text, "a larger --max-num-seqs")


def _ceiling(plan: Plan) -> Iterator[PlanWarning]:
    """Too little head-room, unless more than there is room for was asked for, which is told already."""
    load = plan.load
    if load is None or not _is_asked(plan) or plan.concurrency > plan.running:
        return
    found, at_rate = load.capacity, load.at_rate
    is_endless = plan.origin is Origin.RATE and at_rate is not None and at_rate.steady is None
    if not is_endless and plan.concurrency > max(1, found.max_concurrency):
        yield warning(
            WarningCode.ABOVE_CEILING,
            f"{plan.concurrency:,.0f} requests at once are more than {found.hard_ratio:.0%} of the capacity "
            f"({found.theoretical_sequences:,.0f}, set by {_LIMIT_WORDS[found.binds]}): lengths vary, prefills come in bursts",
            f"at most {found.max_concurrency:,} a worker, better {found.recommended_concurrency:,}",
        )


def _rate(plan: Plan) -> Iterator[PlanWarning]:
    load, question = plan.load, plan.question
    if load is None or question.rate_per_second is None:
        return
    most, each = load.saturation.rate_per_second, question.rate_per_second / question.workers
    if each > most:
        cold = " while its prefix cache is cold" if question.workload.cached_tokens else ""
        remedy = f"{several(load.workers_needed, 'worker')} at the recommended load" if load.workers_needed else ""
        yield warning(
            WarningCode.RATE_ABOVE_SATURATION,
            f"{each:.3g} requests a second are more than the {most:.3g} that a worker serves at most{cold}: "
            "the queue grows without end",
            remedy,
        )


def _ttft(plan: Plan) -> Iterator[PlanWarning]:
    latency, targets = plan.latency, plan.question.targets
    if latency is None:
        return
    if latency.ttft_seconds is None:
        yield warning(WarningCode.TTFT_MISSED, "prefills alone take all the time: first tokens come later and later")
    elif targets.ttft_verdict(latency.ttft_seconds) is Verdict.MISSED:
        is_missed_alone = targets.ttft_verdict(plan.prefill.limit.expected_seconds) is Verdict.MISSED
        remedy = "shorter prompts, a warm prefix, or more GPUs" if is_missed_alone else "fewer requests at once"
        text = _missed("TTFT", latency.ttft_seconds, targets.ttft_seconds, targets.name)
        yield warning(WarningCode.TTFT_MISSED, text + _even_alone(plan, is_missed_alone), remedy)


def _tpot(plan: Plan) -> Iterator[PlanWarning]:
    latency, targets = plan.latency, plan.question.targets
    if latency is None or plan.load is None or latency.tpot_seconds is None:
        return
    if targets.tpot_verdict(latency.tpot_seconds) is Verdict.MISSED:
        is_missed_alone = targets.tpot_verdict(plan.decode.alone.expected_seconds) is Verdict.MISSED
        fewer = f"{plan.load.capacity.recommended_concurrency:,} requests at once are recommended"
        remedy = "narrower weights, or more GPUs" if is_missed_alone else fewer
        text = _missed("TPOT", latency.tpot_seconds, targets.tpot_seconds, targets.name)
        yield warning(WarningCode.TPOT_MISSED, text + _even_alone(plan, is_missed_alone), remedy)


def _missed(figure: str, seconds: float, target: float | None, name: str) -> str:
    return f"{figure} of {time_text(seconds)} misses the target of {given_time(target or 0.0)} ({name})"


def _even_alone(plan: Plan, is_missed_alone: bool) -> str:
    return ", even for a request alone" if is_missed_alone and plan.running > 1 else ""
