"""What the comparison is asked for on its command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import _options, main
from benchmarks.tool import WORKLOADS


def test_workloads_are_chosen_by_name() -> None:
    """In the order given; all of them unless some are named."""
    assert [one.name for one in _options(["--workloads", "token, storm; request, plain"]).workloads] == [
        "token, storm",
        "request, plain",
    ]
    assert _options([]).workloads == WORKLOADS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workloads", "token, strom"], "unknown: token, strom; there are token, paced; token, storm"),
        (["--proxies", "nginx,haproxy"], "unknown: haproxy; there are nginx"),
        (["--scale", "0"], "more than 0"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of measuring something else."""
    with pytest.raises(SystemExit):
        _options(arguments)

    assert said in capsys.readouterr().err


def test_rounds_are_not_added_to_what_is_no_run(tmp_path: Path) -> None:
    """A file of something else is left as it is."""
    path = tmp_path / "other.json"
    path.write_text('{"rounds": 3}')

    assert main(["--proxies", "nginx,ridgeline", "--go-on", "--json", str(path)]) == 2
    assert path.read_text() == '{"rounds": 3}'
