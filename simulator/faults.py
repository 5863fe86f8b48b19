"""What a simulated worker can be told to do wrong, and which requests it hits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from random import Random
from typing import Any

import msgspec


class End(StrEnum):
    """How an answer ends before its time."""

    RESET = "reset"  # the connection is reset
    CLOSE = "close"  # the connection is closed, the answer unfinished
    EXIT = "exit"  # the whole process is gone
    STALL = "stall"  # nothing more comes, the connection stays
    CUT = "cut"  # a clean end of the body, without finish reason, usage and end mark; half of a plain answer
    BAD_CHUNK = "bad-chunk"  # a chunk size that is none, and then nothing
    ERROR = "error"  # an error event under 200, then the end mark; a plain request gets the error as status 500
    ABORT = "abort"  # finish reason "abort", and all else as it should be


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """A set of faults; without arguments none. ``ValueError`` for values that cannot be.

    The first five are states of the worker. The others are done to single requests for tokens: to all of them, or to those that
    ``count``, ``probability`` and ``seed`` pick.
    """

    slow_factor: float = 1.0  # above 0; each engine step takes so many times as long
    pause: bool = False  # the engine stands still; /health stays as it is
    draining: bool = False  # new requests get status 500, running ones go on, /health stays as it is
    refuse: bool = False  # nobody listens on the port; answers that are under way go on
    health_status: int = 200  # 200-599, of /health

    silent: bool = False  # the request is read and never answered
    status: int | None = None  # 400-599; answered instead of tokens
    retry_after_seconds: int | None = None  # with ``status``; None: no such header
    end: End | None = None
    end_at_token: int = 0  # at least 0; ``end`` comes in place of the token behind so many, and never if there is none
    cold_cache: bool = False  # nothing of the prompt is found in the prefix cache, and nobody finds it there later
    first_token_delay_seconds: float = 0.0  # from the first event of a stream that has no token to the one that has
    tokens_per_event: int | None = None  # at least 1; after the first token, which comes alone
    comment_seconds: float | None = None  # above 0; a comment after each such silence of a stream
    bytewise: bool = False  # each byte of an answer is a write of its own
    crlf: bool = False  # lines of a stream end in CR LF
    missing_usage: bool = False  # no usage event, although it was asked for
    missing_done: bool = False  # no end mark

    count: int | None = None  # at least 1; only the first so many are hit, None: without end
    probability: float = 1.0  # 0-1, above 0; of each request to be hit
    seed: int = 0  # what is drawn from

    def __post_init__(self) -> None:
        checks = {
            "slow_factor must be above 0": self.slow_factor > 0,
            "health_status must lie in 200-599": 200 <= self.health_status <= 599,
            "status must lie in 400-599": self.status is None or 400 <= self.status <= 599,
            "retry_after_seconds must be at least 0": self.retry_after_seconds is None or self.retry_after_seconds >= 0,
            "retry_after_seconds needs a status": self.retry_after_seconds is None or self.status is not None,
            "end_at_token must be at least 0": self.end_at_token >= 0,
            f"end_at_token needs an end: one of {', '.join(End)}": self.end_at_token == 0 or self.end is not None,
            "first_token_delay_seconds must be at least 0": self.first_token_delay_seconds >= 0,
            "tokens_per_event must be at least 1": self.tokens_per_event is None or self.tokens_per_event >= 1,
            "comment_seconds must be above 0": self.comment_seconds is None or self.comment_seconds > 0,
            "count must be at least 1": self.count is None or self.count >= 1,
            "probability must be above 0 and at most 1": 0 < self.probability <= 1,
            "count and probability pick requests, but there is no fault of requests in this set": (
                (self.count is None and self.probability == 1) or self.hits_requests
            ),
        }
        for text, holds in checks.items():
            if not holds:
                name = text.split(" ", 1)[0]
                given = f", got {getattr(self, name)}" if "must" in text else ""
                raise ValueError(f"{text}{given}")

    @property
    def hits_requests(self) -> bool:
        """Whether there is a fault in the set that is done to single requests."""
        names = {field.name for field in fields(self)} - _STATES - _PICKING
        return any(getattr(self, name) != getattr(NO_FAULTS, name) for name in names)

    def as_object(self) -> dict[str, Any]:
        """What differs from no faults, as `read_faults` takes it."""
        return {name: value for name, value in asdict(self).items() if value != getattr(NO_FAULTS, name)}


_STATES = frozenset({"slow_factor", "pause", "draining", "refuse", "health_status"})
_PICKING = frozenset({"count", "probability", "seed"})
NO_FAULTS = Faults()


def read_faults(raw: str | bytes) -> Faults:
    """The faults of a JSON object. ``ValueError`` that says what is wrong, and the nearest name for one that is unknown."""
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise ValueError(f"faults are a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f'faults are a JSON object such as {{"slow_factor": 2}}, not {type(value).__name__}')
    known = [field.name for field in fields(Faults)]
    for name in value:
        if name not in known:
            near = get_close_matches(name, known, 1, 0.4)
            raise ValueError(
                f"unknown fault {name!r}" + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")
            )
    try:
        return msgspec.convert(value, Faults)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        name = path.strip(".`")
        if name == "end":
            text = f"must be one of {', '.join(End)}"
        raise ValueError(f"{name}: {text}" if name else text) from None


class FaultSwitch:
    """The faults that are on, and the drawing of whom they hit."""

    def __init__(self, faults: Faults = NO_FAULTS) -> None:
        self.set(faults)

    def __repr__(self) -> str:
        return f"<FaultSwitch {self.faults.as_object()}, {self.hit} of {self.seen} hit>"

    def set(self, faults: Faults) -> None:
        """Put these faults in force, instead of all before; counting and drawing begin anew."""
        self.faults = faults
        self.seen = 0  # requests for tokens since then
        self.hit = 0  # those that were hit
        self._random = Random(faults.seed)  # noqa: S311 -- which requests are hit, no secret

    def draw(self) -> Faults:
        """What is done to the next request: the faults that are on, or none."""
        self.seen += 1
        faults = self.faults
        if not faults.hits_requests or (faults.count is not None and self.hit >= faults.count):
            return NO_FAULTS
        if faults.probability < 1 and self._random.random() >= faults.probability:
            return NO_FAULTS
        self.hit += 1
        return faults
