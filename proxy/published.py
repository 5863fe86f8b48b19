"""What control publishes to the serving processes: the topology in force, and the guidance; a file each, replaced whole.

Control alone reads the configuration; serving processes read these, at their start and whenever they have been replaced. The
topology holds the workers' keys, and lies where only the gateway's own user can read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from routing.guidance import NO_GUIDANCE, Guidance
from routing.quota import QuotaSharing
from routing.topology import Following, HealthRules, Key, Limits, Model, Retries, TlsFiles, Topology, assemble

_FILE = "topology.msgpack"
_GUIDANCE = "guidance.msgpack"
_Value = TypeVar("_Value")


class _Published(msgspec.Struct):
    models: tuple[Model, ...]
    keys: tuple[Key, ...]
    limits: Limits
    following: Following
    retries: Retries
    health: HealthRules
    is_settled: bool = True
    quota_sharing: QuotaSharing | None = None
    tls: TlsFiles | None = None


_decode = msgspec.msgpack.Decoder(_Published).decode
_decode_guidance = msgspec.msgpack.Decoder(Guidance).decode


def publish(run_dir: Path, topology: Topology) -> None:
    """Make this the topology in force. Readers see the old one or the new one, never a part. Raises OSError."""
    published = _Published(
        topology.models,
        topology.keys,
        topology.limits,
        topology.following,
        topology.retries,
        topology.health,
        topology.is_settled,
        topology.quota_sharing,
        topology.tls,
    )
    _replace(run_dir / _FILE, msgspec.msgpack.encode(published))


def publish_guidance(run_dir: Path, guidance: Guidance) -> None:
    """Make this what requests are routed by. Raises OSError."""
    _replace(run_dir / _GUIDANCE, msgspec.msgpack.encode(guidance))


def last_guidance(run_dir: Path) -> Guidance:
    """What was published last, by an earlier control process of this gateway; nothing where that cannot be read."""
    return GuidanceReader(run_dir).read_news() or NO_GUIDANCE


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
    fresh.replace(path)


class _NewsReader:
    """Notices when a file has been replaced."""

    __slots__ = ("_path", "_seen")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}, {'nothing read' if self._seen is None else 'read'}>"

    def forget(self) -> None:
        """What was read could not be used: it is news again."""
        self._seen = None

    def _read(self, decode: Callable[[bytes], _Value]) -> _Value | None:
        with suppress(OSError, msgspec.MsgspecError):
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns)
            if seen == self._seen:
                return None
            value = decode(self._path.read_bytes())
            self._seen = seen
            return value
        return None


class TopologyReader(_NewsReader):
    """Notices when a topology has been published. One per process."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir / _FILE)

    def read_news(self) -> Topology | None:
        """The topology in force if it was published after the last call that gave one back; None if there is no news.

        A file that cannot be read is no news: the topology that this process has stays in force.
        """
        published = self._read(_decode)
        if published is None:
            return None
        topology = assemble(
            published.models,
            published.keys,
            published.limits,
            published.following,
            retries=published.retries,
            health=published.health,
            quota_sharing=published.quota_sharing,
            tls=published.tls,
        )
        return replace(topology, is_settled=published.is_settled)


class GuidanceReader(_NewsReader):
    """The same for guidance."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir / _GUIDANCE)

    def read_news(self) -> Guidance | None:
        """The guidance if there is a newer one than this reader gave back; None if there is no news."""
        return self._read(_decode_guidance)
