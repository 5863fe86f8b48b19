"""From an exchange that has ended to its record."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec

from telemetry.record import RequestRecord


def test_each_figure_of_a_record_stands_where_its_field_is():
    """Fields are given by position, since by name they take longer than all else together; their names stand behind them."""
    source = (Path(__file__).parents[3] / "proxy/serving/account.py").read_text()
    lines = source.splitlines()
    (call,) = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "RequestRecord"
    )

    named = [lines[(each.end_lineno or 0) - 1].partition("  # ")[2].partition(" ")[0] for each in call.args]

    fields = [field.name for field in msgspec.structs.fields(RequestRecord)]
    assert not call.keywords
    assert named == fields[: len(named)]
    assert {"affinity", "beginning"} <= set(named)
