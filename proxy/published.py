"""The topology in force, as control publishes it to the serving processes: one file in the run directory, replaced whole.

Control alone reads the configuration; serving processes read this, at their start and whenever it has been replaced. It holds
the workers' keys, and lies where only the gateway's own user can read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from routing.topology import Following, Key, Limits, Model, Topology, assemble

_FILE = "topology.msgpack"


class _Published(msgspec.Struct):
    models: tuple[Model, ...]
    keys: tuple[Key, ...]
    limits: Limits
    following: Following


_decode = msgspec.msgpack.Decoder(_Published).decode


def publish(run_dir: Path, topology: Topology) -> None:
    """Make this the topology in force. Readers see the old one or the new one, never a part. Raises OSError."""
    path = run_dir / _FILE
    fresh = path.with_name(f"{_FILE}.new")
    fresh.unlink(missing_ok=True)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(msgspec.msgpack.encode(_Published(topology.models, topology.keys, topology.limits, topology.following)))
    fresh.replace(path)


class TopologyReader:
    """Notices when a topology has been published. One per process."""

    __slots__ = ("_path", "_seen")

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / _FILE
        self._seen: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"<TopologyReader {self._path}, {'nothing read' if self._seen is None else 'read'}>"

    def forget(self) -> None:
        """What was read could not be used: it is news again."""
        self._seen = None

    def read_news(self) -> Topology | None:
        """The topology in force if it was published after the last call that gave one back; None if there is no news.

        A file that cannot be read is no news: the topology that this process has stays in force.
        """
        with suppress(OSError, msgspec.MsgspecError):
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns)
            if seen == self._seen:
                return None
            published = _decode(self._path.read_bytes())
            self._seen = seen
            return assemble(published.models, published.keys, published.limits, published.following)
        return None
