"""One thing that is wrong in the fleet, how bad it is, and whether what is counted happens now."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import msgspec

from dashboards.live.views import PoolView, WorkerView

_RECENT_SECONDS = 60.0  # something that is counted happened "now" for so long


class Severity(IntEnum):
    """How bad; the numbers are their order."""

    CRITICAL = 0
    WARNING = 1
    NOTICE = 2


# What is nearer to the cause comes first, among those that are as bad.
_ORDER = (
    *("stopping", "gateway", "pool_down", "worker_down", "worker_silence", "worker_hung", "worker_errors", "facts", "drift"),
    *("failing", "attempts", "process_restarts", "configuration", "loop_lag", "gpu_clocks", "slow", "hit_drop", "kv", "queue"),
    *("waiting", "refused"),
)
_RANKS = {kind: rank for rank, kind in enumerate(_ORDER)}


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that is wrong or worth knowing, and what to do about it."""

    kind: str
    severity: str
    text: str  # a sentence without its full stop
    advice: str
    since_unix_seconds: float | None = None  # None: from before this control process looked first
    model: str | None = None
    pool: str | None = None
    worker: str | None = None
    key: str | None = None
    cause: str | None = None


def order_of(finding: Finding) -> tuple[int, int]:
    """The worst first."""
    return Severity[finding.severity.upper()], _RANKS.get(finding.kind, len(_RANKS))


@dataclass(slots=True)
class _Spell:
    value: float
    before: float  # as it was before it began to grow
    at: float


class _Marks:
    """Counters as they were when the last minute but one and the last one (``at``) began, and as they were seen last."""

    __slots__ = ("at", "before", "half", "seen")

    def __init__(self, before: tuple[int, ...], half: tuple[int, ...], at: float) -> None:
        self.before, self.half, self.at, self.seen = before, half, at, half


@dataclass(slots=True)
class Growth:
    """Tells by how much counters have grown lately, since they last stood still for a minute, and how long something is so."""

    _known: dict[tuple[str, ...], _Spell] = field(default_factory=dict)
    _begun: dict[tuple[str, ...], float] = field(default_factory=dict)
    _marks: dict[tuple[str, ...], _Marks] = field(default_factory=dict)
    _asked: set[tuple[str, ...]] = field(default_factory=set)  # about, in the look that is under way

    def end_look(self) -> None:
        """Everything has been asked about: what was not is gone, and forgotten."""
        asked, self._asked = self._asked, set()
        known: tuple[dict[tuple[str, ...], Any], ...] = (self._known, self._begun, self._marks)
        for each in known:
            for subject in each.keys() - asked:
                del each[subject]

    def of(self, subject: tuple[str, ...], value: float, now: float) -> int:
        """The growth of the spell that is under way; 0 when nothing was added for a minute, and at the first look."""
        self._asked.add(subject)
        spell = self._known.get(subject)
        if spell is None:
            self._known[subject] = _Spell(value, value, now - _RECENT_SECONDS - 1.0)
            return 0
        if value != spell.value:
            if now - spell.at > _RECENT_SECONDS:
                spell.before = spell.value
            spell.value, spell.at = value, now
        return int(spell.value - spell.before) if now - spell.at <= _RECENT_SECONDS else 0

    def lately(self, subject: tuple[str, ...], values: tuple[int, ...], now: float) -> tuple[int, ...]:
        """By how much several counters grew over the same last one to two minutes; from the first look on, if that is less."""
        self._asked.add(subject)
        marks = self._marks.get(subject)
        if marks is None:
            marks = self._marks[subject] = _Marks(values, values, now)
        elif now - marks.at >= 2 * _RECENT_SECONDS:  # nobody has looked for long
            marks = self._marks[subject] = _Marks(marks.seen, marks.seen, now)
        elif now - marks.at >= _RECENT_SECONDS:
            marks.before, marks.half, marks.at = marks.half, marks.seen, now
        marks.seen = values
        return tuple(value - before for value, before in zip(values, marks.before, strict=True))

    def lasting(self, subject: tuple[str, ...], is_so: bool, now: float) -> float:
        """For how many seconds it has been so at every look; 0 at the first one, and when it is not."""
        self._asked.add(subject)
        if not is_so:
            self._begun.pop(subject, None)
            return 0.0
        return now - self._begun.setdefault(subject, now)


def finding_of(
    severity: Severity,
    kind: str,
    text: str,
    advice: str,
    pool: PoolView | None = None,
    worker: WorkerView | None = None,
    *,
    since: float | None = None,
    cause: str | None = None,
) -> Finding:
    """A finding about this pool and worker, or about the gateway."""
    return Finding(
        kind=kind,
        severity=severity.name.lower(),
        text=text,
        advice=advice,
        since_unix_seconds=since,
        model=None if pool is None else pool.model,
        pool=None if pool is None else pool.pool,
        worker=None if worker is None else worker.worker,
        cause=cause,
    )


def capital(text: str) -> str:
    """The same as the beginning of a sentence; names within it stay as they are."""
    return text[:1].upper() + text[1:]
