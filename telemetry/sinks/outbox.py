"""A bounded queue and one thread that empties it: for receivers that may be slow, away, or refuse.

Nobody who puts something in ever waits. What does not fit, and what the receiver does not take, is dropped and counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

T_contra = TypeVar("T_contra", contravariant=True)
T = TypeVar("T")

_PATIENCE_SHARE = 0.7  # of the time for closing, after which what is under way is interrupted


class Courier(Protocol[T_contra]):
    """Takes a batch to its receiver. Used by the thread of one outbox only, but for `stop`."""

    def deliver(self, batch: Sequence[T_contra]) -> str | None:
        """Block until the batch is there, or is lost: then a text says why."""

    def stop(self) -> None:
        """Let go of connections, and cut short what is under way in `deliver`. Called once, from another thread."""


class Outbox(Generic[T]):
    """To be closed. ``engage`` makes the courier, in the thread, because that may take time.

    At most ``most`` things wait, each counted as ``weigh`` says; a batch has at most ``batch`` items and waits at most
    ``delay_seconds`` for more. `on_fault` is called in the thread with one text when a receiver stops taking what it gets,
    again only after it has taken something.
    """

    def __init__(
        self,
        name: str,
        engage: Callable[[], Courier[T]],
        *,
        most: int,
        batch: int,
        delay_seconds: float,
        weigh: Callable[[T], int] = lambda _: 1,
        on_fault: Callable[[str], None] | None = None,
    ) -> None:
        self._name = name
        self._engage = engage
        self._most = most
        self._batch = batch
        self._delay_seconds = delay_seconds
        self._weigh = weigh
        self._on_fault = on_fault
        self._lock = threading.Condition()
        self._items: deque[T] = deque()
        self._waiting = 0  # weight of what waits and of what is in hand
        self._in_hand = 0
        self._courier: Courier[T] | None = None
        self._is_closing = self._is_over = self._is_failing = False
        self.sent = 0  # weight of what the receiver took
        self.dropped = 0
        # A daemon: a receiver that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "closing" if self._is_closing else "failing" if self._is_failing else "open"
        return f"<Outbox {self._name} {state}, {self._waiting} waiting, {self.sent} sent, {self.dropped} dropped>"

    def put_all(self, items: Iterable[T]) -> None:
        """Take these, or drop those for which there is no room. Does not block."""
        with self._lock:
            had = len(self._items)
            for item in items:
                weight = self._weigh(item)
                if self._is_closing or self._waiting + weight > self._most:
                    self.dropped += weight
                    continue
                self._items.append(item)
                self._waiting += weight
            if (not had and self._items) or had < self._batch <= len(self._items):
                self._lock.notify()

    def close(self, timeout_seconds: float) -> None:
        """Deliver what waits, blocking for at most this long; what is left then counts as dropped."""
        ends_at = time.monotonic() + timeout_seconds
        with self._lock:
            self._is_closing = True
            self._lock.notify()
        self._thread.join(timeout_seconds * _PATIENCE_SHARE)
        with self._lock:
            self._items.clear()
            self._is_over = True
            self.dropped += self._waiting
            self._waiting = 0
        if self._courier is not None and self._thread.is_alive():
            self._courier.stop()
            self._thread.join(max(0.0, ends_at - time.monotonic()))

    def _run(self) -> None:
        try:
            self._courier = courier = self._engage()
        except Exception as error:  # whatever a library says of its settings
            self._give_up(f"cannot begin: {error}")
            return
        while batch := self._next_batch():
            try:
                why = courier.deliver(batch)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            self._count(why)
        if not self._is_over:
            courier.stop()

    def _next_batch(self) -> list[T]:
        """Wait for something to do; nothing when it is over."""
        with self._lock:
            self._lock.wait_for(lambda: self._items or self._is_closing)
            self._lock.wait_for(lambda: len(self._items) >= self._batch or self._is_closing, self._delay_seconds)
            batch = [self._items.popleft() for _ in range(min(self._batch, len(self._items)))]
            self._in_hand = sum(map(self._weigh, batch))
            return batch

    def _count(self, why: str | None) -> None:
        with self._lock:
            weight, self._in_hand = self._in_hand, 0
            if not self._is_over:  # then it has been counted as dropped
                self._waiting -= weight
                if why is None:
                    self.sent += weight
                else:
                    self.dropped += weight
            is_news = why is not None and not self._is_failing and not self._is_over
            self._is_failing = why is not None
        if is_news and self._on_fault is not None:
            self._on_fault(f"{self._name}: {why}; what is not taken is dropped and counted")

    def _give_up(self, why: str) -> None:
        with self._lock:
            self._is_closing = self._is_failing = True
            self.dropped += self._waiting
            self._waiting = 0
            self._items.clear()
        if self._on_fault is not None:
            self._on_fault(f"{self._name}: {why}; everything is dropped and counted")
