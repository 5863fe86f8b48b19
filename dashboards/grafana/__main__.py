"""Writes ``grafana/dashboards/*.json``: ``python -m dashboards.grafana``."""

from __future__ import annotations

from pathlib import Path

from dashboards.grafana.boards import BOARDS
from dashboards.grafana.build import dashboard_json

FOLDER = Path(__file__).parents[2] / "grafana" / "dashboards"


def files() -> dict[str, str]:
    """Each file's name and what it holds."""
    return {f"{board.uid}.json": dashboard_json(board) for board in BOARDS}


def main() -> None:
    """Write all files and remove those of boards that are no more."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    written = files()
    for path in FOLDER.glob("*.json"):
        if path.name not in written:
            path.unlink()
    for name, text in written.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
