"""Where a request stands in a trace: its context read, continued or begun, and passed on to the worker.

Only what has to exist at the beginning is made here, in the serving process: ids, and whether the request is sampled. Spans
are built from the record at the end, in the control process.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from telemetry.record import Attempt, Told, Trace
from telemetry.span_details import asked_in, told_in

if TYPE_CHECKING:
    from proxy.wire.request_head import RequestHead

MOST_ATTEMPTS = 16
"""Attempts of one request that become spans of their own; further ones are only counted."""

_BRANCH = 1 << 16  # more than the attempts of a request: the numbers of a branch follow it
_VERSION_00_BYTES = 55
_TRACEPARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(?:-[ -~]*)?")
_CONTEXT_LINES = re.compile(rb"^(?:traceparent|tracestate):[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)
_PARENT_LINES = re.compile(rb"^traceparent:[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)
_SPAN_IDS = 1 << 64


def header_pattern(name: str) -> re.Pattern[bytes]:
    """Finds a header among lines; its first group is the value, with blanks around it."""
    return re.compile(rb"^%b:([^\r\n]*)" % re.escape(name.encode()), re.IGNORECASE | re.MULTILINE)


def hash_of(value: bytes) -> str:
    """16 hexadecimal digits that are the same for equal values, in every gateway."""
    return blake2b(value, digest_size=8).hexdigest()


class TraceContext(NamedTuple):
    """What a client's ``traceparent`` says."""

    trace_id: str  # 32 hexadecimal digits, not all 0
    parent_id: str  # 16 of them: the client's span
    is_sampled: bool


def parse_traceparent(value: bytes) -> TraceContext | None:
    """Read the value of a ``traceparent`` header by the W3C rules; None for everything that they do not allow.

    A later version than 00 may have more behind the flags, and is read as far as 00 goes.
    """
    found = _TRACEPARENT.fullmatch(value)
    if found is None or (found[1] == b"00" and len(value) != _VERSION_00_BYTES):
        return None
    return TraceContext(found[2].decode(), found[3].decode(), bool(int(found[4], 16) & 1))


class SampledTrace:
    """A request that is sampled: its ids, and the attempts made for it. Instants are monotonic seconds."""

    __slots__ = ("_began_at", "_done", "_span", "_told", "made", "parent_id", "trace_id", "worker")

    def __init__(self, trace_id: str, parent_id: str | None, span: int) -> None:
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.made = 0
        self.worker = ""  # of the attempt under way
        self._span = span
        self._done: list[tuple[int, str, float, float, str, int | None]] = []  # what an `Attempt` is made of
        self._began_at: float | None = None  # of the attempt under way; None while there is none
        self._told: Told | None = None

    def __repr__(self) -> str:
        return f"<SampledTrace {self.trace_id}, {self.made} attempts>"

    def line(self) -> bytes:
        """The header line for the worker: its spans belong below the attempt that is under way."""
        return b"traceparent: 00-%b-%b-01\r\n" % (self.trace_id.encode(), self._id(self.made).encode())

    def begin(self, worker: str, now: float) -> None:
        """An attempt at this worker begins, which ends the one before if nothing else has."""
        self.made += 1
        self.worker = worker
        self._began_at = now

    def end(self, result: str, now: float, status: int | None) -> None:
        """The attempt under way has come to this; nothing happens when there is none."""
        if self._began_at is None:
            return
        if len(self._done) < MOST_ATTEMPTS:
            self._done.append((self.made, self.worker, self._began_at, now, result, status))
        self._began_at = None

    def note_answer(self, beginning: bytes) -> None:
        """The first bytes of an answer's body go to the client: all of it, or whole events at its start."""
        self._told = told_in(beginning)

    def branch(self) -> SampledTrace:
        """For an attempt that is made beside the one under way; `join` brings back what became of it. One of a request."""
        beside = SampledTrace(self.trace_id, self.parent_id, self._span)
        beside.made = _BRANCH
        return beside

    def join(self, beside: SampledTrace) -> None:
        """Take in what a branch has done, and, if none is under way here, its attempt that still is."""
        self._done += beside._done
        if self._began_at is None and beside._began_at is not None:
            self.made, self.worker, self._began_at = beside.made, beside.worker, beside._began_at

    def finish(self, started_at: float, ended_at: float, body: bytes | None) -> Trace:
        """What the record keeps, instants as seconds since the first byte of the request; ``body`` is its own, if read."""
        return Trace(
            span_id=self._id(0),
            parent_id=self.parent_id,
            seconds=ended_at - started_at,
            attempts=tuple(
                Attempt(
                    span_id=self._id(number),
                    worker=worker,
                    began_seconds=began_at - started_at,
                    ended_seconds=at - started_at,
                    result=result,
                    status=status,
                )
                for number, worker, began_at, at, result, status in self._done
            ),
            asked=None if body is None else asked_in(body),
            told=self._told,
        )

    def _id(self, number: int) -> str:
        return f"{(self._span + number) % _SPAN_IDS or _SPAN_IDS - 1:016x}"


class Tracer:
    """Decides for each request of a serving process. Parent-based: without a context of the client's, by the ratio (0 to 1)."""

    __slots__ = ("_after", "_before", "_bits", "_bound", "_high")

    def __init__(self, sample_ratio: float, random: Random | None = None) -> None:
        self._bits = (random or Random()).getrandbits  # noqa: S311 -- ids have to differ, not to be secret
        self._bound = round(sample_ratio * _SPAN_IDS)
        # The upper half of an id is this process's; the lower one is random, and it is what other samplers by ratio look at.
        self._high = f"{self._bits(64) or 1:016x}"
        # A span that is not recorded needs no id of its own.
        self._before, self._after = f"traceparent: 00-{self._high}", f"-{self._bits(64) or 1:016x}-00\r\n"

    def begin(self, head: RequestHead) -> SampledTrace | None:
        """Give the request its ids and the worker its header lines; None when it is not sampled.

        A client's context is continued. Without one that can be read a trace begins here, and what the client sent of one is
        not passed on. Every worker gets a valid ``traceparent``, with flag 00 when nothing is recorded.
        """
        context = head.context
        if context is not None:
            if not context.is_sampled:
                return None  # what the client sent is still right
            head.forwarded = _PARENT_LINES.sub(b"", head.forwarded)
            return SampledTrace(context.trace_id, context.parent_id, self._bits(64))
        if head.has_context_lines:
            head.forwarded = _CONTEXT_LINES.sub(b"", head.forwarded)
        low = self._bits(64)
        text = f"{low:016x}"
        head.trace_id = trace_id = self._high + text
        if low < self._bound:
            return SampledTrace(trace_id, None, self._bits(64))
        head.forwarded += f"{self._before}{text}{self._after}".encode()
        return None
