"""What a dashboard consists of, as values: boards, rows, panels, queries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dashboards.grafana.colours import Colour

NO_TRAFFIC = "No traffic"
"""Shown where a figure does not exist because nothing was asked."""


class Form(Enum):
    """How a panel draws what it asked for."""

    LINES = "lines"
    STACKED = "stacked"  # bars on top of each other
    NUMBER = "number"  # one value for each query, the last one
    BARS = "bars"  # a bar for each series, the last value
    TABLE = "table"  # a row for each set of labels, a column for each query
    STATES = "states"  # a band for each series, coloured by its state


class Unit(Enum):
    """Units by Grafana's ids; the product's own are base units."""

    SECONDS = "s"
    SHARE = "percentunit"  # 0-1
    RATIO = "none"
    COUNT = "short"
    TOKENS = "si:tok"
    REQUESTS_PER_SECOND = "reqps"
    TOKENS_PER_SECOND = "si:tok/s"
    PER_MINUTE = "suffix:/min"
    BYTES = "bytes"
    AGO = "dateTimeFromNow"  # of an instant in milliseconds
    CELSIUS = "celsius"
    WATTS = "watt"
    HERTZ = "hertz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One question to Prometheus and how its answer is called."""

    expr: str  # PromQL, with Grafana's variables
    legend: str  # of a series, or the column of a table; may hold ``{{label}}``
    colour: Colour | None = None  # None: by the label (`Panel.coloured_by`) or out of Grafana's palette
    unit: Unit | None = None  # None: the panel's; another one goes to the right axis
    steps: tuple[Step, ...] = ()  # of a table's column
    is_dashed: bool = False
    states: tuple[State, ...] = ()  # of a table's column: words in place of figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From this value on the colour means this."""

    at: float | None  # None: from below
    colour: Colour


@dataclass(frozen=True, slots=True)
class State:
    """A figure that stands for words."""

    value: int
    words: str
    colour: Colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A rectangle with a question in its title and the answer in it."""

    title: str
    description: str  # what is shown, from where to where, and what it means when it is bad
    unit: Unit
    queries: tuple[Query, ...]
    form: Form = Form.LINES
    width: int = 8  # of 24
    height: int = 8
    steps: tuple[Step, ...] = ()  # drawn as lines in a plot, as colours elsewhere
    coloured_by: str | None = None  # label whose values have colours of their own
    labels: tuple[str, ...] = ()  # of a table: the columns before the figures
    states: tuple[State, ...] = ()  # of the form STATES
    alerts: tuple[str, ...] = ()  # that this panel shows the reason for; each links to its runbook
    most: float | None = None  # upper end of the axis, where there is a natural one
    no_value: str = NO_TRAFFIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under a title."""

    title: str
    panels: tuple[Panel, ...]
    is_collapsed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice at the top of a board, out of the values that a label has."""

    name: str
    label: str
    values: str  # ``label_values(…)``


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened, as a line through all plots of a board."""

    title: str
    words: str  # at the line; may hold ``{{label}}``
    expr: str  # has a value above 0 when it happened
    colour: Colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard."""

    uid: str  # also the name of its file
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    marks: tuple[Mark, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, in the order in which they are numbered."""
        return tuple(panel for row in self.rows for panel in row.panels)
