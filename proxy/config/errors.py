"""What is wrong with a configuration, said so that it can be mended: where, what, and what would be right.

Texts here end up in terminals and logs. They may name keys, host names and numbers of the file, never a secret: whoever
writes a `RefusedError` for a field that may hold one leaves the value out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]


def dotted(path: KeyPath) -> str:
    """Return a path as people write it: ``models[0].pools[1].max_total_tokens``; ``""`` for the whole file."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that ``word`` was probably meant to be; None when nothing is near."""
    choices = {choice.lower(): choice for choice in known}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), choices, n=1) or difflib.get_close_matches(
        word.lower(), choices, n=1
    )
    return choices[found[0]] if found else None


class RefusedError(ValueError):
    """Raised where one value is judged, without knowing where in the file it stands."""

    def __init__(self, wrong: str, right: str) -> None:
        super().__init__(wrong)
        self.wrong = wrong
        self.right = right


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that must be changed before the configuration can be used."""

    path: str  # dotted; "" when it is about the whole file
    line: int | None  # counted from 1; None when the file could not be read at all
    wrong: str
    right: str

    def __str__(self) -> str:
        place = ", ".join(part for part in (f"line {self.line}" if self.line else "", self.path) if part)
        return f"{place}: {self.wrong}; {self.right}" if place else f"{self.wrong}; {self.right}"


class ConfigError(Exception):
    """Raised for a configuration that cannot be used; holds every problem found, in the order of the file."""

    def __init__(self, problems: Iterable[Problem], source: str) -> None:
        self.problems = tuple(sorted(set(problems), key=lambda problem: (problem.line or 0, problem.path, problem.wrong)))
        self.source = source
        super().__init__(source)

    def __str__(self) -> str:
        count = len(self.problems)
        heading = f"{self.source}: {count} problem{'' if count == 1 else 's'}"
        return "\n".join((heading, *(f"  {problem}" for problem in self.problems)))
