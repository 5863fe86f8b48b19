"""A probe for people: a table for each experiment, and what it means."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from proxy.probing.findings import LoadSeries, OutputSeries, PromptSeries, SteadySeries
from proxy.probing.outcome import Outcome, printable
from roofline.experiments.least_squares import Estimated, Refused

_UNKNOWN = "-"


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Tables, one for each experiment that has points, and the remarks."""
    findings = outcome.findings
    pinned = ", ".join(f"{name} {value}" for name, value in outcome.sampling.items() if name != "refused")
    _say(console, f"{outcome.model} at {outcome.url}{outcome.path}: {findings.requests} requests in {outcome.seconds:.0f} s")
    _say(console, f"sampling: {pinned or 'nothing pinned'}")
    if refused := outcome.sampling["refused"]:
        _say(console, f"the endpoint refuses {', '.join(map(str, refused))}" if isinstance(refused, list) else "")
    if not outcome.has_exact_outputs:
        _say(console, "answers end where the model ends them: output lengths are those that came, not those asked for")
    if not outcome.counts_prompts:
        _say(console, "the endpoint counts no tokens: prompt lengths are guesses (a token a word)")
    if outcome.ended_in_words:
        _say(console, f"{outcome.ended_in_words}; not measured: {'; '.join(outcome.left_out) or 'nothing'}")
    elif outcome.left_out:
        _say(console, f"left out: {'; '.join(outcome.left_out)}")
    if findings.outputs:
        console.print(_outputs(outcome, findings.outputs))
    if findings.prompts:
        console.print(_prompts(outcome, findings.prompts))
    for series in findings.loads:
        console.print(_loads(outcome, series))
    for steady in findings.steady:
        console.print(_steady(steady))
    for line in _memory(outcome):
        _say(console, line)
    console.print()
    for remark in outcome.remarks:
        for number, piece in enumerate(textwrap.wrap(remark.text, max(40, console.width - 2))):
            _say(console, ("- " if number == 0 else "  ") + piece)


def _outputs(outcome: Outcome, both: Sequence[OutputSeries]) -> Table:
    held = outcome.expectation
    table = _table(
        f"Whole time against output length, prompt of {both[0].prompt_tokens or 0:,} tokens",
        ["output tokens", *(_name(one.is_warm) for one in both), *(["expected, cold", "floor"] if held else [])],
    )
    for count in sorted({point.count for one in both for point in one.points}):
        cells = [f"{count:,.0f}", *(_at(one.points, count) for one in both)]
        if held is not None:
            pair = held.whole(both[0].prompt_tokens or 1, int(count))
            cells += [_time(pair.expected_seconds), _time(pair.floor_seconds)]
        table.add_row(*cells)
    lines = []
    for one in both:
        if isinstance(one.line, Refused):
            lines.append(f"{_name(one.is_warm)}: no line: {one.line.reason}")
        else:
            lines.append(
                f"{_name(one.is_warm)}: {_estimate(one.line.ttft_seconds)} + {_estimate(one.line.tpot_seconds)} "
                f"x (output - 1), R2 {one.line.r_squared:.4f}"
            )
    table.caption = "\n".join(lines)
    return table


def _prompts(outcome: Outcome, both: Sequence[PromptSeries]) -> Table:
    held = outcome.expectation
    table = _table(
        "TTFT against prompt length",
        [
            "prompt tokens",
            *(_name(one.is_warm) for one in both),
            *(["expected, cold", "floor, cold"] if held else []),
            "TPOT there",
        ],
    )
    cold = both[0]
    for count in sorted({point.count for one in both for point in one.points}):
        cells = [f"{count:,.0f}", *(_at(one.points, count) for one in both)]
        if held is not None:
            pair = held.ttft(int(count))
            cells += [_time(pair.expected_seconds), _time(pair.floor_seconds)]
        table.add_row(*cells, _at(cold.tpot_points, count))
    if isinstance(cold.curve, Refused):
        table.caption = f"{_name(cold.is_warm)}: no curve: {cold.curve.reason}"
    else:
        curve = cold.curve
        jump = ""
        if curve.chunks is not None:
            jump = f" + {_estimate(curve.chunks.seconds)} for each further chunk of {curve.chunks.tokens:,}"
        table.caption = (
            f"{_name(cold.is_warm)}: {_estimate(curve.base_seconds)} + {_small(curve.linear_seconds, 1e6, 'us')} x S + "
            f"{_small(curve.quadratic_seconds, 1e9, 'ns')} x S^2{jump}, off by {curve.error_ratio:.1%}"
        )
    return table


