"""A finished probe as one value, from which table, JSON and page are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.probing.expectations import Expectation
from proxy.probing.findings import Findings
from proxy.probing.reading import Remark


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was probed, how, and what came of it."""

    url: str
    path: str
    model: str
    started_unix_seconds: float
    seconds: float  # that it took
    ended: str  # complete, requests, seconds, cancelled or errors
    left_out: tuple[str, ...]
    sampling: Mapping[str, object]
    has_exact_outputs: bool
    counts_prompts: bool  # the endpoint tells usage; else lengths are those aimed at
    findings: Findings
    remarks: tuple[Remark, ...]
    expectation: Expectation | None

    @property
    def ended_in_words(self) -> str:
        """Why it stopped; empty if it came to its end."""
        return {
            "requests": "stopped at --max-requests",
            "seconds": "stopped at --max-seconds",
            "cancelled": "cancelled",
            "errors": "stopped because requests failed",
        }.get(self.ended, "")


def printable(text: str) -> str:
    """A text that may hold what an endpoint said: nothing in it commands a terminal."""
    return "".join(character if character.isprintable() else " " if character.isspace() else "?" for character in text)
