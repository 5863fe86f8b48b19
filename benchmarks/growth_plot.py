"""Plots of how cost grows, from the files that two benchmarks wrote: ``python -m benchmarks.growth_plot``.

Needs matplotlib, which the extra ``plots`` brings.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).with_name("results")
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "cost-growth.svg"


def draw(growth: Path, streams: Path, picture: Path) -> None:
    """Two plots in one file: a request by workers, and a token by streams. Raises OSError and KeyError for other files."""
    from matplotlib import rcParams  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    rcParams["svg.hashsalt"] = "ridgeline"  # the same picture for the same figures
    sizes = [one for one in json.loads(growth.read_text())["growth"] if one["models"] == 1]
    rates = json.loads(streams.read_text())["streams"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    request, token = figure.subplots(1, 2)
    middle = [one["request_us"] for one in sizes]
    reach = [
        [each - one["least_us"] for each, one in zip(middle, sizes, strict=True)],
        [one["most_us"] - each for each, one in zip(middle, sizes, strict=True)],
    ]
    request.errorbar([one["workers"] for one in sizes], middle, yerr=reach, marker="o", capsize=3)
    request.set_title("plain request, in process")
    request.set_xlabel("workers of the model")
    token.plot([one["streams"] for one in rates], [one["cpu_us"] for one in rates], marker="o", label="all processes")
    token.plot([one["streams"] for one in rates], [one["serving_cpu_us"] for one in rates], marker="s", label="serving process")
    token.set_title("token, 5,000 a second in all")
    token.set_xlabel("streams at once")
    token.legend(loc="lower right")
    for axes in (request, token):
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("CPU microseconds")
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(picture, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth_plot", description=__doc__)
    parser.add_argument("--growth", type=Path, default=RESULTS / "growth.json", help="what benchmarks.growth wrote")
    parser.add_argument("--streams", type=Path, default=RESULTS / "streams.json", help="what benchmarks.streams wrote")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="the SVG file (default docs/cost-growth.svg)")
    options = parser.parse_args(arguments)
    draw(options.growth, options.streams, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
