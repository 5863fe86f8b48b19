"""Durations come from one monotonic clock; the other one can be set back and forth while requests run."""

from __future__ import annotations

import re
from pathlib import Path

import proxy

PACKAGE = Path(proxy.__file__).parent
SERVING = [
    path for package in ("wire", "serving", "upstream") for path in Path(proxy.__file__).parent.joinpath(package).glob("*.py")
]
# When a record ended and when the list of models was made, for people to read.
READS_WALL_CLOCK = {
    "account": ["wall_clock(),  # ended_unix_seconds"],
    "state": ["self.endpoints = Endpoints(topology, int(wall_clock()))"],
}


def test_no_duration_is_taken_from_the_wall_clock():
    """In the serving path it is read in two places, of which neither is subtracted from anything."""
    found = {}
    for path in SERVING:
        text = path.read_text()
        assert not re.search(r"\b(time\.time|datetime|time_ns)\b", text)
        assert "from time import time\n" not in text
        if lines := [line.strip() for line in text.splitlines() if "wall_clock()" in line]:
            found[path.stem] = lines

    assert found == READS_WALL_CLOCK
