"""What a request costs hardly grows with what else there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import growth
from benchmarks.growth import main, measure_growth


async def test_a_request_takes_no_more_with_hundreds_of_workers_or_models(tmp_path: Path) -> None:
    """Counted in instructions of bytecode, of which one loop over all workers would take thousands."""
    few, workers, models = measure_growth(tmp_path, ((1, 2), (1, 300), (50, 2)), requests=2, rounds=1, counted=20)

    assert workers.instructions < 1.05 * few.instructions
    assert models.instructions < 1.05 * few.instructions


def test_the_figures_are_printed_and_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One line for each size, and all of them with the machine."""
    monkeypatch.setattr(growth, "SIZES", ((1, 2), (2, 1)))

    assert main(["--requests", "2", "--rounds", "1", "--json", str(tmp_path / "growth.json")]) == 0

    assert len(capsys.readouterr().out.splitlines()) == 3
    written = json.loads((tmp_path / "growth.json").read_text())
    assert [(one["models"], one["workers"]) for one in written["growth"]] == [(1, 2), (2, 1)]
    assert written["machine"]["python"]
