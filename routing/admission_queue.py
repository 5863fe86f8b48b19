"""Who is next, when more requests wait than workers have room for: bounded, with deadlines, and fair among keys.

Three rules, all in tokens, since a request of 100,000 tokens takes a worker as much as a hundred of 1,000:

- *Keys share evenly, by their weight.* Start-time fair queueing: a key's next request starts, in virtual time, where its
  last one ended, or now if it had nothing waiting. The least start goes first. A key with a thousand requests waiting
  therefore delays another key's single one by the one that is being served, and no more.
- *A priority is a share.* Classes share as keys do, with the weights of `SHARES`. While requests of all classes wait, every
  class gets its part: `low` is slow, and never stopped, whatever the others ask for; that is the ageing.
- *Who has most has to give.* A newcomer to a full queue takes the place of the youngest request of the key that has most
  waiting for its weight, in the lowest class that is not above its own; if that is its own key, it is refused itself.

Pure: ``now`` comes in. Every operation costs O(log n), a newcomer to a full queue O(keys that wait).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

SHARES = {"high": 16.0, "normal": 4.0, "low": 1.0}
"""Priorities and their weights, most urgent first."""

_Item = TypeVar("_Item")


class Waiting(Generic[_Item]):
    """One request that waits. Instants are monotonic seconds."""

    flow: _Flow[_Item]  # once it waits

    __slots__ = ("bytes", "flow", "is_waiting", "item", "key", "priority", "since", "tokens", "until", "weight")

    def __init__(
        self,
        item: _Item,
        *,
        key: str,
        priority: str = "normal",
        weight: float = 1.0,
        tokens: int,
        held_bytes: int = 0,
        since: float,
        until: float,
    ) -> None:
        self.item = item
        self.key = key  # whose it is; all that came without a key are one
        self.priority = priority
        self.weight = weight
        self.tokens = tokens or 1
        self.bytes = held_bytes
        self.since = since
        self.until = until
        self.is_waiting = False

    def __repr__(self) -> str:
        return f"<Waiting {self.item!r} of {self.key or 'no key'}, {self.priority}, {self.tokens} tokens>"


class _Flow(Generic[_Item]):
    """The requests of one key in one class, oldest first."""

    __slots__ = ("bytes", "entries", "is_listed", "of", "start", "weight")

    def __init__(self, of: _Class[_Item], weight: float) -> None:
        self.of = of
        self.weight = weight
        self.start = 0.0  # virtual start of the next one
        self.entries: OrderedDict[Waiting[_Item], None] = OrderedDict()
        self.bytes = 0
        self.is_listed = False  # in the heap of its class


class _Class(Generic[_Item]):
    """The flows of one priority."""

    __slots__ = ("flows", "heap", "number", "share", "start", "virtual", "waiting")

    def __init__(self, number: int, share: float) -> None:
        self.number = number
        self.share = share
        self.start = 0.0
        self.virtual = 0.0  # start of the request that was served last
        self.flows: dict[str, _Flow[_Item]] = {}
        self.heap: list[tuple[float, int, _Flow[_Item]]] = []
        self.waiting = 0

    def first(self) -> _Flow[_Item] | None:
        """The flow whose turn it is."""
        heap = self.heap
        while heap:
            flow = heap[0][2]
            if flow.entries:
                return flow
            heappop(heap)  # all of it has left
            flow.is_listed = False
        return None


class _Share(Generic[_Item]):
    """What a flow has waiting, while it is considered who has to leave."""

    __slots__ = ("bytes", "count", "flow", "youngest")

    def __init__(self, flow: _Flow[_Item]) -> None:
        self.flow = flow
        self.count = len(flow.entries)
        self.bytes = flow.bytes
        self.youngest = reversed(flow.entries)

    def measure(self, by_count: bool) -> tuple[int, float]:
        """Larger for who has to give first."""
        return (self.flow.of.number, (self.count if by_count else self.bytes) / self.flow.weight) if self.count else (-1, 0.0)

    def give(self) -> Waiting[_Item]:
        """Its youngest request."""
        entry = next(self.youngest)
        self.count -= 1
        self.bytes -= entry.bytes
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a queue holds at most."""

    requests: int
    bytes: int


