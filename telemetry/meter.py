"""Figures of one answer, from its bytes and the instants at which they arrived.

A meter belongs to one attempt of one request and nobody else sees it. Sans-IO and without a clock: `feed` takes bytes of the
body with the arrival of each piece, at once or later in a batch; `finish` gives back what was measured. Meters with the same
methods, this one and those of `telemetry.plain_meter`, serve streams and plain answers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from telemetry.dialects import CHAT, Dialect
from telemetry.events import Choice, Event, ReportedUsage, read_times
from telemetry.measurements import Measurements, stall_ratio
from telemetry.sse import CR, LF, SseReader, event_data
from telemetry.typed_events import MessageUsage, TypedEvent

_NO_BEGINNING: tuple[()] = ()  # `bytes.startswith` never says yes to it
_STRING_END = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL).match
_ALL_CHOICES = -1


def _one_object(piece: bytes) -> bytes | None:
    """The JSON of ``piece`` if that is exactly one whole event, in the usual spelling, with or without an ``event`` line."""
    start = piece.find(b"\n") + 1 if piece.startswith(b"event: ") else 0
    if piece.startswith(b"data: {", start) and piece.endswith(b"}\n\n") and piece.find(b"\n", start) == len(piece) - 2:
        return None if CR in piece else piece[start + 6 : -2]
    return None


class StreamMeter:
    """Reads a stream of server-sent events.

    ``choices`` is how many finish reasons a whole answer has (prompts times n); gaps are only taken where it is 1.
    ``gap_bounds`` are the upper bounds of the buckets that gaps are counted in. With ``echoes`` the first text of each choice
    is a piece of the prompt, which is no token.
    """

    __slots__ = (
        "_choices",
        "_continuous",
        "_dialect",
        "_done",
        "_earlier",
        "_echoed",
        "_finish_reasons",
        "_gap_bounds",
        "_gap_tokens",
        "_head",
        "_last_gap_at",
        "_max_gap",
        "_reader",
        "_tail",
        "_uncounted",
        "events",
        "found",
        "last_event_at",
    )

    def __init__(self, choices: int, gap_bounds: Sequence[float], dialect: Dialect = CHAT, *, echoes: bool = False) -> None:
        self.found = Measurements()
        self.events = 0  # events with data, of any kind
        self.last_event_at = 0.0  # arrival of the last of them; a comment is none
        self._reader = SseReader()
        self._choices = choices
        self._gap_bounds = gap_bounds
        self._finish_reasons: dict[int, str] = {}
        self._dialect = dialect
        self._echoed: set[int] | None = set() if echoes else None  # choices whose echo has come
        self._earlier: MessageUsage | None = None  # told at the beginning, and not wholly again
        self._continuous: dict[int, int] = {}  # choice -> completion tokens so far, where events say so
        self._uncounted = 0  # token events that did not say so
        self._done = False
        self._last_gap_at = 0.0
        self._gap_tokens = 0  # generated since then, where events say so; an event may count one and carry no text
        self._max_gap = 0.0
        self._head: bytes | tuple[()] = _NO_BEGINNING  # what surrounds the text in this stream's ordinary events, once seen
        self._tail = b""

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
            found.missing_end = "finish_reason" if self._done else self._dialect.end_marker
        if found.gap_counts is not None:
            count = None if found.usage is None else found.usage.completion_tokens
            is_counted = bool(self._continuous) and not self._uncounted
            found.gaps_are_per_token = is_counted or (count is not None and 0 <= count - found.token_events <= 1)
            found.stall_ratio = stall_ratio(found.gap_counts, self._gap_bounds, self._max_gap)
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
        self._uncounted += len(arrivals)
        self.events += len(arrivals)

    @property
    def _may_learn(self) -> bool:
        """Whether this looks like a stream of many tokens whose shape is not known yet."""
        return not self._head and self._choices == 1 and self.found.token_events > 1 and self.found.first_visible_at is not None

    def _learn(self, piece: bytes) -> None:
        """Remember what surrounds the text of an ordinary event: one choice with text, and nothing else of interest."""
        data = _one_object(piece)
        if data is None or b'"usage":{' in piece:
            return
        event, faults = self._dialect.read(data)
        choices = event.choices
        if faults or not choices or len(choices) != 1 or choices[0].finish_reason is not None:
            return
        if event.usage is not None or event.is_error or not choices[0].has_text:
            return
        found = [field for field in self._dialect.text_fields if field in piece]
        if len(found) != 1 or piece.count(found[0]) != 1:
            return
        start = piece.index(found[0]) + len(found[0])
        match = _STRING_END(piece, start)
        if match is not None:
            self._head, self._tail = piece[:start], piece[match.end() - 1 :]

    def _take_data(self, at: float, data: bytes) -> None:
        self.events += 1
        self.last_event_at = at
        if data[:1] != b"{" and data.strip() == b"[DONE]":
            self._done = True
            return
        event, faults = self._dialect.read(data)
        found = self.found
        if faults:
            found.faults += faults
        if isinstance(event, TypedEvent):
            self._done = self._done or event.ends
            found.answer_id = event.answer_id or found.answer_id
        carries = shows = False
        if (event.error or event.object == "error") and event.is_error:
            found.is_error = True  # whatever text and usage it has are the error's
            event.usage = None
        elif event.choices:
            carries, shows = self._take_choices(event.choices, at)
        if event.usage is not None:
            self._take_usage(event, event.usage)
        if event.metrics:
            found.times, faults = read_times(event.metrics)
            found.faults += faults
        if not carries:
            return
        found.token_events += 1
        self._uncounted += event.usage is None
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

    def _take_choices(self, choices: Sequence[Choice], at: float) -> tuple[bool, bool]:
        """Note finish reasons; whether anything generated is there, and whether it is visible text."""
        carries = shows = False
        for choice in choices:
            if choice.finish_reason:
                self._finish_reasons[choice.index] = choice.finish_reason
                self.found.last_token_at = at
            delta = choice.delta
            if delta is None:
                has_text, has_token = bool(choice.text), False
            else:
                has_text = bool(delta.content or delta.refusal)
                has_token = not has_text and delta.has_token
            if has_text and self._echoed is not None and choice.index not in self._echoed:
                self._echoed.add(choice.index)
                continue
            if has_text:
                carries = shows = True
            elif has_token:
                carries = True
        return carries, shows

    def _take_usage(self, event: Event, reported: ReportedUsage) -> None:
        """Keep the counts; the last ones win. Beside one choice they are its own so far, beside several those of all."""
        found = self.found
        if isinstance(reported, MessageUsage):
            reported.go_on_from(self._earlier)
            self._earlier = reported
        usage, faults = reported.checked()
        found.faults += faults
        if isinstance(event, TypedEvent):
            before = found.usage
            if usage.prompt_tokens is None and before is not None:  # told wrongly now, and not at the beginning
                usage = msgspec.structs.replace(
                    usage,
                    prompt_tokens=before.prompt_tokens,
                    cached_tokens=before.cached_tokens,
                    has_details=usage.has_details or before.has_details,
                )
            found.usage = usage
            found.usage_is_final = event.usage_is_final
            return
        if not event.choices:
            found.usage = usage
            found.usage_is_final = True
            return
        if usage.completion_tokens is None:
            return
        index = event.choices[0].index if len(event.choices) == 1 else _ALL_CHOICES
        counted = self._continuous
        earlier = counted.get(index, 0)
        now = counted[index] = max(earlier, usage.completion_tokens)
        total = counted.get(_ALL_CHOICES)
        found.usage = msgspec.structs.replace(usage, completion_tokens=sum(counted.values()) if total is None else total)
        self._gap_tokens += now - earlier
