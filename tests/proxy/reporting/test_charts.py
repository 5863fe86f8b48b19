"""Line charts as SVG."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from proxy.reporting.charts import Chart, Line, Mark, Stroke, svg_of

CURVE = [(1.0, 10.0), (10.0, 20.0), (100.0, 40.0)]


def drawn(*lines: Line, **more: object) -> ET.Element:
    return ET.fromstring(svg_of(Chart(title="t", x_name="x", y_name="y", lines=lines, **more)))  # type: ignore[arg-type]


def places(svg: ET.Element) -> list[tuple[float, float]]:
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in svg.iter("circle")][: len(CURVE)]


def test_larger_values_lie_further_right_and_higher_up() -> None:
    """And all of them within the picture."""
    found = places(drawn(Line(name="a", points=CURVE, stroke=Stroke.POINTS)))

    assert [x for x, _ in found] == sorted(x for x, _ in found)
    assert [y for _, y in found] == sorted((y for _, y in found), reverse=True)
    assert all(70 <= x <= 640 and 34 <= y <= 294 for x, y in found)


def test_a_logarithmic_axis_puts_tenfolds_at_equal_distances() -> None:
    """1, 10 and 100 are evenly spread."""
    (first, _), (second, _), (third, _) = places(drawn(Line(name="a", points=CURVE, stroke=Stroke.POINTS), is_x_log=True))

    assert second - first == pytest.approx(third - second, abs=0.2)


def test_what_an_axis_cannot_show_is_left_out() -> None:
    """0 has no place on a logarithmic axis."""
    line = Line(name="a", points=[(0.0, 1.0), *CURVE], stroke=Stroke.POINTS)

    assert len(list(drawn(line, is_x_log=True).iter("circle"))) == len(CURVE) + 1  # and one in the legend


def test_names_cannot_break_the_page() -> None:
    """Whatever a model is called, it stays text."""
    svg = svg_of(Chart(title="<script>", x_name="a&b", y_name='"', lines=[Line(name="</svg>", points=CURVE)]))

    assert "<script>" not in svg
    assert "&lt;/svg&gt;" in svg
    ET.fromstring(svg)


@pytest.mark.parametrize("points", [[(5.0, 5.0)], [(5.0, 0.0), (5.0, 0.0)], [(0.0, 0.0)], [(1e-9, 1e12)]])
def test_any_points_make_a_picture(points: list[tuple[float, float]]) -> None:
    """One point, equal points, zeros, and very large ones."""
    assert drawn(Line(name="a", points=points)).tag == "svg"


def test_nothing_measured_is_said() -> None:
    """In place of an empty picture."""
    assert "nothing was measured" in svg_of(Chart(title="t", x_name="x", y_name="y", lines=[Line(name="a", points=[])]))


def test_marks_within_the_picture_are_drawn() -> None:
    """Those beyond its edges are not."""
    svg = svg_of(
        Chart(
            title="t", x_name="x", y_name="y", lines=[Line(name="a", points=CURVE)], marks=[Mark(50, "knee"), Mark(900, "far")]
        )
    )

    assert "knee" in svg
    assert "far" not in svg
