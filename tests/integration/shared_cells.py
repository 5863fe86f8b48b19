"""The arrays that a running gateway's serving processes share, read as they read each other's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from proxy.config.settings import parse_config
from proxy.config.wiring import build_topology
from proxy.rundir import serving_cells
from telemetry.catalog import Scope
from telemetry.cells import map_cells
from telemetry.layout import Layout, offset
from tests.integration.gateway import Gateway


def run_dir(gateway: Gateway) -> Path:
    """Where the processes keep what they share."""
    line = Path(f"/proc/{gateway.processes.serving[0]}/cmdline").read_bytes().decode().split("\0")
    return Path(line[line.index("--run-dir") + 1])


def figures(gateway: Gateway, names: Sequence[str], processes: int = 1) -> dict[str, list[float]]:
    """Each of these figures at every worker, of every serving process, workers in the order of the file."""
    layout = Layout.of(build_topology(parse_config(gateway.config_path.read_text(), {}, "test")))
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(processes):
        cells = map_cells(serving_cells(run_dir(gateway), number), layout)
        assert cells is not None
        for name in names:
            found[name] += [cells.values[base + offset(name)] for base in layout.blocks(Scope.WORKER)]
    return found
