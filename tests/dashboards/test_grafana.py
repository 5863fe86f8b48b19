"""The dashboards in the repository are those that the code writes, and look and behave as people are used to."""

from __future__ import annotations

from typing import Any

import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.grafana.__main__ import files
from dashboards.grafana.boards import BOARDS
from dashboards.grafana.links import runbook_url
from dashboards.grafana.values import Board, Form
from tests.dashboards.grafana_json import FOLDER, dashboards, every_panel, panels

EVERY_DASHBOARD = pytest.mark.parametrize("dashboard", dashboards().values(), ids=dashboards())
EVERY_PANEL = pytest.mark.parametrize("panel", [panel for _, panel in every_panel()], ids=[name for name, _ in every_panel()])
EVERY_BOARD = pytest.mark.parametrize("board", BOARDS, ids=[board.uid for board in BOARDS])


def test_files_are_what_the_code_writes():
    """`make fix` writes them; nobody edits them."""
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == files()


@EVERY_DASHBOARD
def test_a_dashboard_can_be_loaded_anywhere(dashboard: dict[str, Any]):
    """It has a name of its own for links and no number of one database, and is of the version that 10.4 to 13 read."""
    assert dashboard["schemaVersion"] == 41
    assert "id" not in dashboard
    assert dashboard["uid"].startswith("ridgeline-")
    assert len(dashboard["uid"]) <= 40
    assert dashboard["description"]
    assert dashboard["tags"] == ["ridgeline"]
    assert {panel["type"] for panel in panels(dashboard)} <= {
        *("timeseries", "stat", "bargauge", "table", "state-timeline"),
    }


@EVERY_DASHBOARD
def test_a_dashboard_has_a_shared_crosshair_and_comes_anew_every_30_seconds(dashboard: dict[str, Any]):
    """One sees in all plots what was at one moment."""
    assert dashboard["graphTooltip"] == 1
    assert dashboard["refresh"] == "30s"


@EVERY_DASHBOARD
def test_links_between_dashboards_keep_time_and_variables(dashboard: dict[str, Any]):
    """Whoever goes from one to the next goes on looking at the same."""
    (link,) = dashboard["links"]

    assert (link["type"], link["tags"]) == ("dashboards", ["ridgeline"])
    assert link["keepTime"]
    assert link["includeVars"]


@EVERY_DASHBOARD
def test_variables_choose_the_source_and_follow_the_time(dashboard: dict[str, Any]):
    """The data source is asked for, everything else comes from it and is looked up again when the time changes."""
    source, *others = dashboard["templating"]["list"]

    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert [variable["name"] for variable in others[:2]] in ([], ["model", "pool"], ["key"])
    for variable in others:
        assert variable["type"] == "query"
        assert variable["refresh"] == 2
        assert variable["datasource"]["uid"] == "${datasource}"
        assert variable["multi"]
        assert variable["includeAll"]


@EVERY_DASHBOARD
def test_panels_have_numbers_of_their_own(dashboard: dict[str, Any]):
    """A link to a panel finds one."""
    rows = [panel for panel in dashboard["panels"] if panel["type"] == "row"]
    numbers = [panel["id"] for panel in (*rows, *panels(dashboard))]

    assert len(set(numbers)) == len(numbers)


