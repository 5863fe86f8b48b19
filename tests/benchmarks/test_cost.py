"""Reading what a tree of processes has cost, with this process as the tree."""

from __future__ import annotations

import os
import subprocess
import sys
from time import process_time

from benchmarks.cost import Reading, read_cpu, read_memory, spent_seconds, tree_of


def use_cpu(seconds: float) -> None:
    until = process_time() + seconds
    while process_time() < until:
        pass


def test_what_this_process_uses_is_counted() -> None:
    """CPU time between two readings is at least what was used in between, as the process's own clock says."""
    before = read_cpu(os.getpid())
    started_at = process_time()
    use_cpu(0.05)
    after = read_cpu(os.getpid())
    used_seconds = process_time() - started_at

    assert 0.045 < spent_seconds(before, after)[os.getpid()] < used_seconds + 0.05


def test_children_belong_to_the_tree() -> None:
    """A child is found with its command line, and counts for CPU and memory; after its end it is gone."""
    mine = os.getpid()
    alone = read_memory(mine)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        reading = read_cpu(mine)

        assert child.pid in tree_of(mine)
        assert reading.commands[child.pid].endswith("-c input()")
        assert read_memory(mine).rss_bytes > alone.rss_bytes
        child.communicate(b"\n")

    assert child.pid not in read_cpu(mine).processes


def test_threads_that_come_and_go() -> None:
    """A new thread counts from its start; one that has ended is left out, and does not make the sum smaller."""
    before = Reading(nanoseconds={(1, 1): 5_000_000_000, (1, 2): 7_000_000_000}, commands={1: "proxy"})
    after = Reading(
        nanoseconds={(1, 1): 6_000_000_000, (1, 3): 500_000_000, (4, 4): 250_000_000}, commands={1: "proxy", 4: "new"}
    )

    assert spent_seconds(before, after) == {1: 1.5, 4: 0.25}


def test_a_process_that_is_not_there_has_cost_nothing() -> None:
    """A tree whose first process is gone is empty, and no error."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass

    assert read_cpu(child.pid).processes == frozenset()
    assert read_memory(child.pid).rss_bytes == 0
