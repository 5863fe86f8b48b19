"""What a probe's findings mean, in sentences: what binds, where requests wait, and what seems to be set wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from proxy.probing.expectations import Expectation
from proxy.probing.findings import Findings, LoadSeries, OutputSeries, PromptSeries
from roofline.experiments.concurrency_knee import Knee
from roofline.experiments.least_squares import Refused
from roofline.experiments.output_line import OutputLine
from roofline.experiments.prompt_curve import PromptCurve

_PREFILL_BOUND_RATIO = 0.5  # share of the first token in the whole
_WARM_GAIN_RATIO = 0.7  # a warm TTFT above so much of the cold one gained nothing worth naming
_LEAST_WARM_TOKENS = 1000  # prompts below it are computed in a moment anyway
_FAR_RATIO = 2.0  # measured over expected: far off
_SLOW_RATIO = 1.25  # expected times are good to about 16 %
_FULL_RATIO = 0.95
_FEW_ATTENTION_RATIO = 0.02


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that is worth knowing; ``code`` is for programs."""

    code: str
    text: str


def read(findings: Findings, expectation: Expectation | None = None) -> tuple[Remark, ...]:
    """Everything, most important first within each experiment."""
    return (
        *_errors(findings),
        *(remark for series in findings.outputs for remark in _output(series)),
        *_prompts(findings.prompts),
        *_loads(findings.loads),
        *_knees(findings.loads),
        *_memory(findings),
        *(() if expectation is None else _held(findings, expectation)),
    )


def _errors(findings: Findings) -> Iterator[Remark]:
    if findings.failed:
        yield Remark("errors", f"{findings.failed} of {findings.requests} requests failed, first: {findings.first_error}.")


def _output(series: OutputSeries) -> Iterator[Remark]:
    name = _name(series.is_warm)
    if isinstance(series.line, Refused):
        yield Remark("no_line", f"Output length, {name}: no line was fitted, because {series.line.reason}.")
        return
    longest = int(series.points[-1].count)
    share = series.line.prefill_ratio(longest)
    bound = "prefill" if share > _PREFILL_BOUND_RATIO else "decode"
    even = series.line.even_tokens
    where = "" if even is None else f"; the two are even at {even:,.0f} output tokens"
    yield Remark(
        f"{bound}_bound",
        f"Output length, {name}: of a request with {longest:,} output tokens the first one takes {share:.0%}: "
        f"{bound}-bound{where}.",
    )


def _prompts(series: tuple[PromptSeries, ...]) -> Iterator[Remark]:
    cold = next((one for one in series if not one.is_warm), None)
    warm = next((one for one in series if one.is_warm), None)
    if cold is not None:
        yield from _curve(cold)
    if cold is None or warm is None or not cold.points or not warm.points:
        return
    longest, again = cold.points[-1], warm.points[-1]
    if longest.count < _LEAST_WARM_TOKENS:
        return
    ratio = again.seconds / longest.seconds
    if ratio > _WARM_GAIN_RATIO:
        told = "" if warm.cached_ratio is None else f" ({warm.cached_ratio:.0%} of prompt tokens were cached, it says)"
        yield Remark(
            "no_prefix_cache",
            f"A prompt of {longest.count:,.0f} tokens that was sent before takes {ratio:.0%} of the cold TTFT{told}: prefix "
            "caching seems to be off, or the prompt went to another worker or was evicted.",
        )
    else:
        yield Remark(
            "prefix_cache",
            f"Sent again, a prompt of {longest.count:,.0f} tokens has its first token {1 / ratio:.1f} times sooner: take "
            "capacity from the cold figures, and what users feel from the warm ones.",
        )
    if warm.cached_ratio is None:
        yield Remark(
            "cache_untold",
            "The endpoint does not say how many prompt tokens were cached: start vLLM with --enable-prompt-tokens-details.",
        )


def _curve(cold: PromptSeries) -> Iterator[Remark]:
    curve = cold.curve
    if isinstance(curve, Refused):
        yield Remark("no_curve", f"Prompt length: no curve was fitted, because {curve.reason}.")
        return
    share = curve.attention_ratio(curve.longest_tokens)
    if curve.crossing_tokens is not None and share >= _FEW_ATTENTION_RATIO:
        yield Remark(
            "attention",
            f"Prompt length: attention (the square) is {share:.0%} of TTFT at {curve.longest_tokens:,.0f} tokens, and as much "
            f"as the rest of the computing at {curve.crossing_tokens:,.0f}.",
        )
    else:
        yield Remark(
            "no_attention", f"Prompt length: attention does not show up to {curve.longest_tokens:,.0f} tokens, TTFT is a line."
        )
    if curve.chunks is not None:
        yield Remark(
            "chunking",
            f"Prompts are computed in chunks of about {curve.chunks.tokens:,} tokens (--max-num-batched-tokens); each one "
            f"after the first costs {1000 * curve.chunks.seconds.value:.1f} ms by itself.",
        )


def _loads(loads: tuple[LoadSeries, ...]) -> Iterator[Remark]:
    for series in loads:
        # Warm bursts decode together soonest, so their knee is told where there is one.
        if series.is_warm or not any(one.is_warm and one.context_tokens == series.context_tokens for one in loads):
            yield _knee(series)
        yield from _waiting(series)


