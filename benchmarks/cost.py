"""What a tree of processes has cost: CPU time from schedstat, which counts nanoseconds, and memory. Linux only."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What each thread of a tree had used at one moment."""

    nanoseconds: Mapping[tuple[int, int], int]  # by process and thread
    commands: Mapping[int, str]  # command line by process

    @property
    def processes(self) -> frozenset[int]:
        """The ids of the processes that were there."""
        return frozenset(self.commands)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a tree."""

    rss_bytes: int  # summed; what processes share counts once for each
    pss_bytes: int | None  # what is shared counts once in all; None: this kernel or user may not read it


def tree_of(pid: int) -> list[int]:
    """The process and all its descendants that are there now, itself first."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            stat = _read(folder / "stat")
            if stat:
                parent = int(stat.rpartition(")")[2].split()[1])  # the name before it may hold blanks and brackets
                children[parent].append(int(folder.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        found.append(todo.pop())
        todo += children[found[-1]]
    return found


def read_cpu(pid: int) -> Reading:
    """Read what the process and all its descendants have used.

    Threads and processes that are gone are not in it: take readings around a time in which none ends.
    Raises OSError where the kernel does not count.
    """
    nanoseconds: dict[tuple[int, int], int] = {}
    commands: dict[int, str] = {}
    for each in tree_of(pid):
        folder = _PROC / str(each)
        command = _read(folder / "cmdline")
        if not command:  # gone, or ended and not waited for
            continue
        commands[each] = command.replace("\0", " ").strip()
        for thread in _names_in(folder / "task"):
            text = _read(folder / "task" / thread / "schedstat")
            if text:
                nanoseconds[each, int(thread)] = int(text.split()[0])
    if commands and not nanoseconds:
        raise OSError("/proc/PID/task/TID/schedstat is empty: this kernel does not count CPU time in nanoseconds")
    return Reading(nanoseconds=nanoseconds, commands=commands)


def spent_seconds(before: Reading, after: Reading) -> dict[int, float]:
    """CPU seconds used between two readings, by process. A thread that began in between counts from its start."""
    spent: dict[int, float] = defaultdict(float)
    for (pid, thread), nanoseconds in after.nanoseconds.items():
        spent[pid] += (nanoseconds - before.nanoseconds.get((pid, thread), 0)) / 1e9
    return dict(spent)


def read_memory(pid: int) -> Memory:
    """Read the memory of the process and all its descendants."""
    rss_bytes = 0
    pss_bytes: int | None = 0
    for each in tree_of(pid):
        folder = _PROC / str(each)
        rss_bytes += int((_read(folder / "statm") or "0 0").split()[1]) * _PAGE_BYTES
        lines = [line.split() for line in _read(folder / "smaps_rollup").splitlines() if line.startswith("Pss:")]
        pss_bytes = pss_bytes + int(lines[0][1]) * 1024 if lines and pss_bytes is not None else None
    return Memory(rss_bytes=rss_bytes, pss_bytes=pss_bytes)


def _read(path: Path) -> str:
    """The text of a file of /proc; empty when its process is gone or may not be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _names_in(path: Path) -> list[str]:
    try:
        return [each.name for each in path.iterdir()]
    except OSError:
        return []
