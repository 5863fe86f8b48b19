"""The dashboards are what Grafana 13's own types allow, key by key, in the classic form that 10.4 to 13 load."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from tests.dashboards.grafana_json import dashboards, every_panel

SCHEMAS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data/grafana/schema-13.2.3.json").read_text())
OF_PROMETHEUS = ("expr", "titleFormat")  # of an annotation: read by the data source, unknown to the dashboard
KINDS = {"state-timeline": "statetimeline"}  # where the folder of the types is called otherwise


def faults(name: str, value: object) -> list[str]:
    """What this schema refuses, with its place."""
    errors = Draft7Validator(SCHEMAS[name]).iter_errors(value)
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in errors]


def without_the_source_s_own(dashboard: dict[str, Any]) -> dict[str, Any]:
    """A copy without the parts of annotations that only the data source knows."""
    whole = deepcopy(dashboard)
    for mark in whole["annotations"]["list"]:
        for name in OF_PROMETHEUS:
            mark.pop(name)
    return whole


@pytest.mark.parametrize("dashboard", dashboards().values(), ids=dashboards())
def test_a_dashboard_has_only_what_grafana_knows(dashboard: dict[str, Any]):
    """Variables, links, annotations, rows, panels and their queries."""
    assert faults("dashboard", without_the_source_s_own(dashboard)) == []


@pytest.mark.parametrize("panel", [panel for _, panel in every_panel()], ids=[name for name, _ in every_panel()])
def test_a_panel_has_only_options_that_its_kind_knows(panel: dict[str, Any]):
    """An option that is spelled wrong, or that only another kind of panel has, would be ignored without a word."""
    kind = KINDS.get(panel["type"], panel["type"])

    assert faults(f"{kind}.options", panel["options"]) == []
    if f"{kind}.fieldConfig" in SCHEMAS:
        assert faults(f"{kind}.fieldConfig", panel["fieldConfig"]["defaults"].get("custom", {})) == []


def test_what_grafana_does_not_know_is_found():
    """The schemas are no open door."""
    dashboard = without_the_source_s_own(dashboards()["ridgeline-on-call.json"])
    dashboard["panels"][1]["titel"] = "Alerts firing"
    dashboard["graphTooltip"] = 7

    found = faults("dashboard", dashboard)

    assert any(fault.startswith("graphTooltip") for fault in found)
    assert any(fault.startswith("panels/1") for fault in found)
    assert faults("timeseries.options", {"legend": {}, "tooltip": {}, "legendary": True})
