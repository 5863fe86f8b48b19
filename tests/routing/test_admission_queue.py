"""The queue of requests that wait for a pool: who is next, who has to leave, whose time is over."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from routing.admission_queue import SHARES, AdmissionQueue, Bounds, Waiting

WIDE = Bounds(requests=100_000, bytes=10**12)


def a_request(name: str, key: str = "a", tokens: int = 100, **fields: object) -> Waiting[str]:
    """One that came at 0 and may wait for 30 s."""
    settings = {"priority": "normal", "weight": 1.0, "held_bytes": 10, "since": 0.0, "until": 30.0, **fields}
    return Waiting(name, key=key, tokens=tokens, **settings)  # type: ignore[arg-type]


def a_queue(*entries: Waiting[str]) -> AdmissionQueue[str]:
    """A queue that these came to in this order."""
    queue: AdmissionQueue[str] = AdmissionQueue()
    for entry in entries:
        assert queue.offer(entry, WIDE) == []
    return queue


def served(queue: AdmissionQueue[str], count: int = 1_000_000) -> list[Waiting[str]]:
    """Take out so many, or all."""
    found = []
    while len(found) < count and (entry := queue.peek()) is not None:
        queue.take(entry)
        found.append(entry)
    return found


def names(entries: list[Waiting[str]]) -> list[str]:
    """What they are called."""
    return [entry.item for entry in entries]


def test_one_key_is_served_in_order():
    """Requests of one key leave in the order in which they came, whatever their sizes."""
    queue = a_queue(*(a_request(str(number), tokens=1 + number * 977 % 5000) for number in range(50)))

    assert [str(number) for number in range(50)] == names(served(queue))


def test_a_greedy_key_delays_another_by_one_request():
    """A single request of a small key goes before all but the next of the thousand that another key has waiting."""
    queue = a_queue(*(a_request(f"greedy {number}", key="greedy", tokens=4000) for number in range(1000)))
    served(queue, 10)

    queue.offer(a_request("small", key="small", tokens=4000), WIDE)

    assert "small" in names(served(queue, 2))


def test_a_key_that_has_been_served_alone_owes_nothing_for_it():
    """What a key got while nobody else waited is not held against it."""
    queue = a_queue(*(a_request(f"early {number}", key="early") for number in range(100)))
    served(queue, 99)
    for number in range(10):
        queue.offer(a_request(f"late {number}", key="late"), WIDE)
        queue.offer(a_request(f"early again {number}", key="early"), WIDE)

    keys = Counter(entry.key for entry in served(queue, 10))

    assert 4 <= keys["early"] <= 6


def test_keys_share_by_weight_in_tokens():
    """A key of weight 3 gets three times the tokens of one of weight 1, although its requests are larger."""
    queue = a_queue(
        *(a_request("heavy", key="heavy", tokens=1000, weight=3.0) for _ in range(300)),
        *(a_request("light", key="light", tokens=100) for _ in range(1000)),
    )

    tokens: Counter[str] = Counter()
    for entry in served(queue, 300):
        tokens[entry.key] += entry.tokens

    assert tokens["heavy"] / tokens["light"] == pytest.approx(3.0, rel=0.1)


def test_a_priority_is_a_share_and_low_is_never_stopped():
    """While all classes wait, 16 of 21 tokens go to high, 4 to normal, 1 to low."""
    queue = a_queue(*(a_request(name, key=f"{name} key", priority=name) for name in SHARES for _ in range(2100)))

    counts = Counter(names(served(queue, 2100)))

    assert counts["high"] == pytest.approx(1600, abs=20)
    assert counts["normal"] == pytest.approx(400, abs=20)
    assert counts["low"] == pytest.approx(100, abs=20)


def test_a_class_gets_nothing_for_the_time_in_which_it_had_nothing():
    """Low requests that come after many normal ones were served get their share from then on, and do not catch up."""
    queue = a_queue(*(a_request("normal") for _ in range(300)))
    served(queue, 200)
    for _ in range(50):
        queue.offer(a_request("low", key="b", priority="low"), WIDE)

    assert Counter(names(served(queue, 50)))["low"] <= 11


def test_many_keys_of_low_priority_are_no_more_than_one_class():
    """A hundred low keys together get no more than low's share beside one high key."""
    queue = a_queue(
        *(a_request("low", key=f"low {number % 100}", priority="low") for number in range(1000)),
        *(a_request("high", key="high", priority="high") for _ in range(170)),
    )

    counts = Counter(names(served(queue, 170)))

    assert counts["low"] <= 12


