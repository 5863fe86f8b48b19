"""`ridgeline plan`: what a model on some GPUs can do, on a sheet, as JSON, and as plots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from proxy.config.errors import ConfigError
from proxy.planning.asked import Asked, PlanOptionError
from proxy.planning.columns import Column, columns_of

_PIPED_WIDTH = 120  # columns when the output is no terminal
WORKS, NOTHING_WORKS, WRONG_OPTIONS = 0, 1, 2


def show(
    asked: Asked,
    environ: Mapping[str, str],
    *,
    as_json: bool,
    explains: bool,
    plot: Path | None,
    console: Console,
) -> int:
    """Print the plan. Returns the exit status: 0, or 1 if no column can serve one such request, or 2 for wrong options."""
    try:
        found = columns_of(asked, environ)
        if plot is not None:
            _plot(found.columns, plot)
    except (PlanOptionError, ConfigError) as error:
        return _refused(str(error))
    for notice in found.notices:
        _to_stderr(f"note: {notice}: left out")
    if as_json:
        from proxy.planning.as_json import document_of  # noqa: PLC0415 - one of the two is needed

        console.file.write(json.dumps(document_of(found.columns), indent=2, allow_nan=False) + "\n")
    else:
        from proxy.planning.sheet import print_sheet  # noqa: PLC0415

        if not console.is_terminal and "COLUMNS" not in environ:
            console.width = _PIPED_WIDTH
        print_sheet(found.columns, console, explains=explains)
    if plot is not None:
        _to_stderr(f"plots: {plot}")
    return WORKS if any(column.plan.works for column in found.columns) else NOTHING_WORKS


def _plot(columns: tuple[Column, ...], path: Path) -> None:
    from proxy.planning.plots import write_plots  # noqa: PLC0415 - needs an extra

    write_plots(columns, path)


def _refused(message: str) -> int:
    _to_stderr(f"error: {message}")
    return WRONG_OPTIONS


def _to_stderr(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(text, markup=False, highlight=False)
