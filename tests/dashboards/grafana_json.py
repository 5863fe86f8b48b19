"""The dashboards as they lie in the repository: parsed, and their panels in one list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "grafana" / "dashboards"


@cache
def dashboards() -> dict[str, dict[str, Any]]:
    """Every dashboard by the name of its file."""
    return {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels, also those of collapsed rows, without the rows."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def every_panel() -> list[tuple[str, dict[str, Any]]]:
    """All panels of all dashboards, each with a name for the test's title."""
    return [
        (f"{name.removesuffix('.json')}: {panel['title']}", panel)
        for name, dashboard in dashboards().items()
        for panel in panels(dashboard)
    ]
