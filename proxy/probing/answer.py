"""What one request of a probe saw: instants of its tokens and what the endpoint counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.probing.design import Burst
from telemetry.measurements import Measurements
from telemetry.meter import StreamMeter
from telemetry.recorder import GAP_BOUNDS

_LEAST_TOGETHER = 8  # token events of each request while all of them decode; with fewer nothing is said of the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request. Instants are of one monotonic clock; ``None``: it did not come to that, or the endpoint did not say."""

    sent_at: float  # once it had a connection
    ended_at: float
    first_token_at: float | None = None
    last_token_at: float | None = None
    token_at: tuple[float, ...] = ()  # of each event that carried tokens
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None  # why it counts for nothing

    @property
    def ttft_seconds(self) -> float | None:
        """Sending → first token."""
        return None if self.first_token_at is None else self.first_token_at - self.sent_at

    @property
    def whole_seconds(self) -> float | None:
        """Sending → last token."""
        return None if self.last_token_at is None else self.last_token_at - self.sent_at

    @property
    def tpot_seconds(self) -> float | None:
        """(last token - first token) / (completion tokens - 1); ``None`` below two tokens or if all came in one read."""
        first, last, count = self.first_token_at, self.last_token_at, self.completion_tokens
        if first is None or last is None or count is None or count < 2 or last <= first:
            return None
        return (last - first) / (count - 1)


class AnswerReader:
    """Turns the bytes of one streamed answer into an `Answer`.

    Sans-IO: `sent` if the request went out later than thought, `feed` each piece with its arrival, then `finish`.
    """

    def __init__(self, sent_at: float) -> None:
        self._sent_at = sent_at
        self._meter = StreamMeter(1, GAP_BOUNDS)
        self._token_at: list[float] = []

    def sent(self, at: float) -> None:
        """The request goes out only now."""
        self._sent_at = at

    def feed(self, at: float, piece: bytes) -> None:
        """Some bytes of the body."""
        before = self._meter.found.token_events
        self._meter.feed((at,), (piece,))
        self._token_at += [at] * (self._meter.found.token_events - before)

    def finish(self, at: float) -> Answer:
        """The body is over."""
        found = self._meter.finish(at)
        usage = found.usage
        events = found.token_events
        return Answer(
            sent_at=self._sent_at,
            ended_at=at,
            first_token_at=found.first_token_at,
            last_token_at=self._token_at[-1] if self._token_at else None,
            token_at=tuple(self._token_at),
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            completion_tokens=events or None if usage is None else usage.completion_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            error=_fault(found),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A burst that was sent, and what its requests saw."""

    burst: Burst
    is_warm: bool  # its prompts had been sent before
    answers: tuple[Answer, ...]
    peak_kv_ratio: float | None = None  # what the worker's metrics said meanwhile
    peak_waiting: float | None = None

    @property
    def errors(self) -> list[str]:
        """Of requests that failed."""
        return [answer.error for answer in self.answers if answer.error is not None]

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens generated, over the time from the first request to the last token; ``None`` if none came."""
        good = [answer for answer in self.answers if answer.error is None]
        ends = [answer.last_token_at for answer in good if answer.last_token_at is not None]
        if not ends:
            return None
        seconds = max(ends) - min(answer.sent_at for answer in good)
        return sum(answer.completion_tokens or 0 for answer in good) / seconds if seconds > 0 else None

    @property
    def together_seconds(self) -> float | None:
        """TPOT while all requests were decoding: from the last first token to the first last token.

        ``None`` if they never were for long, or one failed.
        """
        if self.errors or not self.answers:
            return None
        firsts = [answer.first_token_at for answer in self.answers if answer.first_token_at is not None]
        lasts = [answer.last_token_at for answer in self.answers if answer.last_token_at is not None]
        if len(firsts) < len(self.answers) or len(lasts) < len(self.answers):
            return None
        begin, end = max(firsts), min(lasts)
        paces = [_pace(answer, begin, end) for answer in self.answers]
        known = [pace for pace in paces if pace is not None]
        return sum(known) / len(known) if len(known) == len(paces) else None


def _pace(answer: Answer, begin: float, end: float) -> float | None:
    inside = [at for at in answer.token_at if begin <= at <= end]
    if len(inside) <= _LEAST_TOGETHER or inside[-1] <= inside[0]:
        return None
    events = len(answer.token_at)
    tokens_per_event = (answer.completion_tokens or events) / events  # several come in one with speculative decoding
    return (inside[-1] - inside[0]) / (len(inside) - 1) / tokens_per_event


def _fault(found: Measurements) -> str | None:
    if found.is_error:
        return "the stream ended with an error"
    if not found.is_complete:
        return "the stream ended before the answer was complete"
    if found.first_token_at is None:
        return "the answer had no token"
    return None


def failed(sent_at: float, ended_at: float, why: str) -> Answer:
    """A request without an answer."""
    return Answer(sent_at=sent_at, ended_at=ended_at, error=why)


def share_failed(measured: Sequence[Measured]) -> float:
    """Failed requests of all, 0-1; 0 without any."""
    count = sum(len(one.answers) for one in measured)
    return sum(len(one.errors) for one in measured) / count if count else 0.0
