"""What the system says of the gateway's own processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.control.usage_of_processes import CpuCount, Listed, Usage, read_list, usages

STAT = "{pid} (a) odd) name) S 1 1 1 0 -1 4194560 100 0 0 0 {user} {system} 7 7 20 0 1 0 {started} 1000 {pages} 1 1 1"


def a_process(proc: Path, pid: int, *, user: int = 0, system: int = 0, started: int = 5, pages: int = 0, children: str = ""):
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "stat").write_text(STAT.format(pid=pid, user=user, system=system, started=started, pages=pages))
    (folder / "task" / str(pid) / "children").write_text(children)


def test_each_role_is_found_with_what_it_uses(tmp_path: Path) -> None:
    """The supervisor, what it lists and what counts tokens for a serving process; a name with brackets confuses nobody."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    a_process(tmp_path, 10, user=ticks)
    a_process(tmp_path, 11, user=2 * ticks, system=ticks, pages=3)
    a_process(tmp_path, 12, children="14 ")
    a_process(tmp_path, 14, started=6)
    listed = [Listed("control", 11, 0), Listed("serving", 12, 2), Listed("serving", None, 1), Listed("serving", 99, 1)]

    assert usages(listed, 10, tmp_path) == [
        Usage("supervisor", (10, 5), 1.0, 0),
        Usage("control", (11, 5), 3.0, 3 * page),
        Usage("serving", (12, 5), 0.0, 0),
        Usage("counting", (14, 6), 0.0, 0),
    ]


def test_the_real_proc_is_read() -> None:
    """A process that has worked for a while and holds some memory, as Linux shows it."""
    program = "import time\nwhile time.process_time() < 0.2: pass\nprint('x', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (usage,) = [one for one in usages([Listed("control", child.pid, 0)], 0) if one.role == "control"]
        child.communicate(b"\n")

    assert 0.15 <= usage.cpu_seconds < 5
    assert 1e6 < usage.resident_bytes < 1e9


@pytest.mark.parametrize("text", ["", "control\n", "control x 0\n", "control 1 0 9\n", None])
def test_a_list_that_cannot_be_read_is_empty(tmp_path: Path, text: str | None) -> None:
    """A file that is missing or damaged tells nothing and harms nobody."""
    path = tmp_path / "control.processes"
    if text is not None:
        path.write_text(text)

    assert read_list(path) == []


def test_the_list_is_read(tmp_path: Path) -> None:
    """One line for each process; 0 is none that runs now."""
    path = tmp_path / "control.processes"
    path.write_text("control 7 0\nserving 0 3\n")

    assert read_list(path) == [Listed("control", 7, 0), Listed("serving", None, 3)]


def a_usage(cpu_seconds: float, pid: int = 1, started: int = 1) -> Usage:
    return Usage("serving", (pid, started), cpu_seconds, 0)


def test_processor_time_goes_on_over_restarts() -> None:
    """What is counted is what was used since the last look; a new process with an old id is another one."""
    count = CpuCount(goes_on=False)

    assert count.take([a_usage(2.0), a_usage(1.0, pid=2)]) == {"serving": 3.0}
    assert count.take([a_usage(2.5), a_usage(1.0, pid=2)]) == {"serving": 0.5}
    assert count.take([a_usage(0.25, started=2)]) == {"serving": 0.25}
    assert count.take([a_usage(0.0, started=2)]) == {"serving": 0.0}  # never less


def test_what_an_earlier_control_process_counted_is_not_counted_again() -> None:
    """One that goes on with another's figures begins with what it sees first."""
    count = CpuCount(goes_on=True)

    assert count.take([a_usage(100.0)]) == {"serving": 0.0}
    assert count.take([a_usage(101.0), a_usage(0.5, pid=2)]) == {"serving": 1.5}
