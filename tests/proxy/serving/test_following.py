"""A serving process goes over to another topology in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.published import publish
from proxy.serving.following import TopologyFollower
from routing.ring import Ring
from routing.topology import Topology
from tests.proxy.fleets import a_topology, names

ONE, TWO = (a_topology({"default": workers}) for workers in (["w-0"], ["w-0", "w-1"]))


class Clockwork:
    """A loop that does what is asked of it later when told to."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later(self, _: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.due.append(lambda: callback(*arguments))

    def turn(self) -> None:
        due, self.due = self.due, []
        for act in due:
            act()


class Process:
    def __init__(self, run_dir: Path, steps: int) -> None:
        self.loop = Clockwork()
        self.steps = steps
        self.adopted: list[Topology] = []
        self.is_short = False
        loop: asyncio.AbstractEventLoop = self.loop  # type: ignore[assignment]
        self.follower = TopologyFollower(run_dir, loop, self.prepare, self.adopt)

    def prepare(self, _: Topology) -> Iterator[dict[int, Ring] | None]:
        for _step in range(self.steps - 1):
            yield None
        yield {}

    def adopt(self, topology: Topology, _: dict[int, Ring]) -> None:
        if self.is_short:
            raise MemoryError
        self.adopted.append(topology)


def test_what_takes_one_step_is_in_force_at_once(tmp_path):
    """A look at a small change does it all."""
    process = Process(tmp_path, steps=1)
    publish(tmp_path, ONE)

    process.follower.look()

    assert process.adopted == [ONE]
    assert process.loop.due == []


def test_the_loop_runs_between_two_steps(tmp_path):
    """Nothing is in force until all steps are done, each in a turn of its own."""
    process = Process(tmp_path, steps=3)
    publish(tmp_path, ONE)

    process.follower.look()
    process.follower.look()
    process.loop.turn()
    assert process.adopted == []
    process.loop.turn()

    assert process.adopted == [ONE]


def test_a_newer_topology_takes_the_place_of_one_that_is_on_its_way(tmp_path):
    """The earlier one is not put in force after the newer one, nor at all."""
    process = Process(tmp_path, steps=2)
    publish(tmp_path, ONE)
    process.follower.look()
    publish(tmp_path, TWO)
    process.follower.look()

    process.loop.turn()

    assert [names(topology) for topology in process.adopted] == [["w-0", "w-1"]]


def test_what_failed_after_some_steps_is_tried_again(tmp_path):
    """When memory for the arrays is short the old topology stays in force, until there is room."""
    process = Process(tmp_path, steps=2)
    process.is_short = True
    publish(tmp_path, ONE)
    process.follower.look()
    with pytest.raises(MemoryError):
        process.loop.turn()

    process.is_short = False
    process.follower.look()
    process.loop.turn()

    assert process.adopted == [ONE]
