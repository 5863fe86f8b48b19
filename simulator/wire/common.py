"""What the answers of vLLM's endpoints have in common: the values they are made from, counts and times, events.

Field for field in vLLM's order, as captured from 0.32.0; older versions have fewer fields (see `simulator.dialect`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from simulator.dialect import NEWEST, Dialect
from simulator.text import Output
from simulator.vocabulary import Token

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_MARK = "<text>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every event of an answer says."""

    identifier: str  # the part after "chatcmpl-" or "cmpl-"
    created: int  # seconds since the epoch
    model: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What flags of the server and fields of the request make of the form."""

    dialect: Dialect = NEWEST
    has_parser: bool = False  # for tools or reasoning: tokens that nobody sees make no event
    counts_reasoning: bool = False  # the server has a reasoning parser
    shows_reasoning: bool = True
    details: bool = False  # --enable-prompt-tokens-details
    token_ids: bool = False  # return_token_ids
    top_logprobs: int | None = None  # None: no logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one answer so far."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    created_cache_tokens: int = 0
    reasoning_tokens: int = 0

    def counts(self) -> dict[str, Any]:
        """The three counts that each form of usage begins with."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times of one request that the worker measures itself."""

    queue_seconds: float
    first_token_seconds: float  # from scheduling, not from arrival
    generation_seconds: float  # first token to last
    tokens: int  # at least 1

    def as_object(self) -> dict[str, float | None]:
        """The figures as vLLM tells them."""
        gaps = self.tokens - 1
        whole = self.first_token_seconds + self.generation_seconds
        return {
            "time_to_first_token_ms": self.first_token_seconds * 1000,
            "generation_time_ms": self.generation_seconds * 1000,
            "queue_time_ms": self.queue_seconds * 1000,
            "mean_itl_ms": self.generation_seconds * 1000 / gaps if gaps else None,
            "tokens_per_second": self.tokens / whole if whole > 0 else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Some tokens of one choice."""

    index: int
    tokens: Sequence[Token]
    start: int = 0  # characters of the choice's text before them
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None  # None unless it was asked for in every event
    is_last: bool = False  # finishes its choice, and no usage event will follow
    echo: str = ""  # the prompt, before the first tokens
    prompt_ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One whole choice of a plain answer."""

    index: int
    output: Output
    echo: str = ""
    echo_tokens: Sequence[Token] = ()  # the tokens of the echo, if their logprobs are told
    hides_output: bool = False  # nothing was asked for but the echo
    beside_call: str | None = None  # the content of a message that is nothing but a tool call
    prompt_ids: Sequence[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class Format(Protocol):
    """How one endpoint writes its answers. One is made for each answer."""

    def greeting(self) -> bytes:
        """What a stream sends at once, before the prompt is computed; may be nothing."""

    def opening(self, index: int, usage: Usage | None, prompt_ids: Sequence[int] | None) -> bytes:
        """What goes out before the first text of a choice; may be nothing."""

    def echoed(self, index: int, text: str) -> bytes:
        """The event that repeats the end of the prompt, where that is an event of its own; may be nothing."""

    def piece(self, delta: Delta) -> bytes:
        """The event for some tokens; nothing if they make none."""

    def frame(self, index: int) -> tuple[bytes, bytes] | None:
        """What stands around the text, as JSON, in the event of an ordinary token; ``None`` if events depend on more."""

    def closing(self, usage: Usage, timing: Timing | None) -> bytes:
        """The usage event, or whatever tells the counts."""

    def ending(self) -> bytes:
        """What ends the stream."""

    def answer(
        self, choices: Sequence[Choice], usage: Usage, timing: Timing | None, transfer: dict[str, Any] | None = None
    ) -> bytes:
        """The whole answer of a request that is not streamed."""


class Counts:
    """The parts that tell counts and times, in which chat and completions agree."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._dialect = style.dialect

    def reasoning(self, usage: Usage) -> dict[str, int] | None:
        """``completion_tokens_details``."""
        return {"reasoning_tokens": usage.reasoning_tokens} if self._style.counts_reasoning else None

    def stream_details(self, usage: Usage, *, tells_created: bool) -> dict[str, Any]:
        """The details in the usage event of a stream: only those that there are."""
        found: dict[str, Any] = {}
        if self._tells_cached(usage):
            found["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
            if tells_created and self._dialect.tells_created_cache:
                found["prompt_tokens_details"]["created_cache_tokens"] = usage.created_cache_tokens
        if self._style.counts_reasoning and self._dialect.tells_recent_fields:
            found["completion_tokens_details"] = self.reasoning(usage)
        return found

    def answer_usage(self, usage: Usage, created_cache_tokens: int | None) -> dict[str, Any]:
        """The usage of a plain answer."""
        details: dict[str, Any] | None = None
        if self._tells_cached(usage):
            details = {"cached_tokens": usage.cached_tokens}
            if self._dialect.tells_created_cache:
                details |= {"created_cache_tokens": created_cache_tokens, "multimodal_tokens": None}
        whole = {**usage.counts(), "prompt_tokens_details": details}
        return {**whole, "completion_tokens_details": self.reasoning(usage)} if self._dialect.tells_recent_fields else whole

    def closed(self, chunk: dict[str, Any], head: Head, timing: Timing | None) -> dict[str, Any]:
        """The usage event with what stands behind usage in it."""
        if self._dialect.tells_recent_fields:
            chunk["system_fingerprint"] = head.fingerprint
        if timing is not None and self._dialect.tells_request_metrics:
            chunk["metrics"] = {name: value for name, value in timing.as_object().items() if value is not None}
        return chunk

    def ended(self, whole: dict[str, Any], timing: Timing | None) -> dict[str, Any]:
        """A plain answer with its last fields."""
        if self._dialect.tells_recent_fields:
            whole["ec_transfer_params"] = None
        if self._dialect.tells_request_metrics:
            whole["metrics"] = None if timing is None else {**timing.as_object(), "speculative_decoding": None}
        return whole

    def _tells_cached(self, usage: Usage) -> bool:
        return self._style.details and (self._dialect.tells_zero_cached or usage.cached_tokens > 0)


def split_frame(form: Format, index: int) -> tuple[bytes, bytes]:
    """The frame of a format that makes equal events of equal tokens."""
    before, _, after = form.piece(Delta(index=index, tokens=[Token(0, _MARK, _MARK)])).partition(encode(_MARK))
    return before, after


def logprob(token: Token) -> float:
    """A made-up logarithm of a token's probability, below 0."""
    return -0.125 - (token.identifier % 16) / 8


def likely(token: Token, count: int) -> list[tuple[str, float]]:
    """The token and ``count - 1`` made-up alternatives, likelier ones first, with their logarithms of probability."""
    found = [(token.spelling, logprob(token))]
    return [*found, *((f" alternative{number}", found[0][1] - number) for number in range(1, count))] if count else []


def event(value: dict[str, Any]) -> bytes:
    """An event whose data is JSON."""
    return b"data: " + encode(value) + b"\n\n"


def encode(value: object) -> bytes:
    """JSON without spaces, characters as they are."""
    return msgspec.json.encode(value)
