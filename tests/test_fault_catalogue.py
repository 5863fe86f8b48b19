"""The fault catalogue names tests that exist, and each of its rows names at least one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "fault-catalogue.md"
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names of a file's test functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def rows() -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith(("| fault |", "| --- |"))]


def test_every_test_that_the_catalogue_names_exists():
    """In the file it is said to be in, so that renaming a test is noticed here."""
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))

    missing = [f"{file}::{test}" for file, test in named if not (TESTS / file).exists() or test not in names_in(TESTS / file)]

    assert not missing
    assert len(named) > 150


def test_every_fault_has_a_behaviour_and_a_test():
    """Three cells, none of them empty, the last one with nothing but tests."""
    found = rows()

    for row in found:
        fault, behaviour, tests = (cell.strip() for cell in row.strip("|").split(" | "))
        assert fault, row
        assert behaviour, row
        assert re.fullmatch(rf"{NAMED.pattern}(?:, {NAMED.pattern})*", tests), row
    assert len(found) > 80
