"""A probe as one HTML file: each curve beside what was fitted, expected and the floor, the remarks, and all points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from proxy.probing.expectations import Expectation, Pair
from proxy.probing.findings import LoadSeries, OutputSeries, PromptSeries, SteadySeries
from proxy.probing.outcome import Outcome
from proxy.reporting.charts import Chart, Line, Mark, Stroke
from proxy.reporting.page import Section, Sheet
from roofline.experiments.concurrency_knee import Knee
from roofline.experiments.least_squares import Timed
from roofline.experiments.output_line import OutputLine
from roofline.experiments.prompt_curve import PromptCurve

_BETWEEN = 12  # points of a curve between two measured ones


def title_of(outcome: Outcome) -> str:
    """What the page is about."""
    return f"{outcome.model} at {outcome.url}"


def sections_of(outcome: Outcome) -> list[Section]:
    """The page's parts: what it means first, then each experiment."""
    findings = outcome.findings
    sections = [
        Section(title="What it means", sentences=[remark.text for remark in outcome.remarks]),
        Section(title="How it was measured", sentences=_how(outcome)),
    ]
    if findings.outputs:
        sections.append(_outputs(outcome.expectation, findings.outputs))
    if findings.prompts:
        sections.append(_prompts(outcome.expectation, findings.prompts))
    if findings.loads:
        sections.append(_loads(outcome.expectation, findings.loads))
    if findings.steady:
        sections.append(_steady(findings.steady))
    return sections


