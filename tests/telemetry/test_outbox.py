"""The bounded queue before a receiver: nobody who puts waits, everything is sent or counted as dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from telemetry.sinks.outbox import Courier, Outbox


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


@dataclass
class Carrier:
    """A courier whose receiver is the test."""

    why: str | None = None
    may_go: threading.Event = field(default_factory=threading.Event)
    batches: list[list[int]] = field(default_factory=list)
    stops: int = 0

    def deliver(self, batch: Sequence[int]) -> str | None:
        self.may_go.wait(10)
        self.batches.append(list(batch))
        if self.why == "raise":
            raise ValueError("no")
        return self.why

    def stop(self) -> None:
        self.stops += 1
        self.may_go.set()


def an_outbox(
    carrier: Courier[int],
    most: int = 10,
    batch: int = 4,
    delay_seconds: float = 0.0,
    told: list[str] | None = None,
    weigh: Callable[[int], int] = lambda _: 1,
) -> Outbox[int]:
    on_fault = None if told is None else told.append
    return Outbox("box", lambda: carrier, most=most, batch=batch, delay_seconds=delay_seconds, weigh=weigh, on_fault=on_fault)


def test_everything_arrives_in_order_and_in_batches() -> None:
    """What is put arrives once, in order, no more at a time than a batch."""
    carrier = Carrier()
    outbox = an_outbox(carrier, most=100)
    outbox.put_all(range(10))
    carrier.may_go.set()
    outbox.close(5)

    assert [item for batch in carrier.batches for item in batch] == list(range(10))
    assert max(map(len, carrier.batches)) == 4
    assert (outbox.sent, outbox.dropped, carrier.stops) == (10, 0, 1)


def test_a_batch_waits_for_more() -> None:
    """A batch that is not full waits for the given time, and not for one that is full."""
    carrier = Carrier()
    carrier.may_go.set()
    outbox = an_outbox(carrier, delay_seconds=30.0)
    outbox.put_all([1])
    outbox.put_all([2, 3, 4])
    eventually(lambda: carrier.batches == [[1, 2, 3, 4]])
    outbox.put_all([5])
    outbox.close(5)

    assert carrier.batches == [[1, 2, 3, 4], [5]]


def test_a_receiver_that_hangs_costs_what_does_not_fit() -> None:
    """While nothing is taken the queue stays bounded, nobody waits, and the rest is counted."""
    carrier = Carrier()
    outbox = an_outbox(carrier)
    began_at = time.monotonic()
    for number in range(1000):
        outbox.put_all([number])

    assert time.monotonic() - began_at < 1.0
    assert outbox.dropped == 990
    began_at = time.monotonic()
    outbox.close(0.3)
    assert time.monotonic() - began_at < 1.0
    assert (outbox.sent, outbox.dropped, carrier.stops) == (0, 1000, 1)


def test_things_are_weighed() -> None:
    """The bound and the counts are in the units that things are weighed in."""
    carrier = Carrier()
    outbox = an_outbox(carrier, weigh=lambda item: item)
    outbox.put_all([6, 5, 4, 1])
    carrier.may_go.set()
    outbox.close(5)

    assert carrier.batches == [[6, 4]]
    assert (outbox.sent, outbox.dropped) == (10, 6)


def test_faults_are_told_once_until_it_works_again() -> None:
    """Refusals and exceptions lose their batch; one line says so, and another only after something was taken."""
    told: list[str] = []
    carrier = Carrier(why="refused")
    carrier.may_go.set()
    outbox = an_outbox(carrier, told=told)
    for why, count in (("refused", 1), ("raise", 2), (None, 3), ("raise", 4)):
        carrier.why = why
        outbox.put_all([count])
        eventually(lambda count=count: outbox.sent + outbox.dropped == count)
    outbox.close(5)

    assert (outbox.sent, outbox.dropped) == (1, 3)
    assert told == [
        "box: refused; what is not taken is dropped and counted",
        "box: ValueError: no; what is not taken is dropped and counted",
    ]


def test_a_courier_that_cannot_begin() -> None:
    """Without a courier everything is dropped and counted, before and after that shows."""
    told: list[str] = []

    def engage() -> Courier[int]:
        raise ValueError("no such setting")

    outbox: Outbox[int] = Outbox("box", engage, most=10, batch=4, delay_seconds=0.0, on_fault=told.append)
    eventually(lambda: told)
    outbox.put_all([1, 2])
    outbox.close(1)

    assert outbox.dropped == 2
    assert told == ["box: cannot begin: no such setting; everything is dropped and counted"]


def test_after_the_end_everything_is_dropped() -> None:
    """What comes after closing is counted, not sent."""
    carrier = Carrier()
    carrier.may_go.set()
    outbox = an_outbox(carrier)
    outbox.close(5)
    outbox.put_all([1])

    assert (carrier.batches, outbox.dropped) == ([], 1)
