"""The request log: one line of JSON a record, whatever is in it, and nobody held up by whoever reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from telemetry.record import NoToken, Outcome, RequestRecord, Trace
from telemetry.sinks.jsonlog import JsonLog, json_object, log_line


def a_record(number: int = 0, **fields: object) -> RequestRecord:
    return RequestRecord(**{"request_id": f"r-{number}", "ended_unix_seconds": 1_700_000_000.1239, **fields})  # type: ignore[arg-type]


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def ids_of(path: Path) -> list[object]:
    return [line["request_id"] for line in lines_of(path)]


def test_line_has_the_time_first_and_every_field() -> None:
    """`time` is RFC 3339 in UTC with milliseconds and comes first; all fields but `trace` follow by name, or as null."""
    record = a_record(
        trace=Trace(span_id="a"), outcome=Outcome.OK, no_token=NoToken.CUT, finish_reasons=("stop", "length"), ttft_seconds=0.25
    )

    line = json.loads(json_object(record))

    assert list(line) == [
        "time",
        *(name for name in RequestRecord.__struct_fields__ if name not in ("trace", "prompt", "affinity", "beginning")),
    ]
    assert line["time"] == "2023-11-14T22:13:20.123Z"
    assert (line["outcome"], line["no_token"], line["finish_reasons"]) == ("ok", "cut", ["stop", "length"])
    assert line["ttft_seconds"] == 0.25
    assert line["tpot_seconds"] is None


def test_a_line_of_the_log_leaves_out_what_is_not_known() -> None:
    """Nulls are left out and nothing else: what is zero, false or empty is known. They would be half of the log."""
    record = a_record(outcome=Outcome.OK, ttft_seconds=0.0, cached_tokens=0)

    line, whole = json.loads(log_line(record)), json.loads(json_object(record))

    assert line == {name: value for name, value in whole.items() if value is not None}
    assert (line["ttft_seconds"], line["cached_tokens"], line["cached_inferred"], line["causes"]) == (0.0, 0, False, [])
    assert "tpot_seconds" not in line


def test_whole_second_keeps_its_milliseconds() -> None:
    """The time always has the same form."""
    assert json.loads(json_object(a_record(ended_unix_seconds=1_700_000_000.0)))["time"] == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize(
    ("text", "logged"),
    [
        ("a\r\nb\x00\x1b", "a\r\nb\x00\x1b"),
        ("a\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029b", "a\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029b"),
        ('"}\n{"outcome":"ok"', '"}\n{"outcome":"ok"'),
        ("\ud800 and \udfff", "\\ud800 and \\udfff"),
        ("日本語 🙂", "日本語 🙂"),
    ],
)
@pytest.mark.parametrize("write", [json_object, log_line])
def test_line_stays_one_line_of_valid_utf8(write: Callable[[RequestRecord], bytes], text: str, logged: str) -> None:
    """No text in a record can end the line, in anybody's notion of a line, or break the encoding."""
    line = write(a_record(request_id=text, finish_reasons=(text,)))

    assert len(line.decode("utf-8").splitlines()) == 1
    assert json.loads(line)["request_id"] == logged
    assert json.loads(line)["finish_reasons"] == [logged]


def test_every_record_is_a_line_in_order(tmp_path: Path) -> None:
    """What was written before the close is in the file, in order and complete."""
    log = JsonLog(str(tmp_path / "log"))
    for number in range(1000):
        log.write(a_record(number))
    log.close(5)

    assert ids_of(tmp_path / "log") == [f"r-{number}" for number in range(1000)]
    assert log.dropped == 0


