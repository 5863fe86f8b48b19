"""Figures of one answer, from its bytes and the instants at which they arrived.

A meter belongs to one attempt of one request and nobody else sees it. Sans-IO and without a clock: `feed` takes bytes of the
body with the arrival of each piece, at once or later in a batch; `finish` gives back what was measured. Two meters with the
same methods serve streams and plain answers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from telemetry.events import Event, ReportedUsage, Usage, read_event
from telemetry.sse import CR, LF, SseReader, event_data

MAX_PLAIN_BYTES = 8 * 1024 * 1024
"""Plain answers larger than this are passed on unread: no usage is known of them."""

_NEVER = b"\0"
_STRING_END = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL).match
_ENDED_BY_WORKER = frozenset({"abort", "error"})


def _is_one_event(piece: bytes) -> bool:
    """Whether ``piece`` is exactly one whole event of one ``data`` line, in the usual spelling."""
    return piece.startswith(b"data: {") and piece.endswith(b"}\n\n") and piece.find(b"\n") == len(piece) - 2 and CR not in piece


class Measurements(msgspec.Struct, gc=False):
    """What one answer showed. Instants are of the caller's monotonic clock; ``None`` is what did not happen."""

    first_token_at: float | None = None  # first event that carried anything generated
    first_visible_at: float | None = None  # first visible text
    last_token_at: float | None = None  # last event that carried a token or a finish reason
    token_events: int = 0
    usage: Usage | None = None
    usage_is_final: bool = False  # of the whole answer, with all details that the worker has to tell
    finish_reasons: tuple[str, ...] = ()
    is_error: bool = False  # an error event, or an error object as plain answer
    is_complete: bool = False  # every choice has a finish reason, or the end marker came
    missing_end: str | None = None  # of a complete stream: the marker that did not come
    faults: int = 0
    gap_counts: list[int] | None = None  # gaps between token events, per bucket of the bounds given and one above
    gap_sum_seconds: float = 0.0
    gaps_are_per_token: bool = False  # every gap is known to stand for one token
    stall_ratio: float | None = None  # largest gap / median gap, the median to within its bucket
    is_unmetered: bool = False

    @property
    def is_aborted(self) -> bool:
        """Whether the worker itself ended a generation."""
        return not _ENDED_BY_WORKER.isdisjoint(self.finish_reasons)

    def tpot_seconds(self) -> float | None:
        """(last token - first token) / (completion_tokens - 1).

        ``None`` below two tokens, without usage, and when both came in one read.
        """
        count = None if self.usage is None else self.usage.completion_tokens
        if count is None or count < 2 or self.first_token_at is None or self.last_token_at is None:
            return None
        if self.last_token_at <= self.first_token_at:
            return None  # all in one read: how far apart they were generated was not seen
        return (self.last_token_at - self.first_token_at) / (count - 1)


