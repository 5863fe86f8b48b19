"""The body of one answer, from the worker's bytes to the client's.

In the same call in which bytes arrive it gives back what to write. Whole chunks of whole events go on untouched, which is
nearly all of a stream; everything else is taken out of its chunks and framed again, so the client's framing is right whatever
the worker's looked like. The meter is fed later, in batches, with the instant at which each piece arrived.
"""

from __future__ import annotations

from proxy.upstream.usage_filter import FINISHES, UsageFilter
from proxy.wire.answers import LAST_CHUNK
from proxy.wire.framing import SIZE_LINES, AnswerHead, ChunkDecoder, Framing, FramingError, split_plain_chunks
from telemetry.dialects import CHAT, Dialect
from telemetry.measurements import Measurements
from telemetry.meter import StreamMeter
from telemetry.plain_meter import NoMeter, PlainMeter
from telemetry.recorder import GAP_BOUNDS

_BATCH = 64  # pieces kept for the meter
_BATCH_BYTES = 64 * 1024  # a piece larger than this is metered at once
_TABLE = len(SIZE_LINES)
_LENGTH, _CHUNKED, _CLOSE = Framing.LENGTH, Framing.CHUNKED, Framing.CLOSE

Meter = StreamMeter | PlainMeter | NoMeter


def make_meter(answer: AnswerHead, choices: int, dialect: Dialect = CHAT, *, echoes: bool = False) -> Meter:
    """The meter that can read this answer. ``choices`` is how many finish reasons a whole answer has."""
    if answer.is_event_stream:
        return StreamMeter(choices, GAP_BOUNDS, dialect, echoes=echoes)
    return PlainMeter(dialect) if answer.is_json else NoMeter()


