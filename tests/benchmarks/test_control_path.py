"""What a record costs control is measured on records that are really judged and logged."""

from __future__ import annotations

from pathlib import Path

from benchmarks.control_path import Control, measure_control
from benchmarks.hot_path import HotPath
from proxy.records import RecordSender, encode_frame
from telemetry.record import RequestRecord


async def test_every_step_of_every_kind_is_measured(tmp_path: Path) -> None:
    """Each kind of request is measured with and without limits, and every step takes time."""
    found = measure_control(tmp_path, repeats=1, batch=8)

    assert [(each.kind, each.is_judged) for each in found] == [
        (kind, judged) for kind in ("plain request", "one-token stream", "stream") for judged in (False, True)
    ]
    assert all(each.read_us > 0 and each.log_us > 0 and each.total_us > each.log_us for each in found)


async def test_records_are_held_against_limits_where_the_gpu_is_known(tmp_path: Path) -> None:
    """What is measured as judging does judge: the records come back with an expected time, and without one otherwise."""

    class Keeper(RecordSender):
        def put(self, record: RequestRecord) -> None:
            kept.append(record)

    kept: list[RequestRecord] = []
    path = HotPath(tmp_path)
    path.state.sender = Keeper(tmp_path / "nobody")
    path.plain()

    known, unknown = (Control(tmp_path, has_gpu=has_gpu) for has_gpu in (True, False))
    for control in (known, unknown):
        control.take(encode_frame(kept))

    assert [record.e2e_expected_seconds is not None for record in (*known.recent, *unknown.recent)] == [True, False]
