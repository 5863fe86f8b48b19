"""What dashboards ask exists, is asked rightly, and leaves nothing of the catalogue unseen."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from dashboards.grafana import gpus
from dashboards.grafana.boards import BOARDS, panel_path
from dashboards.rules.__main__ import FOLDER
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


def test_each_alert_leads_to_its_panel():
    """By board and number, for the model, pool and worker that it names; the panel there links back to the alert's runbook."""
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            found = re.fullmatch(r"/d/([a-z-]+)\?viewPanel=(\d+)(&var-.*)?", rule["annotations"]["dashboard"])
            assert found is not None
            dashboard = dashboards()[f"{found[1]}.json"]
            (panel,) = [panel for panel in panels(dashboard) if panel["id"] == int(found[2])]
            assert rule["annotations"]["runbook_url"] in {link["url"] for link in panel["links"]}
            known = {variable["name"] for variable in dashboard["templating"]["list"]}
            for name, value in re.findall(r"&var-(\w+)=([^&]*)", found[3] or ""):
                assert name in known
                assert value == f"{{{{ $labels.{name} | urlquery }}}}"


def test_an_alert_of_a_worker_leads_to_the_board_of_workers():
    """Where several boards show the reason, the one that can choose what the alert names is the right one."""
    chosen = {"model": "m", "worker": "w"}

    assert re.fullmatch(
        r"/d/ridgeline-worker\?viewPanel=\d+&var-model=m&var-worker=w", panel_path("RidgelineWorkerDown", chosen)
    )
    assert re.fullmatch(r"/d/ridgeline-on-call\?viewPanel=\d+&var-model=m", panel_path("RidgelineWorkerDown", {"model": "m"}))
    assert re.fullmatch(r"/d/ridgeline-gateway\?viewPanel=\d+", panel_path("RidgelineControlBehind", {"worker": "w"}))


def test_an_alert_without_a_panel_is_a_mistake():
    """Nobody is sent to a panel that there is not."""
    with pytest.raises(LookupError, match="RidgelineNothing"):
        panel_path("RidgelineNothing", {})