def _knee(series: LoadSeries) -> Remark:
    what = f"At {series.context_tokens:,} tokens"
    if isinstance(series.knee, Refused):
        return Remark("no_knee", f"{what}: no knee, because {series.knee.reason}.")
    beyond = f", beyond the {series.knee.most_measured} that were measured" if series.knee.is_extrapolated else ""
    return Remark(
        "knee",
        f"{what}: throughput bends at about {series.knee.requests.value:.0f} requests at once{beyond}. There a step takes "
        "twice what it takes for few, and half of what throughput could ever be is reached.",
    )


def _waiting(series: LoadSeries) -> Iterator[Remark]:
    waits = series.waiting_from
    if waits is None:
        return
    what = f"At {series.context_tokens:,} tokens, {_name(series.is_warm)}"
    at = next(point for point in series.points if point.requests == waits)
    if not series.is_warm:
        yield Remark(
            "prefill_queueing",
            f"{what}: of {waits} requests at once the first ones ended before the last ones had their first token: computing "
            "prompts is what binds, and more at once only wait.",
        )
    elif at.peak_waiting:
        yield Remark(
            "queueing",
            f"{what}: of {waits} requests at once {at.peak_waiting:.0f} waited at the worker: "
            + _why_waiting(at.peak_kv_ratio),
        )
    else:
        yield Remark(
            "queueing",
            f"{what}: {waits} requests at once did not all decode together: some waited for a place (--max-num-seqs, the KV "
            "cache, or a limit in front of the worker).",
        )


def _why_waiting(kv_ratio: float | None) -> str:
    if kv_ratio is not None and kv_ratio >= _FULL_RATIO:
        return f"its KV cache was full ({kv_ratio:.0%})."
    if kv_ratio is None:
        return "the KV cache is full, or --max-num-seqs is too small."
    return f"its KV cache was {kv_ratio:.0%} full, so --max-num-seqs (or an admission limit) is what binds."


def _knees(loads: tuple[LoadSeries, ...]) -> Iterator[Remark]:
    for is_warm in (True, False):
        found = [(one.context_tokens, one.knee) for one in loads if one.is_warm is is_warm and isinstance(one.knee, Knee)]
        if len(found) >= 2:
            (short, first), (long, last) = found[0], found[-1]
            if last.requests.value < first.requests.value:
                yield Remark(
                    "knee_moves",
                    f"The knee comes earlier with longer contexts: {first.requests.value:.0f} requests at {short:,} tokens, "
                    f"{last.requests.value:.0f} at {long:,}. A cap on requests has to follow the context.",
                )
            return


def _memory(findings: Findings) -> Iterator[Remark]:
    peak = findings.peak_kv_ratio
    if peak is None:
        yield Remark(
            "metrics_untold", "No metrics page of a worker was found: KV use and queues are not known (--metrics-url)."
        )
    elif peak >= _FULL_RATIO:
        yield Remark("kv_full", f"The KV cache was {peak:.0%} full at its fullest: memory binds before the GPU does.")


def _held(findings: Findings, expectation: Expectation) -> Iterator[Remark]:
    """Measured figures beside what is expected of the GPU."""
    cold = next((one for one in findings.outputs if not one.is_warm), None)
    if cold is not None and isinstance(cold.line, OutputLine) and cold.prompt_tokens:
        longest = int(cold.points[-1].count)
        own = expectation.tpot(cold.prompt_tokens, longest)
        yield from _compared("TPOT", cold.line.tpot_seconds.value, own.floor_seconds, own.expected_seconds, _TPOT_CAUSES)
    prompts = next((one for one in findings.prompts if not one.is_warm), None)
    if prompts is not None and isinstance(prompts.curve, PromptCurve):
        longest = int(prompts.points[-1].count)
        held = expectation.ttft(longest)
        what = f"TTFT of {longest:,} tokens"
        yield from _compared(what, prompts.points[-1].seconds, held.floor_seconds, held.expected_seconds, _TTFT_CAUSES)


_TPOT_CAUSES = "eager mode, another format of the weights, a busy or throttled GPU, or another tensor parallelism than given"
_TTFT_CAUSES = "other traffic, another chunk size or GPU than given, or time spent before the worker"


def _compared(what: str, measured: float, floor: float, expected: float, causes: str) -> Iterator[Remark]:
    told = f"{what} is {1000 * measured:,.1f} ms; {1000 * expected:,.1f} ms are expected, {1000 * floor:,.1f} ms the floor"
    if measured < floor:
        yield Remark("floor_beaten", f"{told}: nothing can beat it, so what was said of GPU, model or formats is wrong.")
    elif measured > _FAR_RATIO * expected:
        yield Remark("far_from_expected", f"{told}: {measured / expected:.1f} times as long. Look for {causes}.")
    elif measured > _SLOW_RATIO * expected:
        yield Remark("slower_than_expected", f"{told}: {measured / expected:.0%} of the expectation.")
    else:
        yield Remark("as_expected", f"{told}: as it should be.")


def _name(is_warm: bool) -> str:
    return "warm" if is_warm else "cold"
