"""Sphinx's configuration: the documentation as a site (`make docs`). Nothing is fetched from other hosts, built or read."""

from __future__ import annotations

from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

project = "Ridgeline"
version = release = version_of("ridgeline")
extensions = ["myst_parser"]
root_doc = "README"
nitpicky = True
myst_heading_anchors = 4  # links to headings, as code hosts make them
myst_links_external_new_tab = False
html_theme = "furo"
html_title = f"Ridgeline {release}"
html_copy_source = False
html_show_sphinx = False
exclude_patterns = ["decisions/template.md"]
suppress_warnings = ["misc.highlighting_failure"]  # shortened JSON, as records of answers have it, is no JSON

DOCS = Path(__file__).resolve().parents[2] / "docs"
FIRST = ("start",)
SECTIONS = {"How to": "how-to", "Explanation": "", "Runbooks": "runbooks", "Reference": "reference", "Decisions": "decisions"}


def tables_of_contents(docs: Path) -> str:
    """Return the tables that Sphinx wants in its first page; a new page below docs/ finds its place by its folder."""
    parts = [_table("", [page for page in FIRST if (docs / f"{page}.md").exists()])]
    for title, folder in SECTIONS.items():
        pages = sorted(page.relative_to(docs).with_suffix("").as_posix() for page in (docs / folder).glob("*.md"))
        parts.append(_table(title, [page for page in pages if page not in (root_doc, *FIRST)]))
    return "\n".join(parts)


def _table(title: str, pages: list[str]) -> str:
    caption = f":caption: {title}\n" if title else ""
    return "\n".join(["", "```{toctree}", f":hidden:\n{caption}", *pages, "```", ""]) if pages else ""


def _add_tables(_app: Any, page: str, source: list[str]) -> None:
    if page == root_doc:
        source[0] += tables_of_contents(DOCS)


def _add_index(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        text = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html"><title>{project}</title>\n'
        (Path(app.outdir) / "index.html").write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    """Sphinx calls this once it has read the configuration."""
    app.connect("source-read", _add_tables)
    app.connect("build-finished", _add_index)
