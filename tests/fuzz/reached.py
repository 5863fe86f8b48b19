"""Which lines of the modules under test a set of inputs reaches."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.targets import TARGETS, Target, load

Step = tuple[str, int, int]
"""A file, and two lines that ran one after the other in one call; 0 is the call itself."""


def lines_reached(name: str, inputs: Sequence[bytes]) -> Iterator[tuple[str, int, int, list[int]]]:
    """For each module of a target: its name, lines of functions that ran and that there are, and the numbers of the others."""
    target = load(name)
    files = _files(name)
    steps: set[Step] = set()
    for data in [*target.seeds, *inputs]:
        steps |= _steps_of(target, data, files)
    for file, module in files.items():
        there = _lines_of_functions(compile(Path(file).read_text(), file, "exec"))
        missed = sorted(there - {line for where, _, line in steps if where == file})
        yield module, len(there) - len(missed), len(there), missed


def of_use(name: str, inputs: Iterable[bytes]) -> list[bytes]:
    """The inputs, the shortest first, each of which takes a step that none before it takes, nor any seed."""
    target = load(name)
    files = _files(name)
    known: set[Step] = set()
    for data in target.seeds:
        known |= _steps_of(target, data, files)
    chosen = []
    for data in sorted(inputs, key=lambda one: (len(one), one)):
        steps = _steps_of(target, data, files)
        if not steps <= known:
            known |= steps
            chosen.append(data)
    return chosen


def _files(name: str) -> dict[str, str]:
    return {str(importlib.import_module(module).__file__): module for module in TARGETS[name]}


def _steps_of(target: Target, data: bytes, files: dict[str, str]) -> set[Step]:
    seen: set[Step] = set()
    with _Traced(files, seen):
        target.check(data)
    return seen


class _Traced:
    def __init__(self, files: dict[str, str], seen: set[Step]) -> None:
        self._files, self._seen = files, seen

    def __enter__(self) -> None:
        sys.settrace(self._of_call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _of_call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if file not in self._files:
            return None
        seen, before = self._seen, 0

        def of_line(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            nonlocal before
            seen.add((file, before, frame.f_lineno))
            before = frame.f_lineno
            return of_line

        return of_line


def _lines_of_functions(code: CodeType, *, is_function: bool = False) -> set[int]:
    lines = {line for *_, line in code.co_lines() if line} - {code.co_firstlineno} if is_function else set()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines |= _lines_of_functions(constant, is_function=bool(constant.co_flags & 2))
    return lines
