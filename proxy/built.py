"""Whether the serving path runs compiled, and the switch for debuggers that makes Python take its sources instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType
from typing import Protocol

INTERPRETED = "RIDGELINE_INTERPRETED"
"""Set to 1, it makes every process of the gateway run from its sources, whatever lies compiled beside them."""

PACKAGES = frozenset({"proxy", "routing", "telemetry"})
"""Those that have compiled modules in a compiled build."""


class Finders(Protocol):
    """As much of `sys.meta_path` as is needed."""

    def insert(self, index: int, finder: MetaPathFinder, /) -> None:
        """As a list does."""


class Sources(MetaPathFinder):
    """Finds modules of these packages by their sources alone; others are left to who comes next."""

    def __init__(self, packages: frozenset[str] = PACKAGES) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the import system asks; None for what is not within these packages, and for what has no source."""
        if path is None or fullname.partition(".")[0] not in self._packages:
            return None
        found = (FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(fullname, target) for folder in path)
        return next(filter(None, found), None)


def take_sources_if_asked(environ: Mapping[str, str], finders: Finders) -> None:
    """Put `Sources` before the other finders where the switch is 1; before any module of the serving path is imported."""
    if environ.get(INTERPRETED) == "1":
        finders.insert(0, Sources())


def serving_path() -> str:
    """How the serving path runs here: `compiled` or `interpreted`."""
    found = find_spec("telemetry.recorder")  # compiled builds have all of their modules or are not made
    return "interpreted" if found is None or found.origin is None or found.origin.endswith(".py") else "compiled"
