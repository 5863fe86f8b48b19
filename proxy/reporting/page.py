"""The page around charts and tables: one file that needs nothing else, readable in light and dark and on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from proxy.reporting.charts import Chart, svg_of

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #8884; --quiet: #667;
  --c0: #1f6fb4; --c1: #c8561b; --c2: #2c8a4b; --c3: #8446a8; --c4: #a88a10; --c5: #b0305e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --paper: #14171a; --quiet: #9ab;
  --c0: #62aef0; --c1: #f0935c; --c2: #6cce8c; --c3: #c48ae8; --c4: #dcc04a; --c5: #f07aa4; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 76rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
p, li { max-width: 60rem; }
.charts > div { max-width: 44rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { text-align: right; padding: .15rem .7rem; border-bottom: 1px solid var(--faint); white-space: nowrap; }
th { font-weight: 600; } th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
svg .title { font-size: 14px; font-weight: 600; }
svg .tick { fill: var(--quiet); font-size: 11px; } svg .grid { stroke: var(--faint); stroke-width: 1; }
svg .mark { stroke: var(--quiet); stroke-dasharray: 3 3; } svg polyline { fill: none; stroke-width: 2; }
svg .dashed { stroke-dasharray: 7 4; } svg .dotted { stroke-dasharray: 2 4; }
""" + "".join(f"svg circle.c{n} {{ fill: var(--c{n}); }} svg polyline.c{n} {{ stroke: var(--c{n}); }}\n" for n in range(6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table: heads, and rows of as many cells."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with sentences, charts and a table below it."""

    title: str
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    sheet: Sheet | None = None


def page_of(title: str, sections: Sequence[Section]) -> str:
    """The whole file. All texts are escaped."""
    body = "\n".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n{body}\n"
        "</body>\n</html>\n"
    )


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write it. ``OSError`` if the file cannot be written."""
    path.write_text(page_of(title, sections), encoding="utf-8")


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    if section.sentences:
        parts.append("<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in section.sentences) + "</ul>")
    if section.charts:
        parts.append('<div class="charts">' + "".join(f"<div>{svg_of(chart)}</div>" for chart in section.charts) + "</div>")
    if section.sheet is not None:
        heads = "".join(f"<th>{escape(head)}</th>" for head in section.sheet.heads)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in section.sheet.rows)
        parts.append(f"<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table>")
    return "\n".join(parts)
