"""One thing that `ridgeline doctor` has found, as a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad it is; the value is the exit status it leads to."""

    ERROR = 2  # requests fail
    WARNING = 1  # probably not meant, or will fail one day
    HINT = 0  # works; something cannot be seen, or could be better


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong or blind, and what mends it."""

    severity: Severity
    code: str  # stable, for programs
    subjects: tuple[str, ...]  # all that it is true of
    wrong: str
    mend: str


def error(code: str, subject: str, wrong: str, mend: str) -> Finding:
    """A finding because of which requests fail."""
    return Finding(severity=Severity.ERROR, code=code, subjects=(subject,), wrong=wrong, mend=mend)


def warning(code: str, subject: str, wrong: str, mend: str) -> Finding:
    """A finding that is probably not meant, or will fail one day."""
    return Finding(severity=Severity.WARNING, code=code, subjects=(subject,), wrong=wrong, mend=mend)


def hint(code: str, subject: str, wrong: str, mend: str) -> Finding:
    """A finding that hurts nobody."""
    return Finding(severity=Severity.HINT, code=code, subjects=(subject,), wrong=wrong, mend=mend)


def merge(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings worst first, in their order otherwise; what is said in the same words of several subjects is one."""
    merged: dict[tuple[Severity, str, str, str], list[str]] = {}
    for found in findings:
        merged.setdefault((found.severity, found.code, found.wrong, found.mend), []).extend(found.subjects)
    return tuple(
        Finding(severity=severity, code=code, subjects=tuple(dict.fromkeys(subjects)), wrong=wrong, mend=mend)
        for (severity, code, wrong, mend), subjects in sorted(merged.items(), key=lambda item: -item[0][0].value)
    )


def exit_status(findings: Iterable[Finding]) -> int:
    """0 for nothing worse than hints, 1 for warnings, 2 for errors."""
    return max((found.severity.value for found in findings), default=0)
