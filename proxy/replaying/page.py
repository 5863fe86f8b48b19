"""A replay as one HTML file: what is suggested, how it depends on the boundary, and how long the requests were."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.replaying.outcome import Outcome, Remark
from proxy.replaying.table import HEADS, cells_of, compared, describe
from proxy.reporting.charts import Chart, Line, Mark, Stroke
from proxy.reporting.page import Section, Sheet
from simulator.replay.layouts import Result
from simulator.replay.shapes import total_tokens

_SHARES = 60  # points of a distribution


def title_of(outcome: Outcome) -> str:
    """What the page is about."""
    return f"Replay of {outcome.records}"


def sections_of(outcome: Outcome, remarks: Sequence[Remark]) -> list[Section]:
    """The page's parts."""
    answer = outcome.answer
    final = [answer.before] if answer.after is None else [answer.before, answer.after]
    marks = []
    if answer.after is not None and answer.after.layout.boundary_tokens is not None:
        marks = [Mark(answer.after.layout.boundary_tokens, "suggested")]
    charts = [_lengths(outcome, marks)]
    if answer.tried:
        charts += [_met(answer.tried, marks), _stalls(answer.tried, marks)]
    return [
        Section(title="What it means", sentences=[remark.text for remark in remarks]),
        Section(title="All requests", sentences=describe(outcome), sheet=_sheet(final)),
        Section(title="How it depends on the boundary", charts=charts),
        Section(
            title=f"Every layout that was tried, on {answer.search_requests:,} requests",
            sheet=_sheet(compared(answer)),
        ),
    ]


def _sheet(results: Sequence[Result]) -> Sheet:
    return Sheet(heads=HEADS, rows=[cells_of(result) for result in results])


def _lengths(outcome: Outcome, marks: Sequence[Mark]) -> Chart:
    totals = sorted(total_tokens(shape, outcome.answer.budget_tokens) for shape in outcome.reading.shapes)
    last = len(totals) - 1
    shares = [number / _SHARES for number in range(_SHARES + 1)]
    return Chart(
        title="How long requests are",
        x_name="prompt and output budget, tokens",
        y_name="share of requests up to it",
        lines=[Line(name="requests", points=[(float(totals[round(share * last)]), share) for share in shares])],
        marks=marks,
        is_x_log=True,
    )


def _by_short(tried: Sequence[Result]) -> dict[int, list[Result]]:
    found: dict[int, list[Result]] = {}
    for result in tried:
        found.setdefault(result.layout.parts[0].workers, []).append(result)
    return found


def _met(tried: Sequence[Result], marks: Sequence[Mark]) -> Chart:
    lines = [
        Line(
            name=f"{short} workers below",
            points=[(float(one.layout.boundary_tokens or 1), one.met_ratio) for one in results],
            stroke=Stroke.POINTS if len(results) == 1 else Stroke.SOLID,
            colour=number,
        )
        for number, (short, results) in enumerate(sorted(_by_short(tried).items()))
    ]
    return Chart(
        title="Requests within the targets",
        x_name="boundary, tokens",
        y_name="share of all requests",
        lines=lines,
        marks=marks,
        is_x_log=True,
    )


def _stalls(tried: Sequence[Result], marks: Sequence[Mark]) -> Chart:
    lines = [
        Line(
            name=f"{short} workers below",
            points=[(float(one.layout.boundary_tokens or 1), one.short.stall_ratio or 0.0) for one in results],
            stroke=Stroke.POINTS if len(results) == 1 else Stroke.SOLID,
            colour=number,
        )
        for number, (short, results) in enumerate(sorted(_by_short(tried).items()))
    ]
    return Chart(
        title="TPOT P99 over P50 below the boundary",
        x_name="boundary, tokens",
        y_name="ratio",
        lines=lines,
        marks=marks,
        is_x_log=True,
    )
