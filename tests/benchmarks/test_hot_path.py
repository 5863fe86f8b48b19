"""The benchmark of a request's path still runs on the path as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hot_path import HotPath, main, measure_hot_path


async def test_all_figures_are_measured(tmp_path: Path) -> None:
    """A few requests go the whole way, and each figure is a time."""
    costs = measure_hot_path(tmp_path, requests=2, repeats=2)

    assert costs.plain_us > 0
    assert costs.one_token_stream_us > 0


async def test_an_answer_that_does_not_come_through_is_no_figure(tmp_path: Path) -> None:
    """When the path answers with anything else than the worker did, that is an error instead of a cost."""
    path = HotPath(tmp_path)
    path.plain()
    path.stream(3)
    path.worker.close()

    with pytest.raises(RuntimeError, match="did not come through"):
        path.plain()


def test_the_figures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints one line for each figure."""
    assert main(["--requests", "1", "--repeats", "1"]) == 0
    assert [line.rsplit(maxsplit=2)[0] for line in capsys.readouterr().out.splitlines()] == [
        "plain request",
        "one-token stream",
        "token",
    ]