def test_file_is_appended_to(tmp_path: Path) -> None:
    """A restart does not lose what was logged before."""
    for number in range(2):
        log = JsonLog(str(tmp_path / "log"))
        log.write(a_record(number))
        log.close(5)

    assert ids_of(tmp_path / "log") == ["r-0", "r-1"]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_rotated_file_is_opened_again(tmp_path: Path, is_replaced: bool) -> None:
    """After the file was moved away, with or without a new one in its place, lines go to the path again."""
    path = tmp_path / "log"
    log = JsonLog(str(path))
    log.write(a_record(1))
    eventually(path.read_bytes)
    path.rename(tmp_path / "log.1")
    if is_replaced:
        path.touch()

    log.write(a_record(2))
    log.close(5)

    assert ids_of(tmp_path / "log.1") == ["r-1"]
    assert ids_of(path) == ["r-2"]


def test_blocked_pipe_holds_nobody_up(tmp_path: Path) -> None:
    """While nobody reads, writing returns at once, drops are counted, and the close keeps its time limit."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = JsonLog(str(pipe), max_waiting_bytes=300_000)
    before = time.monotonic()
    for number in range(2000):
        log.write(a_record(number))
    log.close(0.05)
    assert time.monotonic() - before < 2

    assert 1000 < log.dropped <= 2000
    os.set_blocking(reader, True)
    os.close(reader)  # the writer's thread gets EPIPE and ends


def test_slow_reader_gets_whole_lines(tmp_path: Path) -> None:
    """A pipe that takes little at a time still gets every line whole, also when it does not block."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = JsonLog(str(pipe))
    for number in range(500):
        log.write(a_record(number))
    os.set_blocking(reader, True)
    read = b""
    while read.count(b"\n") < 500:
        read += os.read(reader, 1000)
    log.close(5)
    os.close(reader)

    assert [json.loads(line)["request_id"] for line in read.splitlines()] == [f"r-{number}" for number in range(500)]
    assert log.dropped == 0


def test_write_fault_is_told_once_and_counted() -> None:
    """A full disk loses lines, says so once, and ends nothing."""
    faults: list[str] = []
    log = JsonLog("/dev/full", on_fault=faults.append)
    log.write(a_record(1))
    eventually(lambda: log.dropped == 1)
    log.write(a_record(2))
    eventually(lambda: log.dropped == 2)
    log.close(5)

    assert faults == ["request log /dev/full: No space left on device; lines are being lost"]


def test_path_that_cannot_be_opened_is_a_fault_at_the_start(tmp_path: Path) -> None:
    """A log that never could be written is not discovered at the first request."""
    with pytest.raises(FileNotFoundError):
        JsonLog(str(tmp_path / "missing" / "log"))


def test_directory_that_vanished_loses_lines_until_it_is_back(tmp_path: Path) -> None:
    """Lines are lost and counted while the path cannot be opened, and written again when it can."""
    folder = tmp_path / "logs"
    folder.mkdir()
    log = JsonLog(str(folder / "log"))
    (folder / "log").unlink()
    folder.rmdir()
    log.write(a_record(1))
    eventually(lambda: log.dropped == 1)

    folder.mkdir()
    log.write(a_record(2))
    log.close(5)

    assert ids_of(folder / "log") == ["r-2"]


@pytest.mark.parametrize("is_blocking", [True, False])
def test_standard_output(is_blocking: bool) -> None:
    """The path `-` writes to the process's standard output, blocking or not, and leaves it open."""
    program = (
        f"import os; os.set_blocking(1, {is_blocking})\n"
        "from telemetry.sinks.jsonlog import JsonLog; from telemetry.record import RequestRecord\n"
        "log = JsonLog('-')\n"
        "for number in range(300): log.write(RequestRecord(request_id=str(number), ended_unix_seconds=0.0))\n"
        "log.close(5); os.set_blocking(1, True); print('still open')"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        *lines, last = process.stdout.read().splitlines()

    assert [json.loads(line)["request_id"] for line in lines] == [str(number) for number in range(300)]
    assert last == b"still open"


def test_lines_after_the_close_are_dropped(tmp_path: Path) -> None:
    """A record that comes too late is counted, not lost in silence."""
    log = JsonLog(str(tmp_path / "log"))
    log.close(5)
    log.write(a_record())

    assert log.dropped == 1
    assert (tmp_path / "log").read_bytes() == b""
