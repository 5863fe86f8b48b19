"""Turns boards into the JSON that Grafana loads, with Grafana's Foundation SDK: schema version 41, for 10.4 and later."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as schema

from dashboards.grafana.forms import SOURCE, panel_of
from dashboards.grafana.links import TAG
from dashboards.grafana.values import Board, Row

_COLUMNS = 24
_FIRST_ROW_ID = 1001  # rows are numbered apart, so that a new one leaves the numbers of panels alone


def dashboard_json(board: Board) -> str:
    """The text of the board's file."""
    whole = json.loads(json.dumps(_dashboard(board).build(), cls=JSONEncoder))
    _tidy(whole, board)
    return json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _tidy(whole: dict[str, Any], board: Board) -> None:
    """Take out what the SDK writes and newer Grafana has no place for, and add what it has no word for."""
    for variable in whole["templating"]["list"]:
        for name in ("auto", "auto_count", "auto_min"):  # of variables that are intervals
            variable.pop(name, None)
    for panel in whole["panels"]:
        if panel["type"] == "table":
            panel["options"].pop("footer", None)
    for mark, written in zip(board.marks, whole["annotations"]["list"], strict=True):
        written["titleFormat"] = mark.words  # the SDK does not know it, Prometheus' part of Grafana does


def _dashboard(board: Board) -> dashboard.Dashboard:
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(schema.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(
            dashboard.DashboardLink("Ridgeline")
            .type(schema.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .keep_time(True)
            .include_vars(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in board.variables:
        made.with_variable(
            dashboard.QueryVariable(variable.name)
            .label(variable.label)
            .datasource(SOURCE)
            .query(variable.values)
            .refresh(schema.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(schema.VariableSort.NATURAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(schema.VariableOption(selected=True, text=["All"], value=["$__all"]))
        )
    for mark in board.marks:
        made.annotation(
            dashboard.AnnotationQuery()
            .name(mark.title)
            .datasource(SOURCE)
            .expr(mark.expr)
            .enable(True)
            .icon_color(mark.colour.value)
        )
    place = _Place()
    for number, row in enumerate(board.rows):
        _add_row(made, row, _FIRST_ROW_ID + number, place)
    return made


@dataclass(slots=True)
class _Place:
    """Where the next panel goes, and its number."""

    x: int = 0
    y: int = 0
    height: int = 0  # of the line that is being filled
    number: int = 1

    def take(self, width: int, height: int) -> schema.GridPos:
        """The place of a panel; begins a new line where this one is full."""
        if self.x + width > _COLUMNS:
            self.begin_line()
        place = schema.GridPos(x=self.x, y=self.y, w=width, h=height)
        self.x += width
        self.height = max(self.height, height)
        return place

    def begin_line(self) -> None:
        """Go on below everything so far."""
        self.x, self.y, self.height = 0, self.y + self.height, 0


def _add_row(made: dashboard.Dashboard, row: Row, number: int, place: _Place) -> None:
    place.begin_line()
    title = dashboard.Row(row.title).id(number).grid_pos(place.take(_COLUMNS, 1))
    place.begin_line()
    panels = []
    for panel in row.panels:
        panels.append(panel_of(panel).id(place.number).grid_pos(place.take(panel.width, panel.height)))
        place.number += 1
    if row.is_collapsed:
        for one in panels:
            title.with_panel(one)
        made.with_row(title)
    else:
        made.with_row(title)
        for one in panels:
            made.with_panel(one)
