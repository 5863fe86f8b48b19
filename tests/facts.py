"""The facts in `data/facts`, each page read once in a process: nobody may change what is returned."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "data" / "facts"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it


@cache
def facts_in(name: str) -> Any:
    """What a page says."""
    return yaml.load((FOLDER / name).read_text(encoding="utf-8"), Loader=_LOADER)
