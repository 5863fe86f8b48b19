"""Durations come from one monotonic clock; the wall clock can be set back and forth while requests run."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("proxy", "telemetry", "routing", "roofline", "simulator", "dashboards")
READS_WALL_CLOCK = {
    "proxy/serving/account.py": (1, "when a record ended, for whoever reads the log; nothing is subtracted from it"),
    "proxy/serving/state.py": (1, "the age of every model in the list of models"),
    "proxy/notices.py": (1, "the time before a line on standard error"),
    "proxy/control/steady_clock.py": (1, "the anchor of what control reckons with, and how far it has been set since"),
    "proxy/control/calibrating.py": (1, "when a reference was accepted, for people to read"),
    "proxy/control/tracing_sinks.py": (3, "time stamps of metrics, which are put in order"),
    "proxy/doctor/asking.py": (1, "beside the worker's `Date`, to find clocks that differ"),
    "proxy/probing/probe.py": (2, "when a report was made"),
    "simulator/sockets.py": (1, "`Date` of an answer"),
    "simulator/handlers.py": (3, "`created` of an answer and of metrics, as vLLM has it"),
}
"""How often each module reads it, and for what."""

_READERS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today")}


def reads_of(source: str) -> int:
    """How often the wall clock is named in a module, beside its imports."""
    tree = ast.parse(source)
    aliases = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for name in node.names
        if name.name in ("time", "time_ns")
    }
    named = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in aliases)
        or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in _READERS)
    ]
    return len(named)


def test_every_reading_of_the_wall_clock_has_a_reason():
    """What is read for people or other programs is subtracted from nothing; a new reading has to be judged here."""
    found = Counter(
        {
            str(path.relative_to(ROOT)): reads_of(path.read_text(encoding="utf-8"))
            for package in PACKAGES
            for path in sorted((ROOT / package).rglob("*.py"))
        }
    )

    assert +found == {module: count for module, (count, _) in READS_WALL_CLOCK.items()}


def test_readings_are_found():
    """By their own name, under another one, and by the module's."""
    source = "from time import time as now, monotonic\nimport time\nf = now() + time.time() + monotonic() + datetime.now()\n"

    assert reads_of(source) == 3
