"""The run directory: where the processes of one gateway meet, and the names of what lies in it.

It is made by the supervisor on memory (``/dev/shm``) where there is one, for its owner only, and removed at the end. A lock
on the directory itself tells a living one from one whose supervisor was killed; the next start removes the latter.
Standard library only, as the supervisor stays small.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

CONTROL_CELLS = "control.cells"
RECORDS_SOCKET = "records.sock"
# Written by control when all its listeners are up: one line each for observers and admin, HOST:PORT as really bound.
CONTROL_ADDRESSES = "control.addresses"
# Written by the supervisor whenever it starts a process: one line for each, ROLE PID RESTARTS.
PROCESSES = "control.processes"
# Written by control with each configuration that comes into force: how many seconds running requests get at the end.
DRAIN = "control.drain"
# Made by the supervisor when it begins to end the gateway.
STOPPING_MARK = "control.stopping"
# Strict, because what matches and is not locked gets removed.
_DIRECTORY = re.compile(r"ridgeline-[0-9a-f]{12}")
_ENTRY = re.compile(
    r"(?:serving-[0-9]+|control)\.[a-z]+(?:\.[a-z]+)?|records\.sock|(?:topology|overlay|found|guidance)\.msgpack(?:\.new)?|config\.kept(?:\.new)?|counting-since"
)


def serving_cells(directory: Path, slot: int) -> Path:
    """Path of the cells that the serving process with this slot writes."""
    return directory / f"serving-{slot}.cells"


def default_parents() -> tuple[Path, ...]:
    """Where a run directory may be made, best first."""
    return (Path("/dev/shm"), Path(os.environ.get("TMPDIR") or "/tmp"))  # noqa: S108 -- mode 0700, a random name, and locked


class RunDirectory:
    """A directory of mode 0700 with a random name, held by a lock until `remove` or the end of the process."""

    def __init__(self, parents: Sequence[Path] | None = None) -> None:
        """Make it in the first of `parents` that can be written to. Raises OSError when none can."""
        places = default_parents() if parents is None else tuple(parents)
        failure: OSError | None = None
        for parent in places:
            _remove_abandoned(parent)
            try:
                self.path, self._lock = _make(parent)
            except OSError as error:
                failure = error
            else:
                return
        raise failure or OSError("no place for a run directory")

    def __repr__(self) -> str:
        return f"<RunDirectory {self.path}>"

    def remove(self) -> None:
        """Remove it with the files that belong in it. Does nothing a second time."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def _make(parent: Path) -> tuple[Path, int]:
    while True:
        path = parent / f"ridgeline-{os.urandom(6).hex()}"
        path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # another supervisor may take it for abandoned until it is locked
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _lock(lock) and path.exists():
                return path, lock
            os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    with suppress(OSError):
        for path in parent.iterdir():
            if _DIRECTORY.fullmatch(path.name) is None:
                continue
            with suppress(OSError):
                file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    if os.fstat(file).st_uid == os.geteuid() and _lock(file):
                        _remove(path)
                finally:
                    os.close(file)


def _lock(directory: int) -> bool:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(path: Path) -> None:
    with suppress(OSError):
        for entry in path.iterdir():
            if _ENTRY.fullmatch(entry.name) is not None:
                with suppress(OSError):
                    entry.unlink()
        path.rmdir()
