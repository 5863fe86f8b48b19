"""Shared arrays: what a writer keeps, what a reader sees, and what neither trips over."""

from __future__ import annotations

import os
from math import isnan

import pytest

from telemetry.catalog import Writer
from telemetry.cells import create_cells, map_cells, reset_gauges
from telemetry.layout import Layout, offset


@pytest.fixture
def layout(a_topology) -> Layout:
    return Layout.of(a_topology())


@pytest.fixture
def other_layout(a_topology) -> Layout:
    """As many cells, other names."""
    return Layout.of(a_topology(keys=("app-a", "app-c")))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "serving-0.cells"


def test_a_new_array_is_all_zero(path, layout):
    """A fresh file has one cell for each of the layout, all 0, and nothing else lies beside it."""
    cells = create_cells(path, layout)

    assert cells.values.tolist() == [0.0] * layout.size
    assert [path] == list(path.parent.iterdir())
    cells.close()


def test_only_the_owner_may_look_into_the_file(path, layout):
    """Other users of the machine cannot read it."""
    create_cells(path, layout).close()

    assert path.stat().st_mode & 0o777 == 0o600


def test_a_reader_sees_what_the_writer_writes(path, layout):
    """Both map the same memory; nothing has to be flushed."""
    writer = create_cells(path, layout)
    reader = map_cells(path, layout)
    assert reader is not None

    writer.values[layout.size - 1] += 2.5

    assert reader.values[layout.size - 1] == 2.5
    writer.close()
    reader.close()


def test_a_reader_cannot_write(path, layout):
    """There is one writer for each array, and the memory itself sees to it."""
    create_cells(path, layout).close()
    reader = map_cells(path, layout)
    assert reader is not None

    with pytest.raises(TypeError, match="read-only"):
        reader.values[0] = 1.0
    reader.close()


def test_counters_go_on_after_a_restart(path, layout):
    """A writer that comes back finds its values, and readers that never went away go on seeing them."""
    first = create_cells(path, layout)
    reader = map_cells(path, layout)
    assert reader is not None
    first.values[3] = 41.0
    first.close()

    second = create_cells(path, layout)
    second.values[3] += 1

    assert reader.values[3] == 42.0
    second.close()
    reader.close()


def test_many_restarts_leave_one_file(path, layout):
    """Restarting does not pile up files, also when a writer was killed while it made one."""
    path.with_name("serving-0.cells.new").write_bytes(b"half a he")

    for _ in range(200):
        cells = create_cells(path, layout)
        cells.values[0] += 1
        cells.close()

    reader = map_cells(path, layout)
    assert reader is not None
    assert reader.values[0] == 200
    assert [path] == list(path.parent.iterdir())
    reader.close()


def test_an_array_of_other_names_is_replaced_and_not_changed(path, layout, other_layout):
    """A new topology begins in a new file; who still has the old one mapped keeps it as it was."""
    old = create_cells(path, layout)
    old.values[0] = 7.0

    new = create_cells(path, other_layout)
    new.values[0] = 8.0

    assert old.values[0] == 7.0
    assert map_cells(path, layout) is None
    old.close()
    new.close()


def test_what_two_topologies_share_is_counted_on_across_them(path, a_topology):
    """After a reload each route, pool, worker and key that is still there has the figures it had; new ones begin at 0."""
    before = Layout.of(a_topology(keys=("app-a", "app-b")))
    after = Layout.of(
        a_topology(
            pools=(("qwen", "default", ("w-9", "w-3")), ("llama", "long", ("w-2",)), ("phi", "default", ("w-7",))),
            keys=("app-c", "app-b"),
        )
    )
    old = create_cells(path, before)
    for cell in range(before.size):
        old.values[cell] = cell + 1

    new = create_cells(path, after)

    assert new.values[0] == 1
    assert new.values[after.worker_base(1)] == before.worker_base(3) + 1  # w-3
    assert new.values[after.worker_base(2)] == before.worker_base(2) + 1  # w-2
    assert new.values[after.worker_base(0)] == 0  # w-9
    assert new.values[after.pool_base(0)] == before.pool_base(2) + 1  # qwen/default
    assert new.values[after.key_base(1)] == before.key_base(1) + 1  # app-b
    assert new.values[after.key_base(0)] == 0  # app-c
    old.close()
    new.close()


def test_no_file_is_no_array(path, layout):
    """A process that has not started yet has no array."""
    assert map_cells(path, layout) is None


def _shortened(whole: bytes) -> bytes:
    return whole[:-8]


DAMAGE = {
    "empty": lambda whole: b"",
    "half a header": lambda whole: whole[:32],
    "header only": lambda whole: whole[:64],
    "one cell short": _shortened,
    "one byte long": lambda whole: whole + b"\0",
    "foreign": lambda whole: os.urandom(len(whole)),
    "zeroes": lambda whole: bytes(len(whole)),
    "older version": lambda whole: whole[:8] + b"\0\0\0\0" + whole[12:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_no_array_and_is_replaced(path, layout, damage):
    """A reader takes a file that does not fit for absent, and the next writer puts a good one in its place."""
    create_cells(path, layout).close()
    path.write_bytes(damage(path.read_bytes()))

    assert map_cells(path, layout) is None

    create_cells(path, layout).close()
    reader = map_cells(path, layout)
    assert reader is not None
    assert reader.values.tolist() == [0.0] * layout.size
    reader.close()


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_no_array(path, layout, make):
    """A reader is neither held up nor stopped by something else in the file's place."""
    make(path)

    assert map_cells(path, layout) is None


def test_a_file_that_cannot_be_made_is_an_error_that_leaves_nothing(path, layout):
    """The writer learns that it has no array, and no half-made file stays."""
    path.mkdir()

    with pytest.raises(OSError, match="directory"):
        create_cells(path, layout)
    assert [path] == list(path.parent.iterdir())


def test_gauges_start_anew_and_counters_do_not(path, layout):
    """A process that starts has nothing in flight and knows no lag, whatever its predecessor left."""
    cells = create_cells(path, layout)
    for cell in range(layout.size):
        cells.values[cell] = 5.0

    reset_gauges(cells, layout, Writer.SERVING)

    worker = layout.worker_base(0)
    assert cells.values[worker + offset("ridgeline_in_flight_requests")] == 0.0
    assert isnan(cells.values[offset("ridgeline_loop_lag_seconds")])
    assert cells.values[worker + offset("ridgeline_attempts_total")] == 5.0
    assert cells.values[worker + offset("ridgeline_worker_up")] == 5.0
    cells.close()


def test_closing_twice_is_harmless(path, layout):
    """The second close does nothing, and the repr says which condition the array is in."""
    cells = create_cells(path, layout)
    assert repr(cells) == f"<Cells {path} {layout.size} cells>"

    cells.close()
    cells.close()

    assert repr(cells) == f"<Cells {path} closed>"