def _how(outcome: Outcome) -> list[str]:
    started = datetime.fromtimestamp(outcome.started_unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    pinned = ", ".join(f"{name} {value}" for name, value in outcome.sampling.items() if name != "refused")
    refused = outcome.sampling["refused"]
    said = [
        f"{outcome.findings.requests} requests to {outcome.path} in {outcome.seconds:.0f} s, from {started}.",
        f"Sampling: {pinned or 'nothing pinned'}.",
        "Cold: prompts that nobody had sent before. Warm: the same ones sent again.",
    ]
    if isinstance(refused, list) and refused:
        said.append(f"The endpoint refuses {', '.join(map(str, refused))}.")
    if outcome.ended_in_words:
        said.append(f"It was {outcome.ended_in_words}.")
    if outcome.left_out:
        said.append(f"Not measured: {'; '.join(outcome.left_out)}.")
    if outcome.expectation is not None:
        deployment = outcome.expectation.deployment
        said.append(
            f"Floor and expectation are of {deployment.shape.name} on {deployment.parallelism.gpus} x {deployment.gpu.id}, "
            f"alone, with chunks of {outcome.expectation.chunk_tokens:,} tokens."
        )
    return said


def _outputs(held: Expectation | None, both: Sequence[OutputSeries]) -> Section:
    lines: list[Line] = []
    for one in both:
        colour, name = _look(one.is_warm)
        lines.append(Line(name=f"{name}, measured", points=_pairs(one.points), stroke=Stroke.POINTS, colour=colour))
        if isinstance(one.line, OutputLine):
            lines.append(Line(name=f"{name}, fitted", points=_curve(one.points, one.line.seconds), colour=colour))
    cold = both[0]
    prompt = cold.prompt_tokens or 1
    if held is not None:
        lines += _limits(cold.points, lambda tokens: held.whole(prompt, tokens, cold.cached_tokens or 0), "cold")
    title = f"Whole time over output length, prompt of {prompt:,} tokens"
    return Section(
        title="Output length",
        charts=[Chart(title=title, x_name="output tokens", y_name="seconds", lines=lines)],
        sheet=_sheet("output tokens", [(_look(one.is_warm)[1], one.points) for one in both]),
    )


def _prompts(held: Expectation | None, both: Sequence[PromptSeries]) -> Section:
    lines: list[Line] = []
    paces: list[Line] = []
    marks: list[Mark] = []
    for one in both:
        colour, name = _look(one.is_warm)
        lines.append(Line(name=f"{name}, measured", points=_pairs(one.points), stroke=Stroke.POINTS, colour=colour))
        paces.append(Line(name=f"{name}, measured", points=_pairs(one.tpot_points), stroke=Stroke.POINTS, colour=colour))
        if isinstance(one.curve, PromptCurve):
            lines.append(Line(name=f"{name}, fitted", points=_curve(one.points, one.curve.seconds), colour=colour))
            if one.curve.chunks is not None:
                marks.append(Mark(one.curve.chunks.tokens, f"chunks of {one.curve.chunks.tokens:,}"))
    cold = both[0]
    if held is not None and not cold.is_warm:
        lines += _limits(cold.points, held.ttft, "cold")
        paces += _limits(cold.points, lambda tokens: held.tpot(tokens, 64), "alone")
    return Section(
        title="Prompt length",
        charts=[
            Chart(title="TTFT over prompt length", x_name="prompt tokens", y_name="seconds", lines=lines, marks=marks),
            Chart(title="TPOT over prompt length", x_name="prompt tokens", y_name="seconds", lines=paces),
        ],
        sheet=_sheet("prompt tokens", [(f"TTFT, {_look(one.is_warm)[1]}", one.points) for one in both]),
    )


def _loads(held: Expectation | None, all_series: Sequence[LoadSeries]) -> Section:
    tpot: list[Line] = []
    rates: list[Line] = []
    firsts: list[Line] = []
    marks: list[Mark] = []
    rows: list[list[str]] = []
    for colour, series in enumerate(all_series):
        name = f"{series.context_tokens:,} tokens, {_look(series.is_warm)[1]}"
        together = [(float(at.requests), at.together_seconds) for at in series.points if at.together_seconds is not None]
        tpot.append(Line(name=name, points=together, stroke=Stroke.POINTS, colour=colour))
        knee = series.knee
        if isinstance(knee, Knee):
            line = [(n, knee.shared_seconds.value + knee.own_seconds.value * n) for n, _ in together]
            tpot.append(Line(name=f"{name}, fitted", points=line, colour=colour))
            if series.is_warm:
                marks.append(Mark(knee.requests.value, f"knee at {series.context_tokens:,}"))
        if held is not None and series.is_warm:
            expected = [
                (float(at.requests), held.tpot(at.prompt_tokens, at.output_tokens or 2, at.requests).expected_seconds)
                for at in series.points
                if at.prompt_tokens
            ]
            tpot.append(Line(name=f"{name}, expected", points=expected, stroke=Stroke.DASHED, colour=colour))
        measured = [(float(at.requests), at.tokens_per_second) for at in series.points if at.tokens_per_second is not None]
        rates.append(Line(name=name, points=measured, colour=colour))
        waits = [(float(at.requests), at.ttft_seconds) for at in series.points if at.ttft_seconds is not None]
        firsts.append(Line(name=name, points=waits, colour=colour))
        rows += [
            [
                name,
                f"{at.requests}",
                _seconds(at.ttft_seconds),
                _seconds(at.tpot_seconds),
                _seconds(at.together_seconds),
                "-" if at.tokens_per_second is None else f"{at.tokens_per_second:,.0f}",
                "-" if at.peak_kv_ratio is None else f"{at.peak_kv_ratio:.0%}",
                f"{at.errors}",
            ]
            for at in series.points
        ]
    across = "requests at once"
    return Section(
        title="Requests at once",
        charts=[
            Chart(
                title="TPOT while all decode together", x_name=across, y_name="seconds", lines=tpot, marks=marks, is_x_log=True
            ),
            Chart(title="Throughput, prefills included", x_name=across, y_name="tokens a second", lines=rates, is_x_log=True),
            Chart(title="TTFT, median", x_name=across, y_name="seconds", lines=firsts, is_x_log=True, is_y_log=True),
        ],
        sheet=Sheet(
            heads=["", "at once", "TTFT", "TPOT", "decoding together", "tokens/s", "KV peak", "failed"],
            rows=rows,
        ),
    )


def _steady(all_series: Sequence[SteadySeries]) -> Section:
    return Section(
        title="Requests kept under way",
        sentences=["Each stream sends its next request as the last answer ends. All prompts are cold."],
        sheet=Sheet(
            heads=["prompt", "under way", "TTFT", "TPOT", "tokens/s", "requests that count", "failed"],
            rows=[
                [
                    f"{series.context_tokens:,}",
                    f"{at.requests}",
                    _seconds(at.ttft_seconds),
                    _seconds(at.tpot_seconds),
                    "-" if at.tokens_per_second is None else f"{at.tokens_per_second:,.0f}",
                    f"{at.counted}",
                    f"{at.errors}",
                ]
                for series in all_series
                for at in series.points
            ],
        ),
    )


def _limits(points: Sequence[Timed], limit: Callable[[int], Pair], what: str) -> list[Line]:
    """What is expected, and the floor, over the measured range."""
    return [
        Line(
            name=f"expected, {what}",
            points=_curve(points, lambda tokens: limit(round(tokens)).expected_seconds),
            stroke=Stroke.DASHED,
            colour=2,
        ),
        Line(
            name=f"floor, {what}",
            points=_curve(points, lambda tokens: limit(round(tokens)).floor_seconds),
            stroke=Stroke.DOTTED,
            colour=2,
        ),
    ]


def _sheet(head: str, columns: Sequence[tuple[str, Sequence[Timed]]]) -> Sheet:
    counts = sorted({point.count for _, points in columns for point in points})
    found = [{point.count: point.seconds for point in points} for _, points in columns]
    return Sheet(
        heads=[head, *(name for name, _ in columns)],
        rows=[[f"{count:,.0f}", *(_seconds(own.get(count)) for own in found)] for count in counts],
    )


def _pairs(points: Sequence[Timed]) -> list[tuple[float, float]]:
    return [(point.count, point.seconds) for point in points]


def _curve(points: Sequence[Timed], seconds: Callable[[float], float]) -> list[tuple[float, float]]:
    """Over the measured range, with points between the measured ones."""
    counts = [point.count for point in points]
    if len(counts) < 2:
        return [(count, seconds(count)) for count in counts]
    spread = [low + (high - low) * step / _BETWEEN for low, high in pairwise(counts) for step in range(_BETWEEN)]
    return [(count, seconds(count)) for count in (*spread, counts[-1])]


def _look(is_warm: bool) -> tuple[int, str]:
    return (1, "warm") if is_warm else (0, "cold")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s" if value >= 1 else f"{1000 * value:.2f} ms"
