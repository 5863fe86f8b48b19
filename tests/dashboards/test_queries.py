"""What dashboards ask exists, is asked rightly, and leaves nothing of the catalogue unseen."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dashboards.grafana import gpus
from dashboards.grafana.boards import BOARDS
from dashboards.rules.groups import alert_groups, alert_names, recording_groups
from dashboards.rules.rule import Clock
from telemetry.catalog import EXPOSED
from tests.dashboards.grafana_json import dashboards, panels
from tests.dashboards.promql import families_in, faults, names_in

NOT_LOOKED_AT: dict[str, str] = {}
"""Families of the catalogue that neither a dashboard nor a rule asks for, each with the reason."""


def queries_of(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Everything that a dashboard asks, with where."""
    asked = [
        (f"{panel['title']} {target['refId']}", target["expr"]) for panel in panels(dashboard) for target in panel["targets"]
    ]
    asked += [(mark["name"], mark["expr"]) for mark in dashboard["annotations"]["list"]]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query" and (found := re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])):
            asked.append((f"variable {variable['name']}", f"count by ({found[2]}) ({found[1]})"))
    return asked


ALL = [(f"{name}: {where}", expr) for name, dashboard in dashboards().items() for where, expr in queries_of(dashboard)]
OF_EXPORTERS = {name: gpus.LABELS for _, expr in ALL for name in names_in(expr) if name.startswith("DCGM_FI_")}
EVERY_QUERY = pytest.mark.parametrize("expr", [expr for _, expr in ALL], ids=[where for where, _ in ALL])


@EVERY_QUERY
def test_a_query_asks_for_what_there_is(expr: str):
    """Metrics, labels, values and bounds are those of the catalogue; counters are rated, quantiles are of summed buckets."""
    assert faults(expr, OF_EXPORTERS) == []


@EVERY_QUERY
def test_a_rate_is_over_as_much_time_as_the_scrapes_need(expr: str):
    """Rates follow the time shown and the scrape interval; a fixed window is one that the description names."""
    windows = set(re.findall(r"\b(?:rate|irate)\([^()]*\[([^\]]*)\]", expr))

    assert windows <= {"$__rate_interval"} or "offset 30m" in expr


def test_every_query_of_a_board_is_in_its_file():
    """Nothing is lost between the values and Grafana's JSON."""
    for board in BOARDS:
        written = {expr for _, expr in queries_of(dashboards()[f"{board.uid}.json"])}
        assert {query.expr for panel in board.panels for query in panel.queries} <= written


def test_each_family_is_looked_at_or_there_is_a_reason():
    """A new metric belongs on a board or into a rule; otherwise say in `NOT_LOOKED_AT` why it is there at all."""
    rules = [rule.expr for group in (*recording_groups(Clock()), *alert_groups(Clock())) for rule in group.rules]
    asked = {name for expr in (*(expr for _, expr in ALL), *rules) for name in families_in(expr)}
    unseen = {family.name for family in EXPOSED} - asked

    assert unseen == set(NOT_LOOKED_AT)


def test_each_alert_has_a_panel_that_shows_its_reason():
    """Whoever comes from an alert finds a panel that links back to its runbook; no panel names an alert that there is not."""
    shown = {alert for board in BOARDS for panel in board.panels for alert in panel.alerts}

    assert shown == set(alert_names())
