"""The switch between what is compiled and its sources, and the list of what is compiled."""

from __future__ import annotations

import tomllib
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

import pytest

from proxy.built import PACKAGES, Sources, take_sources_if_asked

ROOT = Path(__file__).parents[2]
COMPILED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ridgeline"]["compiled"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package with a module that is compiled and one that is not."""
    for name in ("__init__.py", "plain.py", "fast.py", "fast" + EXTENSION_SUFFIXES[0]):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("name", ["pack.fast", "pack.plain"])
def test_the_source_is_taken_though_python_would_take_what_is_compiled(folder: Path, name: str) -> None:
    """Python prefers the compiled module where there is one; with the switch, each module comes from its source."""
    found = Sources(frozenset({"pack"})).find_spec(name, [str(folder)])
    without = PathFinder.find_spec("pack.fast", [str(folder)])

    assert found is not None
    assert found.origin == str(folder / f"{name.partition('.')[2]}.py")
    assert without is not None
    assert without.origin == str(folder / f"fast{EXTENSION_SUFFIXES[0]}")


@pytest.mark.parametrize(("name", "has_path"), [("other.fast", True), ("pack", False), ("pack.absent", True)])
def test_what_is_not_ours_is_left_to_the_next(folder: Path, name: str, has_path: bool) -> None:
    """Modules of others may be compiled and have sources beside them that nobody meant to be run."""
    assert Sources(frozenset({"pack"})).find_spec(name, [str(folder)] if has_path else None) is None


@pytest.mark.parametrize(("environ", "is_first"), [({"RIDGELINE_INTERPRETED": "1"}, True), ({}, False)])
def test_the_switch_comes_first_or_not_at_all(environ: dict[str, str], is_first: bool) -> None:
    """Nothing is added to the way modules are found unless it is asked for."""
    finders = [PathFinder]

    take_sources_if_asked(environ, finders)

    assert isinstance(finders[0], Sources) == is_first
    assert finders[-1] is PathFinder


@pytest.mark.parametrize("name", COMPILED)
def test_what_is_to_be_compiled_is_there(name: str) -> None:
    """A module that was moved is not left out in silence, and the switch reaches each of them."""
    assert (ROOT / f"{name.replace('.', '/')}.py").is_file()
    assert name.partition(".")[0] in PACKAGES
