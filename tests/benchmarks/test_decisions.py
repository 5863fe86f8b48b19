"""The benchmark of decisions runs, and decisions stay cheap in calls whatever the machine."""

from __future__ import annotations

import pytest

from benchmarks.decisions import FLEETS, hash_us, main
from routing.policy import POLICIES


def test_the_figures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each policy with a figure for each fleet, and two for the hashes."""
    assert main(["--calls", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(POLICIES) + 2
    assert all(line.count("µs") == len(FLEETS) for line in lines[2:-2])


def test_a_long_conversation_costs_no_more_than_a_short_one() -> None:
    """Only the beginning is looked at: a megabyte of answers behind it is not read."""
    assert hash_us(1_000_000, calls=200) < 5 * hash_us(2_000, calls=200)