def test_a_high_request_that_comes_later_is_next():
    """A single request of high priority goes before everything normal that waits already."""
    queue = a_queue(*(a_request(str(number)) for number in range(100)))
    served(queue, 5)
    queue.offer(a_request("urgent", key="b", priority="high"), WIDE)

    assert names(served(queue, 1)) == ["urgent"]


def test_who_leaves_is_not_charged():
    """Requests that left before their turn do not hold back those that their key sends later."""
    gone = [a_request(f"gone {number}", key="a", tokens=10_000) for number in range(50)]
    queue = a_queue(*gone, *(a_request(f"b {number}", key="b", tokens=100) for number in range(50)))
    for entry in gone:
        queue.remove(entry)

    queue.offer(a_request("a", key="a", tokens=100), WIDE)

    assert "a" in names(served(queue, 2))


def test_a_full_queue_refuses_the_key_that_fills_it():
    """A newcomer of the key that has most waiting is refused."""
    queue = a_queue(*(a_request(str(number)) for number in range(10)))

    assert queue.offer(a_request("one more"), Bounds(requests=10, bytes=10**9)) is None
    assert len(queue) == 10


def test_a_full_queue_makes_room_for_a_key_that_has_less():
    """The youngest request of the key that has most waiting leaves for one of another key."""
    queue = a_queue(*(a_request(str(number)) for number in range(10)))

    out = queue.offer(a_request("other", key="b"), Bounds(requests=10, bytes=10**9))

    assert out is not None
    assert names(out) == ["9"]
    assert len(queue) == 10
    assert not out[0].is_waiting


def test_keys_with_equal_parts_of_a_full_queue_do_not_push_each_other_out():
    """Where everybody has one request waiting, a newcomer is refused."""
    queue = a_queue(*(a_request(key, key=key) for key in "abcd"))

    assert queue.offer(a_request("e", key="e"), Bounds(requests=4, bytes=10**9)) is None


def test_high_pushes_low_out_and_never_the_other_way_round():
    """A full queue gives the place of a low request to a high one; a low one gets none from high."""
    bounds = Bounds(requests=3, bytes=10**9)
    queue = a_queue(*(a_request(f"low {number}", key="l", priority="low") for number in range(3)))

    for number in range(3):
        assert queue.offer(a_request(f"high {number}", key="h", priority="high"), bounds)
    assert queue.offer(a_request("low again", key="m", priority="low"), bounds) is None
    assert names(served(queue)) == ["high 0", "high 1", "high 2"]


def test_bytes_are_bounded_too():
    """A large body needs the bytes of several small ones, which leave; one that could never fit pushes nobody out."""
    bounds = Bounds(requests=100, bytes=1000)
    queue = a_queue(*(a_request(str(number), held_bytes=100) for number in range(10)))

    assert queue.offer(a_request("too large", key="b", held_bytes=1001), bounds) is None
    assert len(queue) == 10
    out = queue.offer(a_request("large", key="b", held_bytes=300), bounds)
    assert out is not None
    assert names(out) == ["9", "8", "7"]
    assert queue.bytes == 1000


def test_nobody_waits_where_the_bound_is_zero():
    """A queue for no requests refuses all."""
    assert a_queue().offer(a_request("one"), Bounds(requests=0, bytes=1000)) is None


def test_overdue_are_told_once_in_the_order_of_their_deadlines():
    """Whose time is over is told, earliest first; who has left is not."""
    entries = [a_request(str(number), until=10.0 - number) for number in range(5)]
    queue = a_queue(*entries)
    queue.remove(entries[4])

    assert queue.overdue(5.9) == []
    due = queue.overdue(8.0)

    assert names(due) == ["3", "2"]
    for entry in due:
        queue.remove(entry)
    assert len(queue) == 2
    assert queue.overdue(8.0) == []


def test_the_front_keeps_its_turn_while_others_are_taken():
    """A request that is next and finds no room stays the front; those behind it may pass."""
    queue = a_queue(*(a_request(str(number)) for number in range(3)))

    front = queue.bring_to_front()
    assert front is not None
    assert front.item == "0"
    passing = queue.peek()
    assert passing is not None
    queue.take(passing)

    assert queue.bring_to_front() is front
    assert passing.item == "1"
    queue.take(front)
    assert names(served(queue)) == ["2"]


