"""What a probe's measurements say: series of points, and fits to them. Cold: prompts that nobody had seen; warm: sent again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from proxy.probing.answer import Answer, Measured
from proxy.probing.design import Experiment
from proxy.probing.steady import Steady, steady_of
from roofline.experiments.concurrency_knee import Knee, Load, concurrency_knee, waiting_from
from roofline.experiments.least_squares import Refused, Timed
from roofline.experiments.output_line import OutputLine, output_line
from roofline.experiments.prompt_curve import PromptCurve, prompt_curve

_SAME_RATIO = 0.02  # counts of one aim that differ by less are taken as one


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """So many requests at once. Figures are medians over them, in seconds; ``None``: unknown."""

    requests: int
    prompt_tokens: int | None
    output_tokens: int | None
    ttft_seconds: float | None
    worst_ttft_seconds: float | None
    tpot_seconds: float | None
    together_seconds: float | None  # TPOT while all of them were decoding
    tokens_per_second: float | None  # over the whole burst, prefills included
    peak_kv_ratio: float | None
    peak_waiting: float | None
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeries:
    """Requests at once, for one context."""

    context_tokens: int  # aimed at
    is_warm: bool
    points: tuple[LoadPoint, ...]
    knee: Knee | Refused
    waiting_from: int | None  # requests at once that no longer all ran together

    @property
    def best_tokens_per_second(self) -> float | None:
        """The most that came."""
        return max((point.tokens_per_second for point in self.points if point.tokens_per_second), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One experiment that is a curve, cold or warm."""

    is_warm: bool
    points: tuple[Timed, ...]
    prompt_tokens: int | None  # median
    cached_tokens: int | None  # median; None: not told


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSeries(Series):
    """Whole time over output length."""

    line: OutputLine | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSeries(Series):
    """TTFT over prompt length; and TPOT, which tells what the cache of one request costs."""

    curve: PromptCurve | Refused
    tpot_points: tuple[Timed, ...]
    cached_ratio: float | None  # of all prompt tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadySeries:
    """Requests kept under way, for one context; all cold."""

    context_tokens: int  # aimed at
    points: tuple[Steady, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that was found; cold before warm. Empty where an experiment was left out."""

    outputs: tuple[OutputSeries, ...]
    prompts: tuple[PromptSeries, ...]
    loads: tuple[LoadSeries, ...]
    steady: tuple[SteadySeries, ...]
    requests: int
    failed: int
    first_error: str | None
    peak_kv_ratio: float | None
    peak_kv_tokens: float | None
    kv_tokens: float | None


def find(measured: Sequence[Measured], *, kv_tokens: float | None = None, chunk_tokens: int | None = None) -> Findings:
    """Fit everything. ``kv_tokens``: what the worker's cache holds; ``chunk_tokens``: of its steps, where known."""
    both = (False, True)
    errors = [error for one in measured for error in one.errors]
    peak = max((one.peak_kv_ratio for one in measured if one.peak_kv_ratio is not None), default=None)
    return Findings(
        outputs=tuple(filter(None, (_outputs(_of(measured, Experiment.OUTPUT, is_warm), is_warm) for is_warm in both))),
        prompts=tuple(
            filter(None, (_prompts(_of(measured, Experiment.PROMPT, is_warm), is_warm, chunk_tokens) for is_warm in both))
        ),
        loads=_loads(measured),
        steady=_steady(measured),
        requests=sum(len(one.answers) for one in measured),
        failed=len(errors),
        first_error=errors[0] if errors else None,
        peak_kv_ratio=peak,
        peak_kv_tokens=None if peak is None or kv_tokens is None else peak * kv_tokens,
        kv_tokens=kv_tokens,
    )


def _of(measured: Sequence[Measured], experiment: Experiment, is_warm: bool) -> list[Measured]:
    return [one for one in measured if one.burst.experiment is experiment and one.is_warm is is_warm]


def _outputs(measured: Sequence[Measured], is_warm: bool) -> OutputSeries | None:
    if not measured:
        return None
    points = _grouped(
        (one.burst.output_tokens, Timed(answer.completion_tokens, answer.whole_seconds))
        for one, answer in _good(measured)
        if answer.completion_tokens and answer.whole_seconds
    )
    answers = [answer for _, answer in _good(measured)]
    return OutputSeries(
        is_warm=is_warm,
        points=tuple(points),
        prompt_tokens=_median(answer.prompt_tokens for answer in answers),
        cached_tokens=_median(answer.cached_tokens for answer in answers),
        line=output_line(points),
    )


def _prompts(measured: Sequence[Measured], is_warm: bool, chunk_tokens: int | None) -> PromptSeries | None:
    if not measured:
        return None
    good = [(one.burst.prompt_tokens, answer) for one, answer in _good(measured)]
    points = _grouped((aim, Timed(_prompt(aim, answer), answer.ttft_seconds)) for aim, answer in good if answer.ttft_seconds)
    paces = _grouped((aim, Timed(_prompt(aim, answer), answer.tpot_seconds)) for aim, answer in good if answer.tpot_seconds)
    cached = [(answer.cached_tokens, answer.prompt_tokens) for _, answer in good]
    known = [(hit, whole) for hit, whole in cached if hit is not None and whole]
    curve: PromptCurve | Refused
    if is_warm:
        curve = Refused("of cached prompts only the last block is computed, whatever their length")
    else:
        curve = prompt_curve(points, chunk_tokens)
    return PromptSeries(
        is_warm=is_warm,
        points=tuple(points),
        prompt_tokens=_median(answer.prompt_tokens for _, answer in good),
        cached_tokens=_median(answer.cached_tokens for _, answer in good),
        curve=curve,
        tpot_points=tuple(paces),
        cached_ratio=sum(hit for hit, _ in known) / sum(whole for _, whole in known) if known else None,
    )


def _loads(measured: Sequence[Measured]) -> tuple[LoadSeries, ...]:
    found = []
    keys = sorted(
        {(one.burst.prompt_tokens, one.is_warm) for one in measured if one.burst.experiment is Experiment.CONCURRENCY}
    )
    for context, is_warm in keys:
        own = [one for one in _of(measured, Experiment.CONCURRENCY, is_warm) if one.burst.prompt_tokens == context]
        loads = [
            Load(requests=one.burst.requests, tpot_seconds=one.together_seconds, tokens_per_second=one.tokens_per_second or 0.0)
            for one in own
            if not one.errors
        ]
        found.append(
            LoadSeries(
                context_tokens=context,
                is_warm=is_warm,
                points=tuple(_load_point(one) for one in sorted(own, key=lambda one: one.burst.requests)),
                knee=concurrency_knee(loads),
                waiting_from=waiting_from(loads),
            )
        )
    return tuple(found)


def _steady(measured: Sequence[Measured]) -> tuple[SteadySeries, ...]:
    own = _of(measured, Experiment.STEADY, is_warm=False)
    return tuple(
        SteadySeries(
            context_tokens=context,
            points=tuple(steady_of(one.answers, one.burst.requests) for one in own if one.burst.prompt_tokens == context),
        )
        for context in sorted({one.burst.prompt_tokens for one in own})
    )


def _load_point(measured: Measured) -> LoadPoint:
    good = [answer for answer in measured.answers if answer.error is None]
    firsts = [answer.ttft_seconds for answer in good if answer.ttft_seconds is not None]
    paces = [answer.tpot_seconds for answer in good if answer.tpot_seconds is not None]
    return LoadPoint(
        requests=measured.burst.requests,
        prompt_tokens=_median(answer.prompt_tokens for answer in good),
        output_tokens=_median(answer.completion_tokens for answer in good),
        ttft_seconds=median(firsts) if firsts else None,
        worst_ttft_seconds=max(firsts, default=None),
        tpot_seconds=median(paces) if paces else None,
        together_seconds=measured.together_seconds,
        tokens_per_second=measured.tokens_per_second,
        peak_kv_ratio=measured.peak_kv_ratio,
        peak_waiting=measured.peak_waiting,
        errors=len(measured.errors),
    )


def _good(measured: Iterable[Measured]) -> list[tuple[Measured, Answer]]:
    return [(one, answer) for one in measured for answer in one.answers if answer.error is None]


def _prompt(aim: int, answer: Answer) -> int:
    return aim if answer.prompt_tokens is None else answer.prompt_tokens


def _grouped(points: Iterable[tuple[int, Timed]]) -> list[Timed]:
    """One point for each aim, medians of count and time, if the counts are nearly the same; else every point by itself."""
    by_aim: dict[int, list[Timed]] = {}
    for aim, point in points:
        by_aim.setdefault(aim, []).append(point)
    grouped: list[Timed] = []
    for own in by_aim.values():
        counts = [point.count for point in own]
        if max(counts) - min(counts) <= max(1.0, _SAME_RATIO * mean(counts)):
            grouped.append(Timed(median(counts), median(point.seconds for point in own)))
        else:
            grouped += own
    return sorted(grouped, key=lambda point: point.count)


def _median(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None
