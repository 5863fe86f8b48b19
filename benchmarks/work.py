"""What the path of a request makes the interpreter do, counted instead of timed: ``python -m benchmarks.work``.

Instructions of bytecode, calls of Python functions and calls of C functions, on the path that `benchmarks.hot_path` measures.
The counts are the same on every machine and under any load, so a test can hold them against a budget; what happens inside
C functions, of large bodies above all, is not in them. ``--write`` makes the counts of now the budget.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_low
from types import FrameType
from typing import Any

from benchmarks.hot_path import HotPath

BUDGET = Path(__file__).with_name("work_budget.json")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
MOST_GROWTH_RATIO = 0.05
MOST_SHRINKING_RATIO = 0.15
"""A budget that has become too wide would hide the next growth."""
_WARM_UP = 20
_REPEATS = 7
_TOKENS = 256  # whole batches of the meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one request or token takes."""

    instructions: float
    python_calls: float
    c_calls: float

    def less(self, other: Work, parts: int) -> Work:
        """The difference of the two, per part."""
        return Work(
            instructions=round((self.instructions - other.instructions) / parts, 2),
            python_calls=round((self.python_calls - other.python_calls) / parts, 2),
            c_calls=round((self.c_calls - other.c_calls) / parts, 2),
        )


def count_work(call: Callable[[], object]) -> Work:
    """Count what a call does, once; the call itself is not in it."""
    instructions = python_calls = c_calls = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal instructions
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            instructions += 1
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal python_calls, c_calls
        if event == "call":
            python_calls += 1
        elif event == "c_call":
            c_calls += 1

    earlier_trace, earlier_profile = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(earlier_trace)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(earlier_profile)
    # Less the call of `call`, and that of `setprofile` which ends the counting.
    return Work(instructions=instructions, python_calls=python_calls - 1, c_calls=c_calls - 1)


def measure_work(run_dir: Path) -> dict[str, Work]:
    """Count in a running loop; `run_dir` takes the files of the serving state."""
    path = HotPath(run_dir)

    def usual(call: Callable[[], None]) -> Work:
        for _ in range(_WARM_UP):
            call()
        return median_low_of([count_work(call) for _ in range(_REPEATS)])

    one = usual(lambda: path.stream(1))
    return {
        "plain request": usual(path.plain),
        "one-token stream": one,
        "token": usual(lambda: path.stream(1 + _TOKENS)).less(one, _TOKENS),
    }


def median_low_of(counted: Sequence[Work]) -> Work:
    """Of each count the median: now and then a request has to tidy up something."""
    return Work(
        instructions=median_low(each.instructions for each in counted),
        python_calls=median_low(each.python_calls for each in counted),
        c_calls=median_low(each.c_calls for each in counted),
    )


def read_budget(path: Path = BUDGET) -> dict[str, Work] | None:
    """The budget for this version of Python, whose compiler decides how many instructions there are; None if it has none."""
    budget = json.loads(path.read_text()).get(VERSION)
    return None if budget is None else {name: Work(**counts) for name, counts in budget.items()}


def faults_of(counted: Mapping[str, Work], budget: Mapping[str, Work]) -> list[str]:
    """What is not within the budget, one line each."""
    faults = []
    for name, allowed in budget.items():
        for kind, most in asdict(allowed).items():
            found = asdict(counted[name])[kind]
            if found > most * (1 + MOST_GROWTH_RATIO):
                faults.append(
                    f"{name}: {found:g} {kind.replace('_', ' ')} where the budget is {most:g}, {found / most - 1:+.1%}"
                )
            elif found < most * (1 - MOST_SHRINKING_RATIO):
                faults.append(f"{name}: only {found:g} {kind.replace('_', ' ')} where the budget is {most:g}: lower the budget")
    return faults


ADVICE = (
    "The path of a request does more than it did. See what (docs/cost.md, 'When the path has become dearer'), take out what "
    "need not be there, and if the rest is worth it, run `python -m benchmarks.work --write` and say in the commit why."
)


async def run() -> dict[str, Work]:
    """Count with files in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ridgeline-bench-") as folder:
        return measure_work(Path(folder))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the counts beside the budget, or write them down as the new one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.work", description=__doc__)
    parser.add_argument("--write", action="store_true", help="make these counts the budget for this version of Python")
    options = parser.parse_args(arguments)
    counted = asyncio.run(run())
    budget = read_budget() or {}
    for name, work in counted.items():
        line = ", ".join(
            f"{count:g} {kind.replace('_', ' ')}" + (f" (budget {asdict(budget[name])[kind]:g})" if name in budget else "")
            for kind, count in asdict(work).items()
        )
        sys.stdout.write(f"{name:18}{line}\n")
    if options.write:
        everything = json.loads(BUDGET.read_text()) if BUDGET.exists() else {}
        everything[VERSION] = {name: asdict(work) for name, work in counted.items()}
        BUDGET.write_text(json.dumps(everything, indent=2) + "\n")
        return 0
    faults = faults_of(counted, budget)
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
