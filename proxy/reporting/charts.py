"""Line charts as inline SVG: points, solid, dashed and dotted lines over linear or logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from math import ceil, floor, log10

_WIDTH, _HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 34, 46
_COLOURS = 6  # classes c0 to c5 in the page's style
_LEGEND_LINE = 16
_TICKS = 5


class Stroke(StrEnum):
    """How a line is drawn."""

    POINTS = "points"  # measured
    SOLID = "solid"  # fitted
    DASHED = "dashed"  # expected
    DOTTED = "dotted"  # floor


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series. Points that an axis cannot show (0 or below on a logarithmic one) are left out."""

    name: str
    points: Sequence[tuple[float, float]]
    stroke: Stroke = Stroke.SOLID
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at ``x`` with a word beside it."""

    x: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture; the names of axes have their units in them."""

    title: str
    x_name: str
    y_name: str
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    is_x_log: bool = False
    is_y_log: bool = False


@dataclass(frozen=True, slots=True)
class _Axis:
    """From values to places, and where its ticks are."""

    low: float
    high: float
    start: float  # place of the lowest value
    end: float
    is_log: bool

    def place(self, value: float) -> float:
        low, high, at = (log10(self.low), log10(self.high), log10(value)) if self.is_log else (self.low, self.high, value)
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.is_log:
            decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
            steps = (1, 2, 5) if len(decades) <= 4 else (1,)
            values = [step * 10.0**decade for decade in decades for step in steps]
        else:
            step = _nice((self.high - self.low) / _TICKS)
            values = [step * number for number in range(ceil(self.low / step), floor(self.high / step) + 1)]
        return [value for value in values if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]


def svg_of(chart: Chart) -> str:
    """The chart as an ``<svg>`` element, or a sentence where there is nothing to draw."""
    lines = [_kept(line, chart) for line in chart.lines]
    lines = [line for line in lines if line.points]
    if not lines:
        return f"<p>{escape(chart.title)}: nothing was measured.</p>"
    height = _HEIGHT + _LEGEND_LINE * ceil(len(lines) / 2)
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    across = _axis(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT, is_log=chart.is_x_log)
    up = _axis(min(ys), max(ys), _HEIGHT - _BOTTOM, _TOP, is_log=chart.is_y_log)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(chart.title)}">',
        f'<text class="title" x="{_LEFT}" y="20">{escape(chart.title)}</text>',
        *_grid(chart, across, up),
        *(_mark(mark, across) for mark in chart.marks if across.low <= mark.x <= across.high),
        *(_drawn(line, across, up) for line in lines),
        *_legend(lines),
        "</svg>",
    ]
    return "\n".join(parts)


def _kept(line: Line, chart: Chart) -> Line:
    points = [(x, y) for x, y in line.points if (x > 0 or not chart.is_x_log) and (y > 0 or not chart.is_y_log)]
    return Line(name=line.name, points=points, stroke=line.stroke, colour=line.colour)


def _axis(low: float, high: float, start: float, end: float, *, is_log: bool) -> _Axis:
    if is_log:
        low, high = low / 1.1, high * 1.1
    else:
        low, high = min(0.0, low), high + 0.05 * (high - min(0.0, low))
        if high <= low:
            high = low + 1.0
    return _Axis(low, high, start, end, is_log)


def _nice(step: float) -> float:
    """The next of 1, 2, 5 and their tenfolds."""
    power = 10.0 ** floor(log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _grid(chart: Chart, across: _Axis, up: _Axis) -> list[str]:
    parts = []
    for tick in up.ticks():
        y = up.place(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{_LEFT - 6}" y="{y + 4:.1f}">{_number(tick)}</text>')
    bottom = _HEIGHT - _BOTTOM
    for tick in across.ticks():
        x = across.place(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{bottom + 16}">{_number(tick)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="name" text-anchor="middle" x="{middle:.0f}" y="{bottom + 34}">{escape(chart.x_name)}</text>')
    side = (_TOP + bottom) / 2
    turned = f"translate(14 {side:.0f}) rotate(-90)"
    parts.append(f'<text class="name" text-anchor="middle" transform="{turned}">{escape(chart.y_name)}</text>')
    return parts


def _mark(mark: Mark, across: _Axis) -> str:
    x = across.place(mark.x)
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        f'<text class="tick" x="{x + 4:.1f}" y="{_TOP + 12}">{escape(mark.text)}</text>'
    )


def _drawn(line: Line, across: _Axis, up: _Axis) -> str:
    places = [(across.place(x), up.place(y)) for x, y in line.points]
    colour = f"c{line.colour % _COLOURS}"
    if line.stroke is Stroke.POINTS:
        return "".join(f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="{colour} {line.stroke.value}" points="{path}"/>'


def _legend(lines: Sequence[Line]) -> list[str]:
    parts = []
    for number, line in enumerate(lines):
        x = _LEFT + (number % 2) * (_WIDTH - _LEFT - _RIGHT) / 2
        y = _HEIGHT + _LEGEND_LINE * (number // 2) + 6
        colour = f"c{line.colour % _COLOURS}"
        if line.stroke is Stroke.POINTS:
            parts.append(f'<circle class="{colour}" cx="{x + 12:.0f}" cy="{y - 4}" r="3.5"/>')
        else:
            parts.append(f'<polyline class="{colour} {line.stroke.value}" points="{x:.0f},{y - 4} {x + 24:.0f},{y - 4}"/>')
        parts.append(f'<text class="tick" x="{x + 30:.0f}" y="{y}">{escape(line.name)}</text>')
    return parts


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 or value == round(value) else f"{value:.4g}"
