"""The cells as numbers, held against the text that is made of the same cells."""

from __future__ import annotations

from itertools import accumulate
from math import inf, nan
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as parse_text

from telemetry.catalog import EXPOSED, Kind
from telemetry.exposition import Writer, bound_text
from telemetry.layout import Layout, offset
from telemetry.points import Snapshot, readings

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def as_series(snapshot: Snapshot) -> Series:
    """The points written as Prometheus has them."""
    found: Series = {}
    for reading in readings(snapshot):
        name = reading.family.name
        for point in reading.points:
            labels = frozenset(point.labels.items())
            if reading.family.kind is not Kind.HISTOGRAM:
                found[name, labels] = point.values[0]
                continue
            for bound, count in zip((*reading.family.bounds, inf), accumulate(point.values), strict=True):
                found[f"{name}_bucket", labels | {("le", bound_text(bound))}] = count
            found[f"{name}_sum", labels], found[f"{name}_count", labels] = point.sum, sum(point.values)
    return found


def from_text(snapshot: Snapshot) -> Series:
    layout = Layout.of(snapshot.topology)
    writer = Writer(snapshot.topology, layout, version=snapshot.version)
    families = parse_text(writer.write_all(snapshot.arrays, snapshot.control).decode())
    return {(sample.name, frozenset(sample.labels.items())): sample.value for each in families for sample in each.samples}


def test_points_are_what_the_text_says(a_topology: Any) -> None:
    """With a different value in every cell, points and text have the same series with the same values."""
    topology = a_topology()
    size = Layout.of(topology).size
    one, other = ([float(cell + start) for cell in range(size)] for start in (1, 5))
    snapshot = Snapshot(topology, (one, None, other), [value + 0.5 for value in one], "1.2.3")

    assert as_series(snapshot) == from_text(snapshot)


def test_nothing_is_invented(a_topology: Any) -> None:
    """A gauge that nobody has set has no point; without processes counters are 0, as in the text."""
    topology = a_topology()
    layout = Layout.of(topology)
    control = [0.0] * layout.size
    control[layout.worker_base(1) + offset("ridgeline_worker_up")] = nan
    for snapshot in (Snapshot(topology, (), None, "1"), Snapshot(topology, (None,), control, "1")):
        assert as_series(snapshot) == from_text(snapshot)


def test_every_family_is_read(a_topology: Any) -> None:
    """All families come, in the order of the catalogue."""
    found = [reading.family for reading in readings(Snapshot(a_topology(), (), None, "1"))]

    assert found == list(EXPOSED)
