"""Makes panels with Grafana's Foundation SDK: each form as Grafana draws it, with its queries, colours, limits and words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_uppercase
from typing import Any, TypeAlias

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as drawing
from grafana_foundation_sdk.models import dashboard as schema
from grafana_foundation_sdk.models import prometheus as asking

from dashboards.grafana.colours import BY_LABEL, Colour
from dashboards.grafana.links import BOARD_OF_LABEL, board_link, runbook_url
from dashboards.grafana.values import Form, Panel, Query, State, Step, Unit

SOURCE = schema.DataSourceRef(type_val="prometheus", uid="${datasource}")

AnyPanel: TypeAlias = timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel | statetimeline.Panel


def panel_of(panel: Panel) -> AnyPanel:
    """The panel as Grafana has it, but for its number and its place."""
    made = _FORMS[panel.form](panel)
    made.title(panel.title).description(panel.description).datasource(SOURCE).no_value(panel.no_value)
    made.unit(Unit.RATIO.value if panel.form is Form.TABLE else panel.unit.value)  # a table has one for each column
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        made.with_target(_target(panel.form, letter, query))
    if panel.alerts:
        links: list[Builder[schema.DashboardLink]] = [
            dashboard.DashboardLink(f"Runbook: {name}").url(runbook_url(name)).target_blank(True) for name in panel.alerts
        ]

        made.links(links)
    if panel.most is not None:
        made.max(panel.most)
    return made


def _target(form: Form, letter: str, query: Query) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(letter).expr(query.expr).datasource(SOURCE).editor_mode(asking.QueryEditorMode.CODE)
    if form is Form.TABLE:
        return target.instant().format(asking.PromQueryFormat.TABLE)
    target.legend_format(query.legend).format(asking.PromQueryFormat.TIME_SERIES)
    return target.instant() if form is Form.BARS else target.range()


def _lines(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .line_width(1.5)
        .fill_opacity(0)
        .show_points(drawing.VisibilityMode.NEVER)
        .span_nulls(False)
        .axis_soft_min(0)
        .axis_soft_max(_soft_most(panel))
        .legend(_legend())
        .color_scheme(dashboard.FieldColor().mode(schema.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .tooltip(_tooltip())
        .thresholds(_thresholds(panel.steps))
    )
    if panel.form is Form.STACKED:
        made.draw_style(drawing.GraphDrawStyle.BARS).fill_opacity(80).line_width(0)
        made.stacking(common.StackingConfig().mode(drawing.StackingMode.NORMAL).group("A"))
    if panel.steps:
        made.thresholds_style(common.GraphThresholdsStyleConfig().mode(drawing.GraphThresholdsStyleMode.DASHED))
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        properties = _fixed(query.colour) if query.colour else []
        if query.unit is not None and query.unit is not panel.unit:
            properties += [_value("unit", query.unit.value), _value("custom.axisPlacement", "right")]
            properties += [_value("max", 1)] if query.unit is Unit.SHARE else []
        if query.is_dashed:
            properties.append(_value("custom.lineStyle", {"fill": "dash", "dash": [6, 6]}))
        if properties:
            made.override_by_query(letter, properties)
    _colour_by_label(made, panel)
    return made


_SOFT_MOST = {Unit.SHARE: 0.05, Unit.SECONDS: 0.01}


def _soft_most(panel: Panel) -> float:
    """Up to where an axis goes at least: the first limit, so that its line stands where it is, and not 100 for zeros."""
    limits = [step.at for step in panel.steps if step.at is not None]
    return min(limits, default=_SOFT_MOST.get(panel.unit, 1.0))


def _number(panel: Panel) -> stat.Panel:
    made = (
        stat.Panel()
        .graph_mode(drawing.BigValueGraphMode.AREA)
        .color_mode(drawing.BigValueColorMode.VALUE)
        .text_mode(
            drawing.BigValueTextMode.VALUE_AND_NAME
            if len(panel.queries) > 1 or "{{" in panel.queries[0].legend
            else drawing.BigValueTextMode.VALUE
        )
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(panel.steps))
        .mappings([_nothing(panel.no_value)])
    )
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        if query.colour is not None:
            made.override_by_query(letter, _fixed(query.colour))
    return made


def _bars(panel: Panel) -> bargauge.Panel:
    made = (
        bargauge.Panel()
        .orientation(drawing.VizOrientation.HORIZONTAL)
        .display_mode(drawing.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .min(0)
        .thresholds(_thresholds(panel.steps))
        .mappings([_nothing(panel.no_value)])
    )
    _colour_by_label(made, panel)
    return made


def _states(panel: Panel) -> statetimeline.Panel:
    return (
        statetimeline.Panel()
        .mappings([_words_for(panel.states)])
        .merge_values(True)
        .show_value(drawing.VisibilityMode.NEVER)
        .row_height(0.8)
        .legend(_legend())
        .tooltip(_tooltip())
    )


def _table(panel: Panel) -> table.Panel:
    made = (
        table.Panel()
        .cell_height(drawing.TableCellHeight.SM)
        .cell_options(drawing.TableAutoCellOptions())
        .min_width(60)
        .filterable(False)
        .mappings([_nothing(panel.no_value)])
    )
    values = (
        ["Value"]
        if len(panel.queries) == 1
        else [f"Value #{letter}" for letter, _ in zip(ascii_uppercase, panel.queries, strict=False)]
    )
    names = dict(zip(values, (query.legend for query in panel.queries), strict=True))
    made.with_transformation(schema.DataTransformerConfig(id_val="merge", options={}))
    made.with_transformation(
        schema.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": {name: index for index, name in enumerate((*panel.labels, *values))},
                "renameByName": names,
            },
        )
    )
    for query in panel.queries:
        properties = [_value("unit", (query.unit or panel.unit).value)]
        if query.steps:
            properties.append(_value("thresholds", {"mode": "absolute", "steps": _steps_json(query.steps)}))
            properties.append(_value("custom.cellOptions", {"type": "color-text"}))
        if query.states:
            properties.append(_value("mappings", [{"type": "value", "options": _words_for(query.states).options}]))
            properties.append(_value("custom.cellOptions", {"type": "color-text"}))
        made.override_by_name(query.legend, properties)
    for label in panel.labels:
        if label in BOARD_OF_LABEL:
            made.override_by_name(label, [_value("links", [{"title": f"Show this {label}", "url": board_link(label)}])])
    return made


_FORMS: dict[Form, Callable[[Panel], AnyPanel]] = {
    Form.LINES: _lines,
    Form.STACKED: _lines,
    Form.NUMBER: _number,
    Form.BARS: _bars,
    Form.TABLE: _table,
    Form.STATES: _states,
}


def _legend() -> common.VizLegendOptions:
    shown = common.VizLegendOptions().display_mode(drawing.LegendDisplayMode.LIST).placement(drawing.LegendPlacement.BOTTOM)
    return shown.show_legend(True).calcs([])


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions().mode(drawing.TooltipDisplayMode.MULTI).sort(drawing.SortOrder.DESCENDING)


def _thresholds(steps: Sequence[Step]) -> dashboard.ThresholdsConfig:
    shown = steps if steps and steps[0].at is None else (Step(at=None, colour=Colour.PLAIN), *steps)
    made = [schema.Threshold(value=step.at, color=step.colour.value) for step in shown]
    return dashboard.ThresholdsConfig().mode(schema.ThresholdsMode.ABSOLUTE).steps(made)


def _steps_json(steps: Sequence[Step]) -> list[dict[str, Any]]:
    return [{"value": step.at, "color": step.colour.value} for step in steps]


def _nothing(words: str) -> schema.SpecialValueMap:
    """Not a number is what a quotient or a quantile of nothing is."""
    result = schema.ValueMappingResult(text=words, color=Colour.UNKNOWN.value, index=0)
    return schema.SpecialValueMap(
        options=schema.DashboardSpecialValueMapOptions(match=schema.SpecialValueMatch.NULL_AND_NAN, result=result)
    )


def _words_for(states: Sequence[State]) -> schema.ValueMap:
    return schema.ValueMap(
        options={
            str(state.value): schema.ValueMappingResult(text=state.words, color=state.colour.value, index=index)
            for index, state in enumerate(states)
        }
    )


def _value(name: str, value: object) -> schema.DynamicConfigValue:
    return schema.DynamicConfigValue(id_val=name, value=value)


def _fixed(colour: Colour | str) -> list[schema.DynamicConfigValue]:
    name = colour.value if isinstance(colour, Colour) else colour
    return [_value("color", {"mode": "fixed", "fixedColor": name})]


def _colour_by_label(made: timeseries.Panel | bargauge.Panel, panel: Panel) -> None:
    if panel.coloured_by is not None:
        for name, colour in BY_LABEL[panel.coloured_by].items():
            made.override_by_name(name, _fixed(colour))