def test_places_of_those_who_left_are_forgotten():
    """A million clients that leave at once leave nothing behind."""
    queue = a_queue(a_request("stays"))
    for number in range(20_000):
        entry = a_request(str(number), key=str(number % 7))
        queue.offer(entry, WIDE)
        queue.remove(entry)

    assert len(queue._deadlines) < 200
    assert sum(len(cls.heap) for cls in queue._classes.values()) <= 8


class QueueMachine(RuleBasedStateMachine):
    """Any order of calls: who came is somewhere exactly once, and the bounds hold."""

    BOUNDS = Bounds(requests=12, bytes=400)

    def __init__(self) -> None:
        super().__init__()
        self.queue: AdmissionQueue[int] = AdmissionQueue()
        self.inside: dict[int, Waiting[int]] = {}
        self.count = 0
        self.now = 0.0

    @rule(
        key=st.sampled_from("abc"),
        priority=st.sampled_from(list(SHARES)),
        tokens=st.integers(0, 10_000),
        size=st.integers(0, 150),
        wait=st.floats(0.0, 20.0),
    )
    def offer(self, key: str, priority: str, tokens: int, size: int, wait: float) -> None:
        """One comes; it is refused only if the queue is full."""
        entry = Waiting(
            self.count, key=key, priority=priority, tokens=tokens, held_bytes=size, since=self.now, until=self.now + wait
        )
        self.count += 1
        was_full = len(self.inside) >= 12 or self.queue.bytes + size > 400
        out = self.queue.offer(entry, self.BOUNDS)
        assert out == [] or was_full
        if out is None:
            return
        for victim in out:
            assert list(SHARES).index(victim.priority) >= list(SHARES).index(priority)
            del self.inside[victim.item]
        self.inside[entry.item] = entry

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """One that waits leaves, and leaves again."""
        entry = self.inside.pop(data.draw(st.sampled_from(sorted(self.inside))))
        self.queue.remove(entry)
        self.queue.remove(entry)

    @rule()
    def take(self) -> None:
        """The next one is the oldest of its key and class."""
        entry = self.queue.peek()
        if entry is None:
            assert not self.inside or (self.queue.front is not None and len(self.inside) == 1)
            return
        same = [
            each.item
            for each in self.inside.values()
            if (each.key, each.priority) == (entry.key, entry.priority) and each is not self.queue.front
        ]
        assert entry.item == min(same)
        self.queue.take(entry)
        del self.inside[entry.item]

    @rule()
    def bring(self) -> None:
        """There is a front if anybody waits."""
        assert (self.queue.bring_to_front() is None) is (not self.inside)

    @precondition(lambda self: self.queue.front is not None)
    @rule()
    def take_front(self) -> None:
        """The front gets its room."""
        front = self.queue.front
        assert front is not None
        self.queue.take(front)
        del self.inside[front.item]

    @rule(seconds=st.floats(0.0, 10.0))
    def wait(self, seconds: float) -> None:
        """Time goes on: those over their deadlines are told, and nobody else."""
        self.now += seconds
        due = self.queue.overdue(self.now)
        assert {entry.item for entry in due} == {each.item for each in self.inside.values() if each.until <= self.now}
        for entry in due:
            self.queue.remove(entry)
            del self.inside[entry.item]

    @invariant()
    def agrees(self) -> None:
        """The queue holds who came and has not left."""
        assert len(self.queue) == len(self.inside) <= 12
        assert self.queue.bytes == sum(entry.bytes for entry in self.inside.values()) <= 400
        assert [entry.item for entry in self.queue.everybody()] == sorted(self.inside)


TestQueueMachine = QueueMachine.TestCase


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=30, max_size=120),
    weight=st.floats(0.25, 4.0),
)
def test_keys_that_wait_all_the_time_stay_within_one_request_of_their_shares(tokens, weight):
    """At every moment, tokens served over weight differ between two keys by one request of each at most."""
    queue = a_queue(
        *(a_request("x", key="x", tokens=first) for first, _ in tokens),
        *(a_request("y", key="y", tokens=second, weight=weight) for _, second in tokens),
    )
    bound = max(first for first, _ in tokens) + max(second for _, second in tokens) / weight
    got = {"x": 0.0, "y": 0.0}
    left = {"x": len(tokens), "y": len(tokens)}

    while all(left.values()):
        (entry,) = served(queue, 1)
        got[entry.key] += entry.tokens / entry.weight
        left[entry.key] -= 1
        assert abs(got["x"] - got["y"]) <= bound
