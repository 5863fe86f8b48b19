"""The page around charts and tables."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from proxy.reporting.charts import Chart, Line
from proxy.reporting.page import Section, Sheet, page_of

_VOID = {"meta", "br", "line", "circle", "polyline"}


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_needs_nothing_but_itself() -> None:
    """No script, no link, no address of anything, every element closed, every text as it was given."""
    text = page_of(
        "model <b> & co",
        [
            Section(
                title="One",
                sentences=["a < b"],
                charts=[Chart(title="c", x_name="x", y_name="y", lines=[Line(name="n", points=[(1, 1), (2, 2)])])],
                sheet=Sheet(heads=["h"], rows=[["<i>"]]),
            )
        ],
    )
    reader = _Balance()
    reader.feed(text)

    assert reader.open == []
    assert {"model <b> & co", "a < b", "<i>"} <= set(reader.texts)
    assert not re.search(r"<script|<link|src=|href=|url\(|https?:", text)
