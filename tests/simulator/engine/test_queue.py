"""The order in which the waiting get their places."""

from __future__ import annotations

from simulator.engine.queue import WaitingQueue, queue_of
from simulator.engine.sequence import Sequence
from simulator.engine.values import QueuePolicy, Request
from tests.simulator.engine_runs import a_prompt


def a_sequence(name: str, priority: int = 0, number: int = 0) -> Sequence:
    return Sequence(Request(identifier=name, prompt=a_prompt(1), output_tokens=1, priority=priority, number=number))


def taken(queue: WaitingQueue, count: int = 99) -> list[str]:
    """Who is taken out, one after another."""
    names = []
    while len(queue) and len(names) < count:
        names.append(queue.first().request.identifier)
        queue.remove(names[-1])
    return names


def test_first_come_first_served():
    """Without priorities the order is that of arrival, whatever the priority."""
    queue = queue_of(QueuePolicy.FCFS)
    for name, priority in (("a", 3), ("b", 1), ("c", 2)):
        queue.put(a_sequence(name, priority))

    assert taken(queue) == ["a", "b", "c"]


def test_the_preempted_go_first():
    """Who comes back is before all others."""
    queue = queue_of(QueuePolicy.FCFS)
    queue.put(a_sequence("new"))
    queue.put_back(a_sequence("later"))
    queue.put_back(a_sequence("earlier"))

    assert taken(queue) == ["earlier", "later", "new"]


def test_the_lowest_number_goes_first():
    """With priorities the order is that of the numbers, and of arrival among equals; who comes back has its old place."""
    queue = queue_of(QueuePolicy.PRIORITY)
    priorities = {"a": 2, "b": 1, "c": 1, "d": 0}
    sequences = {name: a_sequence(name, priorities[name], number) for number, name in enumerate(priorities)}
    for sequence in sequences.values():
        queue.put(sequence)

    assert taken(queue, 2) == ["d", "b"]
    queue.put_back(sequences["b"])
    assert taken(queue) == ["b", "c", "a"]


def test_somebody_can_leave_the_queue():
    """Whoever is removed is not there any more and is not taken; a namesake that comes later is another one."""
    for policy in QueuePolicy:
        queue = queue_of(policy)
        first, namesake = a_sequence("b", 1, 1), a_sequence("b", 9, 3)
        queue.put(a_sequence("a", 0, 0))
        queue.put(first)
        queue.put(a_sequence("c", 2, 2))
        assert queue.remove("b") is first
        assert queue.remove("b") is None
        assert "b" not in queue
        queue.put(namesake)

        assert len(queue) == 3
        assert taken(queue, 2) == ["a", "c"]
        assert queue.first() is namesake
