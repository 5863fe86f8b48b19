"""A plan on paper: sections of lines for one worker, or several side by side, readable on 80 columns and without colours."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from proxy.planning.columns import Column
from proxy.planning.line import WHAT_IF, Line, Section
from proxy.planning.lines_facts import facts
from proxy.planning.lines_load import changes, load
from proxy.planning.lines_memory import cache, memory, weights
from proxy.planning.lines_prefill import prefill
from proxy.planning.lines_short import in_short
from proxy.planning.lines_times import answer, decode
from roofline.plan.warning import PlanWarning, Severity
from roofline.plan.warnings import warnings_of

_SECTIONS = (in_short, facts, weights, cache, memory, decode, prefill, answer, load, changes)
_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_LABEL_WIDTH = 27
_VALUE_WIDTH = 25
_LEAST_HOW_WIDTH = 36  # with less, the calculation goes to a line of its own
_LEAST_CELL_WIDTH, _MOST_CELL_WIDTH = 15, 34


def sections_of(column: Column) -> tuple[Section, ...]:
    """The three numbers, and sections 0 to 8 of one worker."""
    return tuple(section(column) for section in _SECTIONS)


def print_sheet(columns: Sequence[Column], console: Console, *, explains: bool) -> None:
    """One worker in full; several side by side, and each in full behind if ``explains``."""
    if len(columns) > 1:
        _print_comparison(columns, console)
        if not explains:
            console.print()
            _print_wrapped("How each figure comes about: --explain, or one worker at a time.", console, 0)
            return
    for column in columns:
        if len(columns) > 1:
            console.print()
        _print_one(column, console, explains=explains)


def _print_one(column: Column, console: Console, *, explains: bool) -> None:
    found = warnings_of(column.plan)
    _print_wrapped(f"{column.plan.deployment.shape.name} on {column.title}", console, 0, style="bold")
    for told in found:
        _print_warning(told, console, remedy=False)
    for section in sections_of(column):
        console.print()
        _print_wrapped(section.title, console, 0, style="bold")
        for line in section.lines:
            _print_line(line, console, explains=explains)
    console.print()
    _print_wrapped("9 Warnings, what binds first at the top", console, 0, style="bold")
    for told in found:
        _print_warning(told, console, remedy=True)
    if not found:
        _print(console, Text("  none"))


def _print_line(line: Line, console: Console, *, explains: bool) -> None:
    how_width = console.width - _LABEL_WIDTH - _VALUE_WIDTH - 6
    head = Text(f"  {line.label:<{_LABEL_WIDTH}}")
    is_beside = how_width >= _LEAST_HOW_WIDTH and len(line.value) <= _VALUE_WIDTH and len(line.label) <= _LABEL_WIDTH
    if is_beside and line.how:
        first, *rest = textwrap.wrap(line.how, how_width) or [""]
        head.append(f"  {line.value:<{_VALUE_WIDTH}}", style="bold")
        _print(console, head.append(f"  {first}", style="dim"))
        indent = " " * (_LABEL_WIDTH + _VALUE_WIDTH + 6)
        for text in rest:
            _print(console, Text(indent + text, style="dim"))
    else:
        _print_wide(head, line, console)
    if explains:
        for mark, text in (("=", line.formula), ("from", line.source)):
            if text:
                _print_wrapped(f"{mark} {text}", console, 6)


def _print_wide(head: Text, line: Line, console: Console) -> None:
    value_width = console.width - _LABEL_WIDTH - 4
    if len(line.label) > _LABEL_WIDTH:
        _print(console, head)
        head = Text(" " * (_LABEL_WIDTH + 2))
    first, *rest = textwrap.wrap(line.value, max(20, value_width)) or [""]
    _print(console, head.append(f"  {first}", style="bold"))
    for text in rest:
        _print(console, Text(" " * (_LABEL_WIDTH + 4) + text, style="bold"))
    _print_wrapped(line.how, console, 6)


def _print_wrapped(text: str, console: Console, indent: int, *, style: str = "dim") -> None:
    for piece in textwrap.wrap(text, max(20, console.width - indent)):
        _print(console, Text(" " * indent + piece, style=style))


def _print_warning(told: PlanWarning, console: Console, *, remedy: bool) -> None:
    """One line at the top of a sheet, the whole of it at the end."""
    head = Text("  ").append(f"{told.severity.value}: ", style=_STYLES[told.severity])
    indent = 2 if not remedy else 4
    text = told.text if not remedy or not told.remedy else f"{told.text} -> {told.remedy}"
    pieces = textwrap.wrap(text, max(20, console.width - indent), initial_indent=" " * (len(head.plain) - indent))
    first, *rest = pieces
    _print(console, head.append(first.strip()))
    for piece in rest:
        _print(console, Text(" " * indent + piece))


def _print_comparison(columns: Sequence[Column], console: Console) -> None:
    names = dict.fromkeys(column.plan.deployment.shape.name for column in columns)
    _print_wrapped(f"{', '.join(names)}: {len(columns)} workers side by side", console, 0, style="bold")
    for column in columns:
        for told in warnings_of(column.plan):
            _print_warning(replace(told, text=f"{column.title}: {told.text}"), console, remedy=False)
    at_once = max(1, (console.width - _LABEL_WIDTH - 2) // (_LEAST_CELL_WIDTH + 2))
    sheets = [sections_of(column) for column in columns]
    for start in range(0, len(columns), at_once):
        _print_block(columns[start : start + at_once], sheets[start : start + at_once], console)


def _print_block(columns: Sequence[Column], sheets: Sequence[tuple[Section, ...]], console: Console) -> None:
    """As many workers as fit beside each other."""
    width = min(_MOST_CELL_WIDTH, (console.width - _LABEL_WIDTH - 2) // len(columns) - 2)
    console.print()
    _print_cells("", [column.title for column in columns], width, console, style="bold")
    for place, section in enumerate(sheets[0]):
        console.print()
        _print_wrapped(section.title.removesuffix(WHAT_IF), console, 0, style="bold")
        parallel = [sheet[place].lines for sheet in sheets]
        for label in _labels(parallel):
            cells = [next((line.value for line in lines if line.label == label), "-") for lines in parallel]
            if set(cells) != {"-"}:
                _print_cells(label, cells, width, console)


def _print_cells(label: str, cells: Sequence[str], width: int, console: Console, *, style: str = "") -> None:
    wrapped = [textwrap.wrap(cell, width) for cell in cells]
    for row in range(max(map(len, wrapped))):
        head = f"  {label if row == 0 else '':<{_LABEL_WIDTH}}"
        pieces = [f"{lines[row] if row < len(lines) else '':<{width}}" for lines in wrapped]
        _print(console, Text("  ".join((head, *pieces)), style=style))


def _labels(parallel: Sequence[Sequence[Line]]) -> Iterator[str]:
    """All labels in an order that keeps that of each sheet as far as one order can."""
    found: list[str] = []
    for lines in parallel:
        place = 0
        for line in lines:
            if line.label in found:
                place = found.index(line.label) + 1
            else:
                found.insert(place, line.label)
                place += 1
    yield from found


def _print(console: Console, text: Text) -> None:
    text.rstrip()
    console.print(text, highlight=False, soft_wrap=True)  # lines are cut already
