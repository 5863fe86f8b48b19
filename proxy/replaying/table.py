"""A replay for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from proxy.replaying.outcome import Outcome, Remark
from simulator.replay.layouts import Result
from simulator.replay.search import Answer

HEADS = (
    "layout",
    "within targets",
    "hit share",
    "short: TPOT P50",
    "P99",
    "P99/P50",
    "TTFT P50",
    "P99",
    "long: TPOT P50",
    "P99",
    "TTFT P50",
    "P99",
)


def print_outcome(outcome: Outcome, remarks: Sequence[Remark], console: Console) -> None:
    """What was read, all layouts, and what they mean."""
    answer, reading = outcome.answer, outcome.reading
    for line in describe(outcome):
        _say(console, line)
    if answer.search_requests < outcome.requests:
        title = f"Layouts on {answer.search_requests:,} requests from the middle of the trace"
        console.print(_table(title, compared(answer)))
        console.print(_table(f"All {outcome.requests:,} requests", _final(outcome)))
    else:
        console.print(_table("Layouts", compared(answer)))
        console.print(_table("At the boundary that is suggested", _final(outcome)))
    if reading.format == "ridgeline" and len({shape.model for shape in reading.shapes}) > 1:
        _say(console, "The records are of several models, which were replayed as one: choose one with --only-model.")
    console.print()
    for remark in remarks:
        for number, piece in enumerate(textwrap.wrap(remark.text, max(40, console.width - 2))):
            _say(console, ("- " if number == 0 else "  ") + piece)


def describe(outcome: Outcome) -> list[str]:
    """What was replayed, and the targets."""
    targets = outcome.answer.targets
    ttft = f"{1000 * targets.ttft_base_seconds:,.0f} ms"
    if targets.ttft_seconds_per_token:
        ttft += f" and {1e6 * targets.ttft_seconds_per_token:.0f} us for each prompt token"
    what = f"{outcome.requests:,} requests of {outcome.records} ({outcome.reading.format})"
    fleet = f"{outcome.workers} workers of {outcome.shape} on {outcome.gpu}"
    budget = f"output budget {outcome.answer.budget_tokens:,} tokens"
    return [
        f"{what}, {outcome.trace_seconds:,.0f} s of traffic, on {fleet}; computed in {outcome.seconds:.0f} s",
        f"targets: TPOT up to {1000 * targets.tpot_seconds:.1f} ms, TTFT up to {ttft}; {budget}",
    ]


def compared(answer: Answer) -> list[Result]:
    """Every layout that was tried on a part of the trace, that of the records first."""
    return [*([] if answer.recorded is None else [answer.recorded]), *answer.policies, *answer.tried]


def cells_of(result: Result) -> list[str]:
    """One row."""
    short, long = result.short, result.long
    ratio = short.stall_ratio
    return [
        result.layout.name,
        f"{result.met_ratio:.1%}",
        "-" if result.cached_ratio is None else f"{result.cached_ratio:.0%}",
        *(_time(short.tpot.p50), _time(short.tpot.p99), "-" if ratio is None else f"{ratio:.2f}"),
        *(_time(short.ttft.p50), _time(short.ttft.p99)),
        *(_time(long.tpot.p50), _time(long.tpot.p99), _time(long.ttft.p50), _time(long.ttft.p99)),
    ]


def _final(outcome: Outcome) -> list[Result]:
    answer = outcome.answer
    return [answer.before] if answer.after is None else [answer.before, answer.after]


def _table(title: str, results: Sequence[Result]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="left" if number == 0 else "right")
    for result in results:
        table.add_row(*cells_of(result))
    return table


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds >= 10.0:
        return f"{seconds:,.0f} s"
    return f"{seconds:.2f} s" if seconds >= 1.0 else f"{1000 * seconds:.1f} ms"


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
