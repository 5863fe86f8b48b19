"""The gateway's own processes as the system sees them: processor time, memory and descriptors, from Linux' /proc.

What cannot be read is left out; nothing here raises.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Numbers of fields in /proc/PID/stat, as proc(5) counts them, less the two that stand before the state.
_USER_TICKS, _SYSTEM_TICKS, _STARTED_TICKS, _RESIDENT_PAGES = 14 - 3, 15 - 3, 22 - 3, 24 - 3


class Usage(NamedTuple):
    """One process now."""

    role: str
    identity: tuple[int, int]  # process id and when it was started: ids are used again
    cpu_seconds: float  # since its start, without its children
    resident_bytes: int
    open_descriptors: int | None = None
    most_descriptors: int | None = None  # that it may have open


class Listed(NamedTuple):
    """A line of the supervisor's list."""

    role: str
    pid: int | None  # None: it does not run now
    restarts: int


def read_list(path: Path) -> list[Listed]:
    """The processes that the supervisor has started; empty if its list cannot be read."""
    with suppress(OSError, ValueError):
        lines = [line.split() for line in path.read_text().splitlines()]
        return [Listed(role, int(pid) or None, int(restarts)) for role, pid, restarts in lines]
    return []


def usages(listed: Iterable[Listed], supervisor: int, proc: Path = Path("/proc")) -> list[Usage]:
    """What the supervisor, the listed processes and the children of serving ones (which count tokens) use."""
    pids = [("supervisor", supervisor)]
    for one in listed:
        if one.pid is not None:
            pids.append((one.role, one.pid))
            if one.role == "serving":
                pids += [("counting", child) for child in _children(proc, one.pid)]
    return [usage for role, pid in pids if (usage := _usage(proc, role, pid)) is not None]


def _children(proc: Path, pid: int) -> list[int]:
    with suppress(OSError, ValueError):
        return [int(child) for child in (proc / str(pid) / "task" / str(pid) / "children").read_text().split()]
    return []


def _usage(proc: Path, role: str, pid: int) -> Usage | None:
    with suppress(OSError, ValueError, IndexError):
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
        return Usage(
            role,
            (pid, int(fields[_STARTED_TICKS])),
            ticks / _TICKS_PER_SECOND,
            int(fields[_RESIDENT_PAGES]) * _PAGE_BYTES,
            *_descriptors(proc, pid),
        )
    return None


def _descriptors(proc: Path, pid: int) -> tuple[int | None, int | None]:
    """How many are open, and may be."""
    with suppress(OSError, ValueError):
        folder = proc / str(pid) / "fd"
        count = folder.stat().st_size or len(os.listdir(folder))  # noqa: PTH208 -- names alone; before Linux 6.2 there is no size
        return count, resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    return None, None


class CpuCount:
    """Turns what processes have used since their start into what a role has used since the last look.

    ``goes_on``: an earlier control process has counted before this one. Then the first look counts nothing, since it is not
    known how much of it is counted already.
    """

    def __init__(self, *, goes_on: bool) -> None:
        self._seen: dict[tuple[int, int], float] = {}
        self._knows_nothing = goes_on

    def __repr__(self) -> str:
        return f"<CpuCount of {len(self._seen)} processes>"

    def take(self, used: Iterable[Usage]) -> Mapping[str, float]:
        """Seconds by role since the last look."""
        now = {usage.identity: usage.cpu_seconds for usage in used}
        more: dict[str, float] = {}
        for usage in used:
            before = usage.cpu_seconds if self._knows_nothing else self._seen.get(usage.identity, 0.0)
            more[usage.role] = more.get(usage.role, 0.0) + max(0.0, usage.cpu_seconds - before)
        self._seen = now
        self._knows_nothing = False
        return more