class StreamMeter:
    """Reads a stream of server-sent events.

    ``choices`` is how many finish reasons a whole answer has (prompts times n); gaps are only taken where it is 1.
    ``gap_bounds`` are the upper bounds of the buckets that gaps are counted in.
    """

    __slots__ = (
        "_choices",
        "_continuous",
        "_done",
        "_finish_reasons",
        "_gap_bounds",
        "_gap_tokens",
        "_head",
        "_last_gap_at",
        "_max_gap",
        "_reader",
        "_tail",
        "events",
        "found",
        "last_event_at",
    )

    def __init__(self, choices: int, gap_bounds: Sequence[float]) -> None:
        self.found = Measurements()
        self.events = 0  # events with data, of any kind
        self.last_event_at = 0.0  # arrival of the last of them; a comment is none
        self._reader = SseReader()
        self._choices = choices
        self._gap_bounds = gap_bounds
        self._finish_reasons: dict[int, str] = {}
        self._continuous: dict[int, int] = {}  # choice -> completion tokens so far, where events say so
        self._done = False
        self._last_gap_at = 0.0
        self._gap_tokens = 0  # generated since then, where events say so; an event may count one and carry no text
        self._max_gap = 0.0
        self._head = self._tail = _NEVER  # what surrounds the text in this stream's ordinary events, once seen

    def __repr__(self) -> str:
        return f"<StreamMeter {self.events} events, {self.found.token_events} with tokens>"

    @property
    def has_end_marker(self) -> bool:
        """Whether the marker that ends a stream has come; nothing of use can follow."""
        return self._done

    def feed(self, arrivals: Sequence[float], pieces: Sequence[bytes]) -> None:
        """Take in pieces of the body in order, each with the instant of its arrival."""
        reader = self._reader
        head, tail = self._head, self._tail
        head_size, tail_size = len(head), len(tail)
        is_ready = reader.is_between_events
        ordinary: list[float] = []
        for at, piece in zip(arrivals, pieces, strict=True):
            # Nearly all events of a stream differ in nothing but their text. One that begins and ends like an event that
            # was parsed before, with no quote between, can only be the same JSON with other text: no need to parse it.
            if (
                piece.startswith(head)
                and piece.endswith(tail)
                and len(piece) > head_size + tail_size
                and piece.find(b'"', head_size, len(piece) - tail_size) < 0
                and is_ready
            ):
                ordinary.append(at)
                continue
            if ordinary:
                self._take_ordinary(ordinary)
                ordinary = []
            if is_ready and piece.endswith(b"\n\n") and CR not in piece:  # whole events in the usual spelling
                for event in piece[:-2].split(b"\n\n"):
                    if event.startswith(b"data: ") and LF not in event:
                        self._take_data(at, event[6:])
                    elif (data := event_data(event)) is not None:
                        self._take_data(at, data)
                if self._may_learn:
                    self._learn(piece)
                    head, tail = self._head, self._tail
                    head_size, tail_size = len(head), len(tail)
            else:
                for data in reader.feed(piece):
                    self._take_data(at, data)
                is_ready = reader.is_between_events
        if ordinary:
            self._take_ordinary(ordinary)

    def finish(self, at: float) -> Measurements:
        """The end of the body, at which an event without its blank line counts; call once."""
        for data in self._reader.finish():
            self._take_data(at, data)
        found = self.found
        found.faults += self._reader.oversized
        reasons = self._finish_reasons
        if len(reasons) == 1:
            found.finish_reasons = tuple(reasons.values())
        elif reasons:
            found.finish_reasons = tuple(reason for _, reason in sorted(reasons.items()))
        has_finished = len(reasons) >= self._choices
        found.is_complete = self._done or has_finished
        if found.is_complete and not (self._done and has_finished):
            found.missing_end = "finish_reason" if self._done else "done"
        if found.usage is None and self._continuous:
            found.usage = Usage(completion_tokens=sum(self._continuous.values()))
        if found.gap_counts is not None:
            count = None if found.usage is None else found.usage.completion_tokens
            found.gaps_are_per_token = bool(self._continuous) or (count is not None and 0 <= count - found.token_events <= 1)
            found.stall_ratio = self._stall_ratio()
        return found

    def _take_ordinary(self, arrivals: list[float]) -> None:
        """Events of one visible text each, after the first: only their gaps are news."""
        found = self.found
        bounds = self._gap_bounds
        counts = found.gap_counts
        if counts is None:
            counts = found.gap_counts = [0] * (len(bounds) + 1)
        last, largest = self._last_gap_at, self._max_gap
        found.gap_sum_seconds += arrivals[-1] - last
        for at in arrivals:
            gap = at - last
            last = at
            if gap > largest:
                largest = gap
            counts[bisect_left(bounds, gap)] += 1
        self._last_gap_at = found.last_token_at = self.last_event_at = last
        self._max_gap = largest
        found.token_events += len(arrivals)
        self.events += len(arrivals)

    @property
    def _may_learn(self) -> bool:
        """Whether this looks like a stream of many tokens whose shape is not known yet."""
        return (
            self._tail is _NEVER
            and self._choices == 1
            and self.found.token_events > 1
            and self.found.first_visible_at is not None
        )

    def _learn(self, piece: bytes) -> None:
        """Remember what surrounds the text of an ordinary event: one choice with text, and nothing else of interest."""
        if not _is_one_event(piece) or b'"usage":{' in piece:
            return
        event, faults = read_event(piece[6:-2])
        choices = event.choices
        if faults or not choices or len(choices) != 1 or choices[0].finish_reason is not None:
            return
        if event.usage is not None or event.is_error or not choices[0].has_text:
            return
        marker = b'"content":"' if choices[0].delta is not None else b'"text":"'
        if piece.count(marker) != 1:
            return
        start = piece.index(marker) + len(marker)
        match = _STRING_END(piece, start)
        if match is not None:
            self._head, self._tail = piece[:start], piece[match.end() - 1 :]

    def _take_data(self, at: float, data: bytes) -> None:
        self.events += 1
        self.last_event_at = at
        if data == b"[DONE]" or data.strip() == b"[DONE]":
            self._done = True
            return
        event, faults = read_event(data)
        found = self.found
        if faults:
            found.faults += faults
        if event.error or event.object == "error":
            found.is_error = found.is_error or event.is_error
        carries = shows = False
        for choice in event.choices or ():
            delta = choice.delta
            if delta is None:
                if choice.text:
                    carries = shows = True
            elif delta.content or delta.refusal:
                carries = shows = True
            elif delta.has_token:
                carries = True
            if choice.finish_reason:
                self._finish_reasons[choice.index] = choice.finish_reason
                found.last_token_at = at
        if event.usage is not None:
            self._take_usage(event, event.usage)
        if not carries:
            return
        found.token_events += 1
        found.last_token_at = at
        if shows and found.first_visible_at is None:
            found.first_visible_at = at
        if found.first_token_at is None:
            found.first_token_at = at
        elif self._choices == 1:
            gap = at - self._last_gap_at
            if self._gap_tokens > 1:
                gap /= self._gap_tokens
            if gap > self._max_gap:
                self._max_gap = gap
            if found.gap_counts is None:
                found.gap_counts = [0] * (len(self._gap_bounds) + 1)
            found.gap_counts[bisect_left(self._gap_bounds, gap)] += 1
            found.gap_sum_seconds += gap
        self._last_gap_at = at
        self._gap_tokens = 0

    def _take_usage(self, event: Event, reported: ReportedUsage) -> None:
        """Keep the counts; the last ones win. Beside choices they are those of the first choice so far."""
        usage, faults = reported.checked()
        self.found.faults += faults
        if not event.choices:
            self.found.usage = usage
            self.found.usage_is_final = True
            return
        if usage.completion_tokens is None:
            return
        index = event.choices[0].index
        before = self._continuous.get(index, 0)
        now = max(before, usage.completion_tokens)
        self._continuous[index] = now
        self.found.usage = msgspec.structs.replace(usage, completion_tokens=sum(self._continuous.values()))
        self._gap_tokens += now - before

    def _stall_ratio(self) -> float | None:
        if not self._max_gap:
            return None  # all in one read
        counts = self.found.gap_counts or []
        bounds = self._gap_bounds
        half = sum(counts) / 2
        seen = 0
        for bucket, count in enumerate(counts):
            if count and seen + count >= half:
                low = bounds[bucket - 1] if bucket else 0.0
                high = bounds[bucket] if bucket < len(bounds) else self._max_gap
                median = low + (high - low) * (half - seen) / count
                return max(1.0, self._max_gap / median) if median > 0 else None
            seen += count
        return None