@EVERY_DASHBOARD
def test_panels_lie_beside_each_other(dashboard: dict[str, Any]):
    """None covers another one, and none sticks out."""
    taken: dict[tuple[int, int], str] = {}
    for panel in [*dashboard["panels"], *panels(dashboard)]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for cell in (
            (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
        ):
            assert taken.setdefault(cell, panel["title"]) == panel["title"]


@EVERY_PANEL
def test_a_panel_says_what_it_shows(panel: dict[str, Any]):
    """Title, what it means, unit, the chosen data source; each query has a letter and is asked once or over time."""
    assert panel["title"]
    assert len(panel["description"]) > 20
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["targets"]
    letters = [target["refId"] for target in panel["targets"]]
    assert letters == sorted(set(letters))
    for target in panel["targets"]:
        assert target["datasource"]["uid"] == "${datasource}"
        assert target.get("instant", False) != target.get("range", False)


@EVERY_PANEL
def test_nothing_is_not_shown_as_a_figure(panel: dict[str, Any]):
    """Where nothing was asked the panel says so in words."""
    assert panel["fieldConfig"]["defaults"]["noValue"]
    if panel["type"] in {"stat", "table", "bargauge"}:
        special = [
            mapping["options"] for mapping in panel["fieldConfig"]["defaults"]["mappings"] if mapping["type"] == "special"
        ]
        assert [options["match"] for options in special] == ["null+nan"]


@EVERY_PANEL
def test_names_in_a_table_are_no_dates(panel: dict[str, Any]):
    """The unit of figures is that of their column: with a date's for all columns, names would be read as dates and be none."""
    if panel["type"] == "table":
        units = [
            item["value"] for one in panel["fieldConfig"]["overrides"] for item in one["properties"] if item["id"] == "unit"
        ]
        assert panel["fieldConfig"]["defaults"]["unit"] == "none"
        assert len(units) == len(panel["targets"])


@EVERY_PANEL
def test_lines_of_limits_stand_where_they_are(panel: dict[str, Any]):
    """An axis reaches the first limit: beyond the end of the axis its line would be drawn at the end."""
    defaults = panel["fieldConfig"]["defaults"]
    steps = defaults["thresholds"]["steps"] if panel["type"] == "timeseries" else []
    if limits := [step["value"] for step in steps if step["value"] is not None]:
        assert max(defaults["custom"]["axisSoftMax"], defaults.get("max", 0)) >= min(limits)


@EVERY_BOARD
def test_the_same_name_has_the_same_colour_everywhere(board: Board):
    """P99 is one blue on all boards, and a hit one green."""
    colours: dict[str, Any] = {}
    for other in BOARDS:
        for panel in other.panels:
            for query in panel.queries:
                if query.colour is not None:
                    assert colours.setdefault(query.legend, query.colour) == query.colour, (
                        other.uid,
                        panel.title,
                        query.legend,
                    )
    assert board.rows


@EVERY_BOARD
def test_the_first_token_is_never_shown_without_the_hit_share(board: Board):
    """Whoever sees a TTFT sees beside it how much of the prompts had to be computed."""
    dashboard = dashboards()[f"{board.uid}.json"]
    for panel in panels(dashboard):
        text = " ".join(target["expr"] for target in panel["targets"])
        if "ttft_seconds" in text or "ttft_visible_seconds" in text:
            line = [other for other in panels(dashboard) if other["gridPos"]["y"] == panel["gridPos"]["y"]]
            assert any("ridgeline_cached_tokens_total" in target["expr"] for other in line for target in other["targets"])


@EVERY_BOARD
def test_a_panel_links_to_the_runbooks_of_its_alerts(board: Board):
    """In a window of its own, so that the board stays."""
    for panel, written in zip(board.panels, panels(dashboards()[f"{board.uid}.json"]), strict=True):
        links = [(link["title"], link["url"], link["targetBlank"]) for link in written.get("links", [])]
        assert links == [(f"Runbook: {alert}", runbook_url(alert), True) for alert in panel.alerts]


@EVERY_BOARD
def test_rows_of_tables_lead_to_their_details(board: Board):
    """A worker, a pool or a key in a table is a link that keeps data source and time and chooses what the row names."""
    for panel in panels(dashboards()[f"{board.uid}.json"]):
        if panel["type"] == "table":
            links = [
                (override["matcher"]["options"], one["url"])
                for override in panel["fieldConfig"]["overrides"]
                for item in override["properties"]
                if item["id"] == "links"
                for one in item["value"]
            ]
            assert links
            for label, url in links:
                assert f"var-{label}=${{__value.raw}}" in url
                assert "${__url_time_range}" in url
                assert "${datasource:queryparam}" in url
                assert f"{url.split('/d/')[1].split('?')[0]}.json" in dashboards()


def test_the_sdk_reads_what_it_wrote():
    """Every file is a dashboard of that version of Grafana's schema, with nothing lost on the way."""
    for dashboard in dashboards().values():
        read = Dashboard.from_json(dashboard)

        assert read.uid == dashboard["uid"]
        assert len(read.panels or []) == len(dashboard["panels"])


def test_the_first_screen_of_the_on_call_board_answers_without_scrolling():
    """Whether, since when, why and where all lie within the 24 units of height that a usual screen shows."""
    (board,) = [board for board in BOARDS if board.uid == "ridgeline-on-call"]
    shown = [
        panel for panel in panels(dashboards()["ridgeline-on-call.json"]) if panel["gridPos"]["y"] + panel["gridPos"]["h"] <= 24
    ]

    titles = {panel["title"] for panel in shown}
    assert {
        "Alerts firing",
        "What fires, and since when",
        "What slow requests lose their time to",
        "Pools",
        "Workers",
    } <= titles
    assert any(panel.form is Form.STATES for panel in board.panels)
