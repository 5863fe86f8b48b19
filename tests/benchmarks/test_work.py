"""The guard of the path's cost: what a request makes the interpreter do is counted and held against a budget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import proxy.upstream.answering
from benchmarks import work
from benchmarks.work import ADVICE, Work, count_work, faults_of, main, measure_work, read_budget

ALLOWED = Work(instructions=1000, python_calls=100, c_calls=100)


async def test_a_request_takes_no_more_than_its_budget(tmp_path: Path) -> None:
    """Plain requests, streams and tokens; a budget is one of a version of Python."""
    budget = read_budget()

    assert budget, f"no budget for Python {work.VERSION}: run `python -m benchmarks.work --write`"
    faults = faults_of(measure_work(tmp_path), budget)
    assert not faults, "\n".join([*faults, ADVICE])


async def test_a_loop_on_the_path_is_over_the_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A handful of lines more for each request is seen, and where."""
    judge = proxy.upstream.answering.judge

    def judge_dearly(*arguments):  # type: ignore[no-untyped-def]
        for _ in range(100):
            len(arguments)
        return judge(*arguments)

    monkeypatch.setattr(proxy.upstream.answering, "judge", judge_dearly)
    faults = faults_of(measure_work(tmp_path), read_budget() or {})

    assert any(fault.startswith("plain request: ") and "instructions where the budget" in fault for fault in faults)
    assert any(fault.startswith("one-token stream: ") and "c calls where the budget" in fault for fault in faults)
    assert not any(fault.startswith("token: ") for fault in faults)


async def test_counts_are_the_same_each_time(tmp_path: Path) -> None:
    """Nothing of the machine is in them."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()

    assert measure_work(tmp_path / "one")["plain request"] == measure_work(tmp_path / "two")["plain request"]


def test_calls_and_instructions_are_counted() -> None:
    """All below the call itself."""

    def inner() -> None:
        pass

    def outer() -> None:
        inner()
        len("")
        len("")

    counted = count_work(outer)

    assert (counted.python_calls, counted.c_calls) == (1, 2)
    assert 10 < counted.instructions < 40
    assert count_work(inner).instructions < counted.instructions


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(ALLOWED, instructions=1049, python_calls=104), []),
        (replace(ALLOWED, instructions=1051), ["token: 1051 instructions where the budget is 1000, +5.1%"]),
        (replace(ALLOWED, c_calls=106), ["token: 106 c calls where the budget is 100, +6.0%"]),
        (replace(ALLOWED, python_calls=80), ["token: only 80 python calls where the budget is 100: lower the budget"]),
    ],
)
def test_what_is_out_of_the_budget_is_named(found: Work, said: list[str]) -> None:
    """With how far it is out; a budget that has become far too wide, too."""
    assert faults_of({"token": found}, {"token": ALLOWED}) == said


def test_the_command_writes_the_budget_down(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And is content with it from then on; budgets of other versions stay."""
    path = tmp_path / "budget.json"
    path.write_text('{"2.7": {}}')
    monkeypatch.setattr(work, "BUDGET", path)
    monkeypatch.setattr(work, "read_budget", lambda: read_budget(path))

    assert main(["--write"]) == 0
    assert main([]) == 0

    assert set(json.loads(path.read_text())) == {"2.7", work.VERSION}
    assert "(budget " in capsys.readouterr().out
