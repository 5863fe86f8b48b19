"""One line of JSON for each finished request, to standard output or a file.

Lines are encoded by the caller and written by a thread of their own, in batches, so that a pipe nobody reads never holds
the event loop. What waits is bounded in bytes; beyond that lines are dropped and counted.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from pathlib import Path

import msgspec

from telemetry.record import RequestRecord
from telemetry.wellformed import well_formed

STANDARD_OUTPUT = "-"
MAX_WAITING_BYTES = 16 * 1024 * 1024

# The record is an array between processes; people and programs that read the log want names, and no spans or sketches.
LOGGED_FIELDS = tuple(
    name for name in RequestRecord.__struct_fields__ if name not in ("trace", "prompt", "affinity", "beginning")
)
_Whole = msgspec.defstruct("_Whole", [("time", str), *((name, object) for name in LOGGED_FIELDS)], gc=False)
_Known = msgspec.defstruct(
    "_Known", [("time", str), *((name, object, None) for name in LOGGED_FIELDS)], omit_defaults=True, gc=False
)
_fields = attrgetter(*LOGGED_FIELDS)
_encoder = msgspec.json.Encoder()
# What some readers of lines take for a line end and JSON may carry as it is: NEL, line and paragraph separator.
_LINE_ENDS = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "\x85\u2028\u2029")


@lru_cache(maxsize=4)
def _second(unix_seconds: int) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat().removesuffix("+00:00")


def json_object(record: RequestRecord) -> bytes:
    r"""Return the record as a JSON object on one line, unknown figures as null, without a line end.

    `time` comes first: RFC 3339 in UTC with milliseconds. Lone surrogates appear as their escapes (``\\ud800``).
    """
    return _encoded(record, _Whole)


def log_line(record: RequestRecord) -> bytes:
    """Return the same without the fields that are null, which are half of it: a line of the log, without its end."""
    return _encoded(record, _Known)


def _encoded(record: RequestRecord, kind: Callable[..., msgspec.Struct]) -> bytes:
    milliseconds = int(record.ended_unix_seconds * 1000)
    time = f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"
    try:
        line = _encoder.encode(kind(time, *_fields(record)))
    except UnicodeEncodeError:
        line = _encoder.encode(kind(time, *_fields(well_formed(record))))
    if not line.isascii():
        for character, escape in _LINE_ENDS:
            line = line.replace(character, escape)
    return line


class JsonLog:
    """The sink. To be closed, or the newest lines may be missing.

    A file is opened for appending and opened again when something else lies at its path (it was rotated away). Faults
    while writing lose the lines concerned; `on_fault` is then called *in the writer's thread* with one text, again only
    after a write has succeeded. Raises OSError when the file cannot be opened at the start.
    """

    def __init__(
        self, path: str, *, on_fault: Callable[[str], None] | None = None, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._path = path
        self._on_fault = on_fault
        self._max_waiting_bytes = max_waiting_bytes
        self._lock = threading.Condition()
        self._lines: list[bytes] = []
        self._waiting_bytes = 0  # of lines not yet taken by the writer, and of the batch it has in hand
        self._lines_in_hand = 0  # of the batch being written
        self._dropped = 0
        self._is_closing = False
        self._is_failing = False
        self._is_line_torn = False  # the last write ended inside a line
        self._file: int | None = _open(path)
        # A daemon: a pipe that blocks for ever must not keep the process from ending.
        self._thread = threading.Thread(target=self._write_batches, name="json-log", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "closing" if self._is_closing else "failing" if self._is_failing else "open"
        return f"<JsonLog {self._path} {state}, {self._waiting_bytes} bytes waiting, {self._dropped} dropped>"

    @property
    def dropped(self) -> int:
        """Lines lost so far, for whatever reason."""
        return self._dropped

    @property
    def is_failing(self) -> bool:
        """Whether the last write lost lines."""
        return self._is_failing

    def write(self, record: RequestRecord) -> None:
        """Take a record, or drop it when too much waits already. Does not block."""
        self.write_all([record])

    def write_all(self, records: Sequence[RequestRecord]) -> None:
        """Take records, or drop those for which there is no room. Does not block."""
        lines = [log_line(record) + b"\n" for record in records]
        with self._lock:
            had_lines = bool(self._lines)
            for line in lines:
                if self._is_closing or self._waiting_bytes + len(line) > self._max_waiting_bytes:
                    self._dropped += 1
                    continue
                self._lines.append(line)
                self._waiting_bytes += len(line)
            if self._lines and not had_lines:
                self._lock.notify()

    def close(self, timeout_seconds: float) -> None:
        """Write what waits, blocking for at most this long; what is left then counts as dropped."""
        with self._lock:
            self._is_closing = True
            self._lock.notify()
        self._thread.join(timeout_seconds)
        with self._lock:
            self._dropped += len(self._lines) + self._lines_in_hand
            self._lines.clear()

    def _write_batches(self) -> None:
        while True:
            with self._lock:
                while not self._lines and not self._is_closing:
                    self._lock.wait()
                batch, self._lines = self._lines, []
                self._lines_in_hand = len(batch)
            if not batch:
                break
            lost, text = self._write(batch)
            with self._lock:
                self._waiting_bytes -= sum(map(len, batch))
                self._dropped += lost
                self._lines_in_hand = 0
                is_news = text is not None and not self._is_failing
                self._is_failing = text is not None
            if is_news and self._on_fault is not None:
                self._on_fault(f"request log {self._path}: {text}; lines are being lost")
        self._close_file()

    def _write(self, batch: list[bytes]) -> tuple[int, str | None]:
        """Return how many lines of the batch were lost, and why."""
        data = b"".join(batch)
        done = 0
        try:
            file = self._current_file()
            if self._is_line_torn:
                os.write(file, b"\n")
                self._is_line_torn = False
            while done < len(data):
                done += _write_some(file, memoryview(data)[done:])
        except OSError as error:
            self._is_line_torn = self._is_line_torn or (done > 0 and data[done - 1 : done] != b"\n")
            return len(batch) - data.count(b"\n", 0, done), error.strerror
        return 0, None

    def _current_file(self) -> int:
        if self._path == STANDARD_OUTPUT:
            assert self._file is not None  # noqa: S101 -- opened at the start and never given up
            return self._file
        if self._file is not None:
            try:
                if os.path.samestat(Path(self._path).stat(), os.fstat(self._file)):
                    return self._file
            except FileNotFoundError:
                pass
            self._close_file()
            self._is_line_torn = False
        self._file = _open(self._path)
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open(path: str) -> int:
    if path == STANDARD_OUTPUT:
        return os.dup(1)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _write_some(file: int, data: memoryview) -> int:
    try:
        return os.write(file, data)
    except BlockingIOError:  # someone who shares this pipe made it non-blocking
        poll = select.poll()
        poll.register(file, select.POLLOUT)
        poll.poll()
        return 0
