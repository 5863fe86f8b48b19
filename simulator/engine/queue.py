"""Sequences that wait for a place, in the order in which they are to get one."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Protocol

from simulator.engine.sequence import Sequence
from simulator.engine.values import QueuePolicy


class WaitingQueue(Protocol):
    """Who is next, and who has gone."""

    def __len__(self) -> int: ...

    def __contains__(self, identifier: str) -> bool: ...

    def put(self, sequence: Sequence) -> None:
        """Queue a sequence that has just arrived."""

    def put_back(self, sequence: Sequence) -> None:
        """Queue a sequence that has lost its place."""

    def first(self) -> Sequence:
        """Who is next; it stays in the queue. There must be somebody."""

    def remove(self, identifier: str) -> Sequence | None:
        """Take somebody out; ``None`` if nobody of this name waits."""


class FcfsQueue:
    """First come, first served; who has lost its place is first again."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[str, Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, identifier: str) -> bool:
        return identifier in self._sequences

    def put(self, sequence: Sequence) -> None:
        """Behind all others."""
        self._sequences[sequence.request.identifier] = sequence

    def put_back(self, sequence: Sequence) -> None:
        """Before all others."""
        self._sequences[sequence.request.identifier] = sequence
        self._sequences.move_to_end(sequence.request.identifier, last=False)

    def first(self) -> Sequence:
        """Who is next; it stays in the queue."""
        return next(iter(self._sequences.values()))

    def remove(self, identifier: str) -> Sequence | None:
        """Take somebody out; ``None`` if nobody of this name waits."""
        return self._sequences.pop(identifier, None)


class PriorityQueue:
    """The lowest priority number first; among equals, first come, first served."""

    def __init__(self) -> None:
        self._sequences: dict[str, Sequence] = {}
        self._heap: list[tuple[int, int, Sequence]] = []  # may hold sequences that have gone, or twice who came back

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, identifier: str) -> bool:
        return identifier in self._sequences

    def put(self, sequence: Sequence) -> None:
        """At the place of its priority and arrival."""
        request = sequence.request
        self._sequences[request.identifier] = sequence
        heappush(self._heap, (request.priority, request.number, sequence))

    put_back = put

    def first(self) -> Sequence:
        """Who is next; it stays in the queue."""
        while True:
            sequence = self._heap[0][2]
            if self._sequences.get(sequence.request.identifier) is sequence:
                return sequence
            heappop(self._heap)

    def remove(self, identifier: str) -> Sequence | None:
        """Take somebody out; ``None`` if nobody of this name waits."""
        return self._sequences.pop(identifier, None)


def queue_of(policy: QueuePolicy) -> WaitingQueue:
    """An empty queue of this order."""
    return PriorityQueue() if policy is QueuePolicy.PRIORITY else FcfsQueue()