def read_plain(body: bytes) -> Measurements:
    """What a whole plain answer says."""
    event, faults = read_event(body)
    found = Measurements(is_complete=True, faults=faults)
    if event.usage is not None:
        found.usage, faults = event.usage.checked()
        found.usage_is_final = True
        found.faults += faults
    if event.error or event.object == "error":
        found.is_error = event.is_error
    for choice in event.choices or ():
        if choice.finish_reason:
            found.finish_reasons = (*found.finish_reasons, choice.finish_reason)
        message = choice.message
        if (message is not None and message.content) or choice.has_token:
            found.token_events += 1
    return found


NOTHING_READ = Measurements(is_unmetered=True, is_complete=True)
"""Of an answer that cannot be read: compressed, or of a kind that has no tokens."""


class PlainMeter:
    """Reads one JSON answer; it has no first token, since nobody saw one."""

    __slots__ = ("_pieces", "_size", "events", "found")

    def __init__(self) -> None:
        self.found = Measurements()
        self.events = 0
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, arrivals: Sequence[float], pieces: Sequence[bytes]) -> None:
        """Take in pieces of the body; when they arrived is of no use here."""
        self.events += len(arrivals)
        for piece in pieces:
            self._size += len(piece)
            if self._size <= MAX_PLAIN_BYTES:
                self._pieces.append(piece)
            else:
                self._pieces.clear()

    def finish(self, at: float) -> Measurements:
        """The end of the body; call once."""
        found = self.found
        if self._size > MAX_PLAIN_BYTES:
            found.is_unmetered = True
            found.is_complete = True
            return found
        pieces = self._pieces
        self.found = read_plain(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return self.found


class NoMeter:
    """For answers that cannot be read: compressed, or of a kind that has no tokens."""

    __slots__ = ("events", "found")

    def __init__(self) -> None:
        self.found = Measurements(is_unmetered=True, is_complete=True)
        self.events = 0

    def feed(self, arrivals: Sequence[float], pieces: Sequence[bytes]) -> None:
        """Count the pieces and forget them."""
        self.events += len(arrivals)

    def finish(self, at: float) -> Measurements:
        """Nothing was measured."""
        return self.found


Meter = StreamMeter | PlainMeter | NoMeter
