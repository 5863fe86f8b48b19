"""Arrays of figures in memory that processes share: one file each, one writer each, any number of readers.

A file is a header of 64 bytes, the cells of `telemetry.layout` as native float64, and the names of what they are about. The
cells are 8-byte aligned, so that a reader sees each before or after a change and never half of it. The file outlives its
writer: one that is started again goes on counting where the last one was killed, and one with other names takes over what
both have, so counters never go back. Files lie on memory (``/dev/shm``) and never move between
machines, which is why byte order is not part of the format.

Nothing that lies at the path can make a reader fail: what is missing, short, from another version or about other names is
the same to it as a process that has not started yet.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

import msgspec

from telemetry.catalog import Writer
from telemetry.layout import Layout, Names, gauge_starts, moves

_HEADER = struct.Struct("=8sIIQ32s8x")  # magic, version, bytes a cell, cells, digest of the layout
_MAGIC = b"RDGLCELL"
_VERSION = 2
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Names).decode
_CELL_BYTES = 8
assert _HEADER.size == 64  # noqa: S101 -- a whole number of cells, so that the cells stay aligned


class Cells:
    """A mapped array. `values` has `Layout.size` floats and may be written to only by the process that owns the file."""

    __slots__ = ("_map", "path", "values")

    def __init__(self, path: Path, mapped: mmap.mmap, size: int) -> None:
        self.path = path
        self._map = mapped
        self.values: memoryview[float] = memoryview(mapped)[_HEADER.size : _HEADER.size + size * _CELL_BYTES].cast("d")

    def __repr__(self) -> str:
        return f"<Cells {self.path} {'closed' if self._map.closed else f'{len(self.values)} cells'}>"

    def close(self) -> None:
        """Unmap; the file stays. Does nothing a second time. Raises BufferError while a slice of `values` is in use."""
        self.values.release()
        self._map.close()


def create_cells(path: Path, layout: Layout, writer: Writer | None = None, *, heir_of: Path | None = None) -> Cells:
    """The writer's array at this path. It goes on with the values that are there, else it is all 0.

    It takes over from the array at ``heir_of``, or from the one at ``path`` itself. With a kind of ``writer``, its gauges
    begin as `reset_gauges` would set them wherever nothing was there, also in the blocks that are new.

    An array of another layout gives the values of the blocks that both have, so that counters survive a reload. There must
    be only one writer for a path at a time. A new file appears complete or not at all, and an old one that does not fit is
    replaced, never changed under its readers. Gauges still hold what the last writer left: see `reset_gauges`.
    Raises OSError when the file cannot be made, also when memory for it is short.
    """
    kept = _open(path, layout, writable=True)
    if kept is not None:
        return kept
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Allocated now: on a full memory file system a sparse file would end the process by SIGBUS at some later count.
        names = _encode(layout.names)
        file_bytes = _names_at(layout) + len(names)
        os.posix_fallocate(file, 0, file_bytes)
        os.pwrite(file, _header(layout), 0)
        os.pwrite(file, names, _names_at(layout))
        mapped = mmap.mmap(file, file_bytes)
        if writer is not None:
            with memoryview(mapped)[_HEADER.size : _names_at(layout)].cast("d") as values:
                for cell, start in gauge_starts(layout, writer):
                    if start != 0.0:  # zero is there already
                        values[cell] = start
        _take_over(heir_of or path, layout, mapped)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    return Cells(path, mapped, layout.size)


def map_cells(path: Path, layout: Layout) -> Cells | None:
    """A reader's view of another process's array; `values` is read-only.

    ``None`` when there is no file, or none that fits this layout, whatever it is.
    """
    return _open(path, layout, writable=False)


def reset_gauges(cells: Cells, layout: Layout, writer: Writer) -> None:
    """Set the gauges of this kind of writer to what they are before anything was observed: 0, or NaN for unknown.

    To be called by a process that starts, because what ran in its predecessor ended with it.
    """
    for cell, start in gauge_starts(layout, writer):
        cells.values[cell] = start


def _names_at(layout: Layout) -> int:
    return _HEADER.size + layout.size * _CELL_BYTES


def _file_bytes(layout: Layout) -> int:
    return _names_at(layout) + len(_encode(layout.names))


def _take_over(path: Path, layout: Layout, mapped: mmap.mmap) -> None:
    """Copy what an array of another layout at the path has in common with this one; nothing if it cannot be read."""
    with suppress(OSError, struct.error, msgspec.MsgspecError, ValueError):
        if not stat.S_ISREG(path.lstat().st_mode):
            return
        whole = path.read_bytes()
        magic, version, cell_bytes, cells, digest = _HEADER.unpack_from(whole)
        if (magic, version, cell_bytes) != (_MAGIC, _VERSION, _CELL_BYTES):
            return
        old = Layout.of_names(_decode(whole[_HEADER.size + cells * _CELL_BYTES :]))
        if bytes.fromhex(old.digest) != digest or old.size != cells:
            return  # of another version
        for there, here, count in moves(old, layout):
            start, end = (_HEADER.size + cell * _CELL_BYTES for cell in (there, there + count))
            at = _HEADER.size + here * _CELL_BYTES
            mapped[at : at + end - start] = whole[start:end]


def _header(layout: Layout) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, _CELL_BYTES, layout.size, bytes.fromhex(layout.digest))


def _open(path: Path, layout: Layout, *, writable: bool) -> Cells | None:
    # Not blocking: a pipe in the file's place must not hold the reader.
    mode = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK
    with suppress(OSError):
        file = os.open(path, mode)
        try:
            if os.fstat(file).st_size != _file_bytes(layout) or os.pread(file, _HEADER.size, 0) != _header(layout):
                return None
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return Cells(path, mmap.mmap(file, _file_bytes(layout), access=access), layout.size)
        finally:
            os.close(file)
    return None