def _loads(outcome: Outcome, series: LoadSeries) -> Table:
    held = outcome.expectation
    table = _table(
        f"Requests at once, {series.context_tokens:,} tokens, {_name(series.is_warm)}",
        [
            "at once",
            "TTFT",
            "worst",
            "TPOT",
            "decoding together",
            *(["expected", "floor"] if held else []),
            "tokens/s",
            "KV peak",
            "waiting",
        ],
    )
    for point in series.points:
        cells = [
            f"{point.requests}" + (f" ({point.errors} failed)" if point.errors else ""),
            _time(point.ttft_seconds),
            _time(point.worst_ttft_seconds),
            _time(point.tpot_seconds),
            _time(point.together_seconds),
        ]
        if held is not None:
            pair = held.tpot(point.prompt_tokens or series.context_tokens, point.output_tokens or 2, point.requests)
            cells += [_time(pair.expected_seconds), _time(pair.floor_seconds)]
        table.add_row(
            *cells,
            _UNKNOWN if point.tokens_per_second is None else f"{point.tokens_per_second:,.0f}",
            _UNKNOWN if point.peak_kv_ratio is None else f"{point.peak_kv_ratio:.0%}",
            _UNKNOWN if point.peak_waiting is None else f"{point.peak_waiting:.0f}",
        )
    if isinstance(series.knee, Refused):
        table.caption = f"no knee: {series.knee.reason}"
    else:
        knee = series.knee
        table.caption = (
            f"knee at {knee.requests.value:.1f} ± {knee.requests.margin:.1f} requests: a step costs "
            f"{_estimate(knee.shared_seconds)} + {_estimate(knee.own_seconds)} for each"
        )
    return table


def _steady(series: SteadySeries) -> Table:
    table = _table(
        f"Requests kept under way, {series.context_tokens:,} tokens, cold",
        ["under way", "TTFT", "TPOT", "tokens/s", "requests that count"],
    )
    for point in series.points:
        table.add_row(
            f"{point.requests}" + (f" ({point.errors} failed)" if point.errors else ""),
            _time(point.ttft_seconds),
            _time(point.tpot_seconds),
            _UNKNOWN if point.tokens_per_second is None else f"{point.tokens_per_second:,.0f}",
            f"{point.counted}",
        )
    return table


def _memory(outcome: Outcome) -> Iterator[str]:
    findings = outcome.findings
    if findings.peak_kv_ratio is None:
        return
    text = f"KV cache: {findings.peak_kv_ratio:.0%} at its fullest"
    if findings.kv_tokens is not None and findings.peak_kv_tokens is not None:
        text += f", {findings.peak_kv_tokens:,.0f} of {findings.kv_tokens:,.0f} tokens"
        if outcome.expectation is not None:
            each = outcome.expectation.deployment.kv_bytes_per_token
            text += f", {findings.peak_kv_tokens * each / 1e9:,.1f} of {findings.kv_tokens * each / 1e9:,.1f} GB"
    if outcome.expectation is not None:
        text += f"; weights {outcome.expectation.deployment.weight_bytes / 1e9:,.1f} GB"
    yield text


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False, title_style="bold")
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _at(points: Sequence[object], count: float) -> str:
    found = next((point for point in points if getattr(point, "count", None) == count), None)
    return _time(getattr(found, "seconds", None))


def _estimate(found: Estimated) -> str:
    return f"{_time(found.value)} (± {_time(found.margin)})"


def _small(found: Estimated, factor: float, unit: str) -> str:
    return f"{found.value * factor:.3g} {unit} (± {found.margin * factor:.2g})"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    if abs(seconds) >= 10.0:
        return f"{seconds:,.1f} s"
    milliseconds = 1000.0 * seconds
    return f"{milliseconds:,.0f} ms" if abs(milliseconds) >= 100 else f"{milliseconds:.3g} ms"


def _name(is_warm: bool) -> str:
    return "warm" if is_warm else "cold"


def _say(console: Console, text: str) -> None:
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
