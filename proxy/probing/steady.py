"""What users get while so many requests are kept under way: each stream sends its next one as the last answer ends.

A burst's requests are all computed together; here they come one by one, as in use and from most load tools. Only the time
counts in which all streams had a request: what was sent and answered in it, and all tokens that came in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from proxy.probing.answer import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A load that was kept up. Figures are of the requests that count; ``None``: none does, or one of all failed."""

    requests: int  # under way at once
    counted: int  # sent and answered while all streams ran
    prompt_tokens: int | None  # median
    output_tokens: int | None
    ttft_seconds: float | None  # median
    tpot_seconds: float | None  # mean
    tokens_per_second: float | None  # generated for all of them, while all ran
    errors: int


def steady_of(answers: Sequence[Answer], requests: int) -> Steady:
    """From all answers of so many streams, in whatever order."""
    errors = sum(answer.error is not None for answer in answers)
    span = None if errors else full_span(answers, requests)
    inside = [] if span is None else [one for one in answers if one.sent_at >= span[0] and one.ended_at <= span[1]]
    firsts = [one.ttft_seconds for one in inside if one.ttft_seconds is not None]
    paces = [one.tpot_seconds for one in inside if one.tpot_seconds is not None]
    prompts = [one.prompt_tokens for one in inside if one.prompt_tokens is not None]
    outputs = [one.completion_tokens for one in inside if one.completion_tokens is not None]
    return Steady(
        requests=requests,
        counted=len(inside),
        prompt_tokens=round(median(prompts)) if prompts else None,
        output_tokens=round(median(outputs)) if outputs else None,
        ttft_seconds=median(firsts) if firsts else None,
        tpot_seconds=fmean(paces) if paces else None,
        tokens_per_second=None if span is None else sum(_tokens_in(one, *span) for one in answers) / (span[1] - span[0]),
        errors=errors,
    )


def full_span(answers: Sequence[Answer], requests: int) -> tuple[float, float] | None:
    """From when so many were first under way to when they last were; ``None`` if they never were."""
    changes = sorted([(one.sent_at, 1) for one in answers] + [(one.ended_at, -1) for one in answers])
    running, full = 0, []
    for at, change in changes:
        if change < 0 and running >= requests:
            full.append(at)
        running += change
        if change > 0 and running >= requests:
            full.append(at)
    return (full[0], full[-1]) if full and full[-1] > full[0] else None


def _tokens_in(answer: Answer, begin: float, end: float) -> float:
    """Of an answer's tokens those between the two instants, as if they came evenly."""
    first, last = answer.first_token_at, answer.last_token_at
    if first is None or last is None or last <= first:
        return 0.0
    return (answer.completion_tokens or 0) * max(0.0, min(last, end) - max(first, begin)) / (last - first)
