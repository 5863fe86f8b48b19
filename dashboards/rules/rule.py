"""Rules as values, and how times are written in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


class Severity(StrEnum):
    """Who has to know, and when."""

    CRITICAL = "critical"  # someone now, at night too
    WARNING = "warning"  # someone today
    INFO = "info"  # whoever looks at it anyway


@dataclass(frozen=True, slots=True)
class Clock:
    """Writes times. With a ``factor`` all are so many times shorter, so that tests see an alert within seconds."""

    factor: float = 1.0

    def __call__(self, text: str) -> str:
        """The time as it stands in the rules: ``5m`` is ``5s`` with a factor of 60. Never below 1 ms."""
        number, unit = re.fullmatch(r"(\d+)([a-z]+)", text).groups()  # type: ignore[union-attr]  # ours, and tested
        milliseconds = max(1, round(int(number) * dict(_UNITS)[unit] / self.factor))
        return next(f"{milliseconds // size}{name}" for name, size in _UNITS if milliseconds % size == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A series that is computed ahead, named `level:metric:operation`."""

    record: str
    expr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert. `hold` is how long it has to be true, `keep` how long it stays after it was; `5m` and the like."""

    name: str
    expr: str
    severity: Severity
    summary: str
    description: str
    hold: str
    keep: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)  # where several alerts share a name


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other."""

    name: str
    rules: tuple[Recording | Alert, ...]
