"""What is compiled does what its source does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compiled import HOT, ROOT, compile_into, main


def test_a_compiled_module_is_taken_and_does_the_same(tmp_path: Path) -> None:
    """From within the copy, Python takes what was compiled, with the source beside it, and its answers are the same."""
    (made,) = compile_into(tmp_path / "copy", ["routing/demand"])
    ask = (
        "from routing.demand import Demand; from routing.estimate import TokenEstimate; import routing.demand as module;"
        "print(module.__file__, Demand(TokenEstimate(10, 8, 12), max_tokens=5).load_tokens)"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", ask], cwd=folder, env=environ(), check=True, capture_output=True, text=True
        ).stdout
        for folder in (tmp_path / "copy", ROOT)
    ]

    (compiled, tokens), (source, same_tokens) = (answer.split() for answer in answers)
    assert Path(compiled) == made
    assert source.endswith(".py")
    assert tokens == same_tokens == "15"
    assert (tmp_path / "copy/routing/demand.py").exists()


def environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.mark.parametrize("module", HOT)
def test_what_is_to_be_compiled_is_there(module: str) -> None:
    """A module that was moved is not left out in silence."""
    assert (ROOT / f"{module}.py").is_file()


def test_another_folder_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder is made anew each time, so one that holds something else is refused and kept."""
    (tmp_path / "mine.txt").write_text("kept")

    assert main(["--into", str(tmp_path)]) == 2
    assert "no copy of the gateway" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "kept"
