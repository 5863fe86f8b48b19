"""Changes made by hand: what they do to what is configured, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.control.overlay import Overlay, OverlayError, keep_overlay, kept_overlay
from routing.topology import Following
from tests.proxy.fleets import a_topology, an_addition, names

TWO = {"default": ["w-0", "w-1"]}
POOLS = {"short": ["w-0", "w-1"], "long": ["w-2", "w-3"]}


def test_no_change_changes_nothing():
    """Without changes the configured topology itself is in force."""
    configured = a_topology(POOLS)

    assert Overlay().over(configured) is configured


def test_an_added_worker_comes_last_in_its_pool():
    """It is appended there with its address, and every later worker moves up by one."""
    configured = a_topology(POOLS)

    topology = Overlay().add(configured, an_addition("w-9", "http://[fd00::1]:81/sub/v1/", pool="short")).over(configured)

    assert names(topology, "short") == ["w-0", "w-1", "w-9"]
    added = topology.workers[2]
    assert (added.url, added.host, added.port) == ("http://[fd00::1]:81/sub", "fd00::1", 81)
    assert (added.base_path, added.authority) == ("/sub", "[fd00::1]:81")
    assert [worker.index for worker in topology.workers] == [0, 1, 2, 3, 4]


def test_a_removed_worker_is_gone():
    """The others keep their order and are counted anew."""
    configured = a_topology(POOLS)

    topology = Overlay().remove(configured, "w-0").over(configured)

    assert [(worker.index, worker.name) for worker in topology.workers] == [(0, "w-1"), (1, "w-2"), (2, "w-3")]


def test_draining_is_marked_and_can_be_taken_back():
    """Only the worker that was named, and it keeps its place."""
    configured = a_topology(TWO)
    drained = Overlay().drain(configured, "w-1")

    assert [worker.is_draining for worker in drained.over(configured).workers] == [False, True]
    assert drained.resume(configured, "w-1").over(configured) == configured


def test_a_refused_change_leaves_the_old_ones():
    """An overlay is a value: the one that was in force is as it was."""
    configured = a_topology(TWO)
    overlay = Overlay().add(configured, an_addition("w-9"))
    before = overlay.over(configured)

    with pytest.raises(OverlayError):
        overlay.add(configured, an_addition("w-9"))

    assert overlay.over(configured) == before


@pytest.mark.parametrize(
    ("addition", "what"),
    [
        (an_addition("w-9", pool="nowhere"), "no pool 'nowhere'"),
        (an_addition("w-0", "http://127.0.0.1:99"), "'w-0' already"),
        (an_addition("w-2", "http://127.0.0.1:99", pool="short"), "'w-2' already"),  # of another pool
        (an_addition("w-9", "http://127.0.0.1:1/v1/", pool="short"), "at http://127.0.0.1:1 already"),
    ],
)
def test_what_cannot_be_added(addition, what):
    """An unknown pool, a name that any worker has, an address that the pool has."""
    with pytest.raises(OverlayError, match=what):
        Overlay().add(a_topology(POOLS if addition.pool != "default" else TWO), addition)


@pytest.mark.parametrize("change", [Overlay.drain, Overlay.resume, Overlay.remove])
def test_an_unknown_worker_cannot_be_changed(change):
    """There is nothing to change about a worker that is not there, or not there any more."""
    configured = a_topology(TWO)
    without = Overlay().remove(configured, "w-0")

    for overlay, name in ((Overlay(), "w-9"), (without, "w-0")):
        with pytest.raises(OverlayError, match="no worker"):
            change(overlay, configured, name)


def test_the_last_worker_of_a_pool_stays():
    """A pool without workers is none; whoever wants that drains the worker."""
    configured = a_topology(TWO)
    overlay = Overlay().remove(configured, "w-0")

    with pytest.raises(OverlayError, match="last worker"):
        overlay.remove(configured, "w-1")


def test_every_configured_worker_can_be_replaced_by_added_ones():
    """What was removed stays removed, also when nothing of what is configured is left in the pool."""
    configured = a_topology({"default": ["w-0"]})

    overlay = Overlay().add(configured, an_addition("w-9")).remove(configured, "w-0")

    assert names(overlay.over(configured)) == ["w-9"]


def test_a_removed_worker_can_be_added_elsewhere():
    """A name that is free again belongs to the address it was added with."""
    configured = a_topology(TWO)

    overlay = Overlay().remove(configured, "w-0").add(configured, an_addition("w-0", "http://127.0.0.1:99"))

    assert {worker.name: worker.url for worker in overlay.over(configured).workers} == {
        "w-0": "http://127.0.0.1:99",
        "w-1": "http://127.0.0.1:2",
    }


def test_an_added_worker_can_be_removed_and_added_again():
    """It is as if it had never been there."""
    configured = a_topology(TWO)
    once = Overlay().add(configured, an_addition("w-9")).remove(configured, "w-9")

    assert names(once.over(configured)) == ["w-0", "w-1"]
    assert names(once.add(configured, an_addition("w-9")).over(configured)) == ["w-0", "w-1", "w-9"]


def test_a_worker_that_comes_back_is_not_draining():
    """Draining ends with the worker that was drained."""
    configured = a_topology(TWO)
    overlay = Overlay().drain(configured, "w-0").remove(configured, "w-0").add(configured, an_addition("w-0"))

    assert not any(worker.is_draining for worker in overlay.over(configured).workers)


def test_changes_stay_over_another_configuration():
    """What was added, drained and removed by hand still is after a reload, as far as the new file has it."""
    overlay = Overlay().add(a_topology(TWO), an_addition("w-9")).drain(a_topology(TWO), "w-1").remove(a_topology(TWO), "w-0")

    topology = overlay.over(a_topology({"default": ["w-0", "w-1", "w-4"]}))

    assert names(topology) == ["w-1", "w-4", "w-9"]
    assert [worker.name for worker in topology.workers if worker.is_draining] == ["w-1"]


def test_changes_that_do_not_fit_any_more_are_left_out():
    """A pool that is gone takes what was added to it along; a name that is configured now belongs to the file."""
    overlay = Overlay().add(a_topology(POOLS), an_addition("w-9", "http://127.0.0.1:99", pool="long"))

    assert names(overlay.over(a_topology({"short": ["w-0"]})), "short") == ["w-0"]
    taken = overlay.over(a_topology({"short": ["w-9"], "long": ["w-3"]}))
    assert [(worker.name, worker.url) for worker in taken.workers] == [
        ("w-9", "http://127.0.0.1:10"),
        ("w-3", "http://127.0.0.1:4"),
    ]


def test_no_pool_is_left_empty_by_a_new_file():
    """If the new file has only removed workers in a pool, the file wins: a pool has to have one."""
    overlay = Overlay().remove(a_topology(TWO), "w-0")

    assert names(overlay.over(a_topology({"default": ["w-0"]}))) == ["w-0"]


def test_an_address_that_the_new_file_has_is_not_there_twice():
    """A worker added by hand and then configured under another name is one worker, not two."""
    overlay = Overlay().add(a_topology(TWO), an_addition("by-hand", "http://127.0.0.1:5"))

    topology = overlay.over(a_topology({"default": ["w-0", "w-1", "w-4"]}))

    assert len({worker.url for worker in topology.workers}) == len(topology.workers)


NAMES = st.sampled_from(["w-0", "w-1", "w-2", "w-3", "w-8", "w-9"])
CHANGES = st.lists(st.tuples(st.sampled_from(["add", "drain", "resume", "remove"]), NAMES), max_size=12)


@given(changes=CHANGES)
def test_accepted_changes_do_what_they_say(changes):
    """After any accepted changes: what was added is there, removed is not, drained drains, and the topology is sound."""
    configured = a_topology(POOLS)
    overlay = Overlay()
    for what, name in changes:
        try:
            if what == "add":
                overlay = overlay.add(configured, an_addition(name, pool="short"))
            else:
                overlay = getattr(overlay, what)(configured, name)
        except OverlayError:
            continue
        topology = overlay.over(configured)
        found = {worker.name: worker for worker in topology.workers}
        assert (name in found) is (what != "remove")
        if what != "remove":
            assert found[name].is_draining is (what == "drain")
        assert len(found) == len(topology.workers)
        assert [worker.index for worker in topology.workers] == list(range(len(topology.workers)))
        assert tuple(worker for pool in topology.pools for worker in pool.workers) == topology.workers
        assert all(pool.workers for pool in topology.pools)


def test_changes_are_kept_for_the_next_control_process(tmp_path):
    """What is kept comes back whole, and a later one replaces it."""
    configured = a_topology(POOLS)
    overlay = Overlay().add(configured, an_addition("w-9", pool="long")).drain(configured, "w-1").remove(configured, "w-0")
    keep_overlay(tmp_path, Overlay())

    keep_overlay(tmp_path, overlay)

    assert kept_overlay(tmp_path) == overlay


@pytest.mark.parametrize("content", [None, b"", b"\xc1", b"\x90", b"\x81\xa5added\xc0"])
def test_changes_that_cannot_be_read_are_none(tmp_path, content):
    """A control process starts without changes rather than not at all."""
    if content is not None:
        (tmp_path / "overlay.msgpack").write_bytes(content)

    assert kept_overlay(tmp_path) == Overlay()


def test_what_is_followed_stays_as_configured():
    """Changes by hand are about workers; how requests are followed is that of the file."""
    configured = replace(a_topology({"default": ["w-0", "w-1"]}), following=Following(sample_ratio=0.5))

    assert Overlay().drain(configured, "w-0").over(configured).following == Following(sample_ratio=0.5)
