"""One rate over few or many streams, and the picture of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.growth_plot import main as draw
from benchmarks.streams import TOKENS_PER_SECOND, workload_of


@pytest.mark.parametrize("streams", [1, 10, 100, 1_000, 5_000])
def test_all_streams_together_make_the_rate(streams: int) -> None:
    """However many there are, with as many requests as there are streams at least."""
    workload = workload_of(streams)

    assert workload.clients * 1e6 / workload.interval_us == pytest.approx(TOKENS_PER_SECOND)
    assert workload.requests >= streams


def test_the_picture_is_drawn_from_the_figures(tmp_path: Path) -> None:
    """An SVG with both curves, the same for the same figures."""
    sizes = [
        {"models": models, "workers": workers, "request_us": 30.0, "least_us": 29.0, "most_us": 31.0}
        for models, workers in ((1, 2), (1, 600), (100, 2))
    ]
    growth, streams = tmp_path / "growth.json", tmp_path / "streams.json"
    growth.write_text(json.dumps({"growth": sizes}))
    streams.write_text(json.dumps({"streams": [{"streams": 10, "cpu_us": 12.0, "serving_cpu_us": 11.0}]}))
    pictures = []
    for name in ("one.svg", "other.svg"):
        assert draw(["--growth", str(growth), "--streams", str(streams), "--picture", str(tmp_path / name)]) == 0
        pictures.append((tmp_path / name).read_text())

    assert pictures[0] == pictures[1]
    assert "<svg" in pictures[0]
