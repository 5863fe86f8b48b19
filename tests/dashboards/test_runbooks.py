"""A page for each alert, whose queries can be asked and whose commands can be given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dashboards.grafana.links import kebab
from dashboards.rules.groups import alert_groups, alert_names, recording_groups
from dashboards.rules.rule import Alert, Clock, Recording
from tests.dashboards.promql import ADDED_BY_PROMETHEUS, faults

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "runbooks"
KNOWN = {
    **{
        rule.record: frozenset(rule.record.partition(":")[0].split("_"))
        for group in recording_groups(Clock())
        for rule in group.rules
        if isinstance(rule, Recording)
    },
    "scrape_samples_scraped": ADDED_BY_PROMETHEUS,
}
PAGES = sorted(path for path in FOLDER.glob("ridgeline-*.md"))
EVERY_PAGE = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
SECTIONS = ["## Look here first", "## Causes, the likeliest first", "## What to do", "## Silence"]


def queries(text: str) -> list[str]:
    """Those of a page, the first one first."""
    return [query.strip() for query in re.findall(r"```promql\n(.*?)```", text, re.DOTALL)]


def labels_of(page: str) -> set[str]:
    """Labels that the alert of this page surely has: those that its texts name, and those it is grouped by."""
    expressions = [
        rule.expr
        for group in alert_groups(Clock())
        for rule in group.rules
        if isinstance(rule, Alert) and kebab(rule.name) == page
    ]
    grouped = {
        label.strip() for expr in expressions for labels in re.findall(r"by \(([^)]*)\)", expr) for label in labels.split(",")
    }
    grouped |= {"model", "pool"} if any("model_pool:" in expr for expr in expressions) else set()
    grouped |= {"model", "pool", "worker"} if any("model_pool_worker:" in expr for expr in expressions) else set()
    grouped |= {"instance"} if any("ridgeline_control_lag_seconds" in expr for expr in expressions) else set()
    return grouped


def test_every_alert_has_its_page() -> None:
    """And no page is of an alert that is gone."""
    assert [path.stem for path in PAGES] == sorted(map(kebab, alert_names()))


@EVERY_PAGE
def test_a_page_has_what_is_needed_at_night(path: Path) -> None:
    """What it means, what it does to people, where to look, why, what to do, how to be left alone, whom to call; and short."""
    text = path.read_text(encoding="utf-8")

    assert kebab(text.partition("\n")[0].removeprefix("# ")) == path.stem
    places = [text.index(part) for part in ("**Meaning.**", "**Impact.**", *SECTIONS, "**Escalate to.**")]
    assert places == sorted(places)
    assert re.findall(r"^## .*", text, re.MULTILINE) == SECTIONS
    assert len(text.splitlines()) < 80


@EVERY_PAGE
def test_every_cause_can_be_confirmed(path: Path) -> None:
    """A query to begin with, and one for each cause."""
    text = path.read_text(encoding="utf-8")
    causes = re.findall(r"^\d+\. ", text, re.MULTILINE)

    assert len(queries(text)) == 1 + len(causes)
    assert causes


@EVERY_PAGE
def test_every_query_can_be_asked(path: Path) -> None:
    """Metrics, labels and values are those of the catalogue; what stands for a label is a label that the alert has."""
    text = path.read_text(encoding="utf-8")

    assert {query: found for query in queries(text) if (found := faults(query, KNOWN))} == {}
    assert set(re.findall(r"\$(\w+)", text)) <= labels_of(path.stem)


@EVERY_PAGE
def test_what_a_page_points_to_is_there(path: Path) -> None:
    """Other pages, documents, settings and paths of the admin listener."""
    text = path.read_text(encoding="utf-8")
    settings = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    admin = (ROOT / "proxy/admin/routes.py").read_text(encoding="utf-8")

    assert [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not (FOLDER / link).exists()] == []
    assert [page for page in re.findall(r"`(docs/[\w/.-]+)`", text) if not (ROOT / page).exists()] == []
    for section, name in re.findall(r"`(health|limits|retries|log|admission)\.(\w+)`", text):
        assert f"{section}.{name}" in settings or f"`{name}`" in settings, f"{section}.{name}"
    for endpoint in re.findall(r"`(?:POST )?(/api/\w+)", text):
        assert f'"{endpoint}' in admin, endpoint
