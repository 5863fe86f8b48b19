"""What a record costs control is measured on records that are really judged and logged."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.control_path import BATCH, Control, measure_control
from benchmarks.hot_path import HotPath
from benchmarks.work import count_work
from proxy.records import RecordSender, encode_frame
from telemetry.record import RequestRecord
from telemetry.sinks.jsonlog import log_line


async def test_every_step_of_every_kind_is_measured(tmp_path: Path) -> None:
    """Each kind of request is measured with and without limits, and every step takes time."""
    found = measure_control(tmp_path, repeats=1, batch=8)

    assert [(each.kind, each.is_judged) for each in found] == [
        (kind, judged) for kind in ("plain request", "one-token stream", "stream") for judged in (False, True)
    ]
    assert all(each.read_us > 0 and each.log_us > 0 and each.total_us > each.log_us for each in found)


class Keeper(RecordSender):
    """Keeps records instead of sending them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.kept: list[RequestRecord] = []

    def put(self, record: RequestRecord) -> None:
        self.kept.append(record)


def records_of(run_dir: Path, count: int) -> list[RequestRecord]:
    """Of plain requests, as a serving process makes them."""
    path = HotPath(run_dir)
    keeper = path.state.sender = Keeper(run_dir / "nobody")
    for _ in range(count):
        path.plain()
    return keeper.kept


async def test_records_are_held_against_limits_where_the_gpu_is_known(tmp_path: Path) -> None:
    """What is measured as judging does judge: the records come back with an expected time, and without one otherwise."""

    kept = records_of(tmp_path, 1)

    known, unknown = (Control(tmp_path, has_gpu=has_gpu) for has_gpu in (True, False))
    for control in (known, unknown):
        control.take(encode_frame(kept))

    assert [record.e2e_expected_seconds is not None for record in (*known.recent, *unknown.recent)] == [True, False]


@pytest.mark.parametrize(("has_gpu", "most"), [(False, 615), (True, 3_750)])
async def test_a_record_takes_no_more_of_control_than_it_did(tmp_path: Path, has_gpu: bool, most: int) -> None:
    """Instructions of bytecode for a plain request, 5 % above what they were: no machine changes them."""
    control, frame = Control(tmp_path, has_gpu=has_gpu), encode_frame(records_of(tmp_path, BATCH))
    control.take(frame)

    assert count_work(lambda: control.take(frame)).instructions / BATCH < most


async def test_a_line_of_the_log_is_no_longer_than_it_was(tmp_path: Path) -> None:
    """To write it is half of what control spends on a plain request: 1,045 bytes, of which the nulls would be twice."""
    (record,) = records_of(tmp_path, 1)

    assert len(log_line(record)) < 1_100
