"""`ridgeline replay` from records to a table, JSON and a page."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from proxy.replaying.replay import Asked, show
from simulator import traces
from simulator.arrivals import Poisson


def records(folder: Path, count: int = 400) -> Path:
    """An Azure trace of short requests and some very long ones."""
    path = folder / "trace.csv"
    made = traces.mixed(count, Poisson(per_second=4.0), seed=1)
    rows = [
        f"2024-05-10 {int(a.at_seconds) // 3600:02d}:{int(a.at_seconds) // 60 % 60:02d}:{a.at_seconds % 60:09.6f}" for a in made
    ]
    lines = [f"{row},{a.prompt.tokens},{a.output_tokens}" for row, a in zip(rows, made, strict=True)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines, "cut of"]))
    return path


def shown(asked: Asked, **more: Any) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    status = show(
        asked,
        as_json=bool(more.get("as_json")),
        html=more.get("html"),
        environ={},
        console=Console(file=out, width=200),
        told=Console(file=err, soft_wrap=True),
    )
    return status, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    path = records(tmp_path_factory.mktemp("records"))
    return Asked(records=str(path), gpu="h100-sxm", model="llama-3.1-8b", workers=8, boundaries=(16_384,), short_workers=2)


def test_the_table_says_what_to_set_and_why(asked: Asked) -> None:
    """With the setting's own name, and the bad line."""
    status, out, err = shown(asked)

    assert (status, err) == (0, "")
    assert "400 requests of trace.csv (azure)" in out
    assert "one pool of 8, prefix-affinity" in out
    assert "max_total_tokens: 16384 for 2 of the workers, the other 6" in out
    assert "1 of 401 lines could not be read, first line 402: 1 columns, not 3" in out
    assert "tell of no prefix hits" in out


def test_programs_get_the_same(asked: Asked, tmp_path: Path) -> None:
    """As JSON, with a code for each remark; and a page that needs nothing else."""
    html = tmp_path / "report.html"
    status, out, err = shown(replace(asked, policies=("least-load", "round-robin")), as_json=True, html=html)
    found = json.loads(out)

    assert status == 0
    assert err.strip() == f"report: {html}"
    assert found["suggested"]["pools"][0] == {"name": "short", "workers": 2, "max_total_tokens": 16_384}
    assert found["suggested"]["met_ratio"] > found["before"]["met_ratio"]
    assert [one["policy"] for one in found["tried"]] == ["least-load", "round-robin", "least-load"]
    assert {"suggestion", "smoothness", "load_check", "bad_lines", "policies"} <= {one["code"] for one in found["remarks"]}
    assert html.read_text().count("<svg") == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"records": "no-such-file.csv"}, "no-such-file.csv cannot be read: No such file"),
        ({"gpu": "h100-smx"}, "h100-sxm"),
        ({"model": "llama-3.1-9b"}, "nearest are"),
        ({"policies": ("fasted",)}, "--policy is one of "),
        ({"short_workers": 8}, "--short-workers is at least 1 and leaves one of the 8"),
        ({"workers": 1, "short_workers": None}, "--workers is at least 2"),
        ({"only_model": "other"}, "400 for other models"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(asked: Asked, change: dict[str, Any], message: str) -> None:
    """Before anything is computed."""
    status, out, err = shown(replace(asked, **change))

    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("error: ")


def test_a_page_that_cannot_be_written_is_told(asked: Asked, tmp_path: Path) -> None:
    """The table is there all the same."""
    status, out, err = shown(replace(asked, limit=100), html=tmp_path / "no" / "report.html")

    assert status == 1
    assert "100 requests" in out
    assert "cannot be written" in err


def log_of(path: Path, served: list[tuple[str | None, str | None]]) -> Path:
    """Forty requests of the gateway's log, one a second, by these pools and workers in turn; every fourth is long."""
    with path.open("w") as file:
        for at in range(40):
            pool, worker = served[at % len(served)]
            line = {
                "time": f"2026-11-30T08:24:{at:02d}.000Z",
                "prompt_tokens": 700 if at % 4 else 40_000,
                "completion_tokens": 20,
                "pool": pool,
                "worker": worker,
            }
            file.write(json.dumps(line) + "\n")
    return path


POOLS: list[tuple[str | None, str | None]] = [("big", "http://c:8000"), ("small", "http://a:8000"), ("small", "http://b:8000")]


def test_records_of_several_pools_are_compared_with_those(asked: Asked, tmp_path: Path) -> None:
    """The first row is the pools that served them, each with its workers; one pool of all workers is another row."""
    log = log_of(tmp_path / "requests.jsonl", [*POOLS, POOLS[1]])
    status, out, err = shown(replace(asked, records=str(log), workers=3, short_workers=1))

    assert (status, err) == (0, "")
    assert out.count("as it is: 2 in small + 1 in big") == 2  # where layouts are compared, and in the end
    assert "one pool of 3, prefix-affinity" in out
    assert "1 up to 16,384 + 2 above" in out
    assert "The records come from" not in out

    found = json.loads(shown(replace(asked, records=str(log), workers=3, short_workers=1), as_json=True)[1])
    assert found["before"]["is_recorded"] is True
    assert [one["is_recorded"] for one in found["tried"]] == [True, False, False]
    assert [(pool["name"], pool["workers"]) for pool in found["before"]["pools"]] == [("small", 2), ("big", 1)]


def test_other_workers_than_those_of_the_records_are_told(asked: Asked, tmp_path: Path) -> None:
    """Rows that differ in hardware are no fair comparison, so it is said how to make one."""
    log = log_of(tmp_path / "requests.jsonl", [*POOLS, POOLS[1]])
    _, out, _ = shown(replace(asked, records=str(log)))

    assert "The records come from 3 workers, everything else here has 8: compare with --workers 3." in out


@pytest.mark.parametrize(
    ("served", "is_told"),
    [([("short", None), ("long", "http://a:8000")], True), ([("short", None), ("none", None)], False), ([(None, None)], False)],
)
def test_records_without_their_workers_are_compared_with_one_pool(
    asked: Asked, tmp_path: Path, served: list[tuple[str | None, str | None]], *, is_told: bool
) -> None:
    """Then the first row is one pool of all workers. Requests that reached no pool are in none."""
    status, out, err = shown(replace(asked, records=str(log_of(tmp_path / "requests.jsonl", served))))

    assert (status, err) == (0, "")
    assert "as it is" not in out
    assert ("The records come from 2 pools" in out) is is_told