class AdmissionQueue(Generic[_Item]):
    """Requests that wait for one pool.

    `offer` puts one in, `peek` shows whose turn it is and `take` takes it out, `remove` forgets one that has left, `overdue`
    tells whose time is over. `front` is for one that is next and finds no room: it keeps its turn, and others may be taken
    meanwhile.
    """

    def __init__(self) -> None:
        self.front: Waiting[_Item] | None = None
        self.bytes = 0  # of all that wait
        self._classes = {name: _Class[_Item](number, share) for number, (name, share) in enumerate(SHARES.items())}
        self._virtual = 0.0
        self._size = 0
        self._deadlines: list[tuple[float, int, Waiting[_Item]]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<AdmissionQueue of {self._size}, {self.bytes} bytes, front {self.front!r}>"

    def offer(self, entry: Waiting[_Item], bounds: Bounds) -> list[Waiting[_Item]] | None:
        """Let one wait. Gives back who had to leave for it, as a rule nobody; ``None`` if it is refused itself."""
        victims: list[Waiting[_Item]] = []
        if self._size >= bounds.requests or self.bytes + entry.bytes > bounds.bytes:
            found = self._victims(entry, bounds)
            if found is None:
                return None
            victims = found
            for victim in victims:
                self.remove(victim)
        self._put(entry)
        return victims

    def _put(self, entry: Waiting[_Item]) -> None:
        cls = self._classes[entry.priority]
        flow = cls.flows.get(entry.key)
        if flow is None:
            flow = cls.flows[entry.key] = _Flow(cls, entry.weight)
        flow.weight = entry.weight
        if not cls.waiting:
            cls.start = max(cls.start, self._virtual)
        self._sequence += 1
        if not flow.is_listed:
            flow.start = max(flow.start, cls.virtual)
            heappush(cls.heap, (flow.start, self._sequence, flow))
            flow.is_listed = True
        flow.entries[entry] = None
        flow.bytes += entry.bytes
        cls.waiting += 1
        self._size += 1
        self.bytes += entry.bytes
        entry.flow = flow
        entry.is_waiting = True
        deadlines = self._deadlines
        if len(deadlines) > 64 + 2 * self._size:  # most of them have left
            self._deadlines = deadlines = [each for each in deadlines if each[2].is_waiting]
            heapify(deadlines)
        heappush(deadlines, (entry.until, self._sequence, entry))

    def _victims(self, entry: Waiting[_Item], bounds: Bounds) -> list[Waiting[_Item]] | None:
        """Who has to leave so that there is room for this one; ``None`` if it may not push anybody out."""
        if entry.bytes > bounds.bytes or bounds.requests < 1:
            return None
        own = self._classes[entry.priority]
        owned = own.flows.get(entry.key)
        others = [
            _Share(flow)
            for cls in self._classes.values()
            if cls.number >= own.number
            for flow in cls.flows.values()
            if flow.entries and flow is not owned
        ]
        count, held = (1, entry.bytes) if owned is None else (1 + len(owned.entries), owned.bytes + entry.bytes)
        victims: list[Waiting[_Item]] = []
        size, total = self._size, self.bytes + entry.bytes
        while size >= bounds.requests or total > bounds.bytes:
            by_count = size >= bounds.requests
            largest = max(others, key=lambda share: share.measure(by_count), default=None)
            if largest is None or largest.measure(by_count) <= (own.number, (count if by_count else held) / entry.weight):
                return None
            victim = largest.give()
            victims.append(victim)
            size -= 1
            total -= victim.bytes
        return victims

    def peek(self) -> Waiting[_Item] | None:
        """Whose turn it is, apart from the front; ``None`` if nobody else waits."""
        flow = self._first_flow()
        return None if flow is None else next(iter(flow.entries))

    def take(self, entry: Waiting[_Item]) -> None:
        """Take out the front, or the one that `peek` shows, to be served. Its key is charged for it."""
        if entry is not self.front:
            self._charge(entry)
        self._forget(entry)

    def bring_to_front(self) -> Waiting[_Item] | None:
        """The front, or the one whose turn it is, which becomes the front. Its key is charged for it."""
        if self.front is None:
            entry = self.peek()
            if entry is not None:
                self._charge(entry)
                self._unlist(entry)
                self.front = entry
        return self.front

    def remove(self, entry: Waiting[_Item]) -> None:
        """One that waits leaves, whatever the reason; once more does nothing."""
        if entry.is_waiting:
            self._forget(entry)

    def overdue(self, now: float) -> list[Waiting[_Item]]:
        """Whose time is over, earliest first; they still wait until they are removed."""
        found: list[Waiting[_Item]] = []
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or not deadlines[0][2].is_waiting):
            entry = heappop(deadlines)[2]
            if entry.is_waiting:
                found.append(entry)
        return found

    def everybody(self) -> list[Waiting[_Item]]:
        """All that wait, in the order in which they came."""
        return [each[2] for each in sorted(self._deadlines, key=lambda each: each[1]) if each[2].is_waiting]

    def _first_flow(self) -> _Flow[_Item] | None:
        waiting = [cls for cls in self._classes.values() if cls.waiting]
        return min(waiting, key=lambda cls: (cls.start, cls.number)).first() if waiting else None

    def _charge(self, entry: Waiting[_Item]) -> None:
        """The turn of this one has come: virtual time goes on to its start, and what follows it starts at its end."""
        flow = entry.flow
        cls = flow.of
        self._virtual = cls.start
        cls.start += entry.tokens / cls.share
        cls.virtual = flow.start
        flow.start += entry.tokens / flow.weight
        self._sequence += 1
        heapreplace(cls.heap, (flow.start, self._sequence, flow))  # it was the first

    def _forget(self, entry: Waiting[_Item]) -> None:
        if entry is self.front:
            self.front = None
        else:
            self._unlist(entry)
        entry.is_waiting = False
        self._size -= 1
        self.bytes -= entry.bytes

    def _unlist(self, entry: Waiting[_Item]) -> None:
        flow = entry.flow
        del flow.entries[entry]
        flow.bytes -= entry.bytes
        flow.of.waiting -= 1