class Relay:
    """Call `feed` with each read; when `has_ended`, `rest` holds bytes that belong to nobody, and `finish` measures."""

    __slots__ = (
        "_arrivals",
        "_decoder",
        "_filter",
        "_is_at_edge",
        "_last_piece",
        "_left",
        "_pieces",
        "answer_bytes",
        "framing",
        "has_ended",
        "meter",
        "rest",
    )

    def __init__(
        self,
        head: AnswerHead,
        meter: Meter,
        *,
        strips_usage: bool,
        is_http11: bool,
        choices: int = 1,
        fingerprint: str | None = None,
    ) -> None:
        self.meter = meter
        self.has_ended = False
        self.rest = b""
        self.answer_bytes = 0  # payload that went to the meter
        self._filter = UsageFilter(choices, fingerprint) if strips_usage else None
        self._decoder = ChunkDecoder() if head.is_chunked else None
        self._left = head.content_length
        self._arrivals: list[float] = []
        self._pieces: list[bytes] = []
        self._last_piece = b""
        if head.content_length == 0 or (head.content_length is not None and not strips_usage):
            self.framing = _LENGTH
            self.has_ended = head.content_length == 0
        else:
            self.framing = _CHUNKED if is_http11 else _CLOSE
        self._is_at_edge = head.is_chunked and is_http11

    def __repr__(self) -> str:
        return f"<Relay {self.framing.value}{' ended' if self.has_ended else ''}, {self.meter!r}>"

    @property
    def fingerprint(self) -> str | None:
        """The worker's, where the usage event that was taken out had it."""
        return None if self._filter is None else self._filter.fingerprint

    @property
    def can_insert(self) -> bool:
        """Whether an event of our own can follow the last byte given back: the client has had whole events only."""
        if self.framing is not _CHUNKED:
            return False
        if self._filter is not None:
            return self._filter.gives_whole_events
        last = self._pieces[-1] if self._pieces else self._last_piece
        return not last or last.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))

    def feed(self, data: bytes, now: float) -> bytes:
        """Give back what the client gets for ``data``, framed. Raises `FramingError` when the worker's framing is broken."""
        if self._is_at_edge:
            size = len(data)
            if (
                size < _TABLE
                and data.startswith(SIZE_LINES[size])
                and data.endswith(b"\n\n\r\n")
                and (self._filter is None or (data.find(b'"usage"') < 0 and data.find(FINISHES) < 0))
            ):
                self._arrivals.append(now)
                self._pieces.append(data[len(SIZE_LINES[size]) : -2])
                if len(self._arrivals) >= _BATCH:
                    self.scan()
                return data
        return self._feed_slowly(data, now)

    def _feed_slowly(self, data: bytes, now: float) -> bytes:
        decoder = self._decoder
        events = self._filter
        if self._is_at_edge and (events is None or (b'"usage"' not in data and FINISHES not in data)):
            split = split_plain_chunks(data)
            if split is not None and (events is None or (split[0] and all(piece.endswith(b"\n\n") for piece in split[0]))):
                pieces, self.has_ended = split
                self._arrivals += [now] * len(pieces)
                self._pieces += pieces
                if len(data) > _BATCH_BYTES or len(self._arrivals) >= _BATCH:
                    self.scan()
                return data
        if decoder is not None:
            payload = decoder.feed(data)
            self.has_ended = decoder.ended
            self.rest = decoder.rest
        elif self._left is not None:
            payload = data if len(data) <= self._left else data[: self._left]
            self.rest = data[len(payload) :]
            self._left -= len(payload)
            self.has_ended = self._left == 0
        else:
            payload = data
        if payload:
            self._arrivals.append(now)
            self._pieces.append(payload)
            if len(payload) > _BATCH_BYTES or len(self._arrivals) >= _BATCH:
                self.scan()
        if events is not None:
            payload = events.feed(payload)
            if self.has_ended:
                payload += events.finish()
        if decoder is not None:
            self._is_at_edge = (
                self.framing is _CHUNKED
                and decoder.is_at_edge
                and not self.has_ended
                and (events is None or events.is_between_events)
            )
        return self._framed(payload)

    def end_of_connection(self, *, is_clean: bool) -> bytes:
        """The worker closed: the end of a body without a length, or of a stream whose end marker has come.

        Raises `FramingError` if the body was cut short.
        """
        self.scan()
        has_marker = isinstance(self.meter, StreamMeter) and self.meter.has_end_marker
        is_over = has_marker and self.framing is not _LENGTH  # a length that was promised is owed
        if not is_over and (not is_clean or self._decoder is not None or self._left is not None):
            raise FramingError("the connection ended inside the body")
        self.has_ended = True
        return self._framed(b"" if self._filter is None else self._filter.finish())

    def _framed(self, payload: bytes) -> bytes:
        if self.framing is not _CHUNKED:
            return payload
        end = LAST_CHUNK if self.has_ended else b""
        return b"%x\r\n%b\r\n%b" % (len(payload), payload, end) if payload else end

    def release_late(self, *, is_last: bool = False) -> bytes:
        """What was held for a successor already at the last call, framed; with ``is_last`` whatever is held."""
        if self._filter is None or self.has_ended:
            return b""
        payload = self._filter.release_late(is_last=is_last)
        if payload and self._decoder is not None:
            self._is_at_edge = self.framing is _CHUNKED and self._decoder.is_at_edge and self._filter.is_between_events
        return self._framed(payload)

    def insert(self, payload: bytes) -> bytes:
        """Bytes of our own as the client has to get them; only while `can_insert`."""
        return b"%x\r\n%b\r\n" % (len(payload), payload)

    def scan(self) -> None:
        """Hand what has arrived to the meter."""
        pieces = self._pieces
        if pieces:
            self.answer_bytes += sum(map(len, pieces))
            self._last_piece = pieces[-1]
            self.meter.feed(self._arrivals, pieces)
            self._arrivals = []
            self._pieces = []

    def finish(self, now: float) -> Measurements:
        """Measure what arrived until now; call once."""
        self.scan()
        return self.meter.finish(now)
