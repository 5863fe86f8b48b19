"""Plots of a plan: TTFT over prompt length, TPOT and throughput over batch for a few contexts. Needs the extra ``plots``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.planning.asked import PlanOptionError
from proxy.planning.columns import Column
from roofline.plan.curves import batch_curves, prompt_curve
from roofline.plan.words import given_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png", ".pdf")
_DASHES = ("solid", "dashed", "dashdot", "dotted")  # one for each context, the last for all that are longer still
_GREY = "0.4"


def write_plots(columns: Sequence[Column], path: Path) -> None:
    """Three plots in one file, whose ending decides the format.

    `PlanOptionError` for an ending that is not known, a file that cannot be written, and if matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise PlanOptionError(f"--plot writes {', '.join(SUFFIXES)}, not {path.name!r}")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError:
        raise PlanOptionError("--plot needs matplotlib: install it with  pip install 'matplotlib>=3.9'") from None
    figure = Figure(figsize=(15, 5.2), layout="constrained")  # not pyplot: no window, no state
    first, second, third = figure.subplots(1, 3)
    _plot_prompts(first, columns)
    _plot_batches(second, third, columns)
    names = dict.fromkeys(column.plan.deployment.shape.name for column in columns)
    figure.suptitle(", ".join(names))
    try:
        figure.savefig(path)
    except OSError as error:
        raise PlanOptionError(f"--plot {path} cannot be written: {error.strerror or error}") from None


def _plot_prompts(axes: Axes, columns: Sequence[Column]) -> None:
    for place, column in enumerate(columns):
        points = prompt_curve(column.plan)
        tokens = [point.prompt_tokens for point in points]
        what_if = "" if column.plan.load is not None else " (does not fit)"
        axes.plot(tokens, [point.expected_seconds for point in points], color=f"C{place}", label=column.title + what_if)
        axes.plot(tokens, [point.floor_seconds for point in points], color=f"C{place}", linestyle="dotted")
    axes.set_title("TTFT of a request alone, nothing cached")
    axes.legend(title="expected; dotted: floor", fontsize=8, title_fontsize=8)
    _name_axes(axes, "prompt tokens", "", is_time=True)
    _mark_target(axes, columns[0].plan.question.targets.ttft_seconds)


def _plot_batches(tpot: Axes, throughput: Axes, columns: Sequence[Column]) -> None:
    curves = [(place, curve) for place, column in enumerate(columns) for curve in batch_curves(column.plan)]
    contexts = sorted({curve.context_tokens for _, curve in curves})
    dashes = {context: _DASHES[min(at, len(_DASHES) - 1)] for at, context in enumerate(contexts)}
    for place, curve in curves:
        batches = [point.batch for point in curve.points]
        colour, dash = f"C{place}", dashes[curve.context_tokens]
        tpot.plot(batches, [point.tpot_seconds for point in curve.points], color=colour, linestyle=dash)
        rates = [point.tokens_per_second for point in curve.points]
        throughput.plot(batches, rates, color=colour, linestyle=dash)
        if curve.most_sequences is not None:  # where the cache is full
            throughput.plot(batches[-1:], rates[-1:], color=colour, marker="|", markersize=9)
    for context, dash in dashes.items():
        tpot.plot([], [], color=_GREY, linestyle=dash, label=f"{context:,} tokens")
    tpot.set_title("TPOT expected, decoding only")
    tpot.legend(title="context of each request", fontsize=8, title_fontsize=8)
    throughput.set_title("Throughput expected, decoding only")
    _name_axes(tpot, "requests at once", "", is_time=True)
    _name_axes(throughput, "requests at once, up to what the cache holds", "tokens a second", is_time=False)
    _mark_target(tpot, columns[0].plan.question.targets.tpot_seconds)


def _name_axes(axes: Axes, horizontal: str, vertical: str, *, is_time: bool) -> None:
    """Logarithmic scales with numbers that people read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 - an extra

    axes.set(xscale="log", yscale="log", xlabel=horizontal, ylabel=vertical)
    for axis, is_in_seconds in ((axes.xaxis, False), (axes.yaxis, is_time)):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(_tick_of_time if is_in_seconds else _tick_of_count))
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, which="major", alpha=0.25)


def _tick_of_time(seconds: float, _place: int | None) -> str:
    return given_time(seconds)


def _tick_of_count(count: float, _place: int | None) -> str:
    return f"{count:,.6g}"


def _mark_target(axes: Axes, seconds: float | None) -> None:
    if seconds is None:
        return
    axes.axhline(seconds, color=_GREY, linewidth=0.8)
    axes.annotate(
        f"target {given_time(seconds)}",
        (0.99, seconds),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        color=_GREY,
    )
