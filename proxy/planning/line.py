"""One line of a sheet, and a section of them."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure: what it is called, what it comes to, and how.

    Lines of several plans that have the same label stand side by side.
    """

    label: str
    value: str
    how: str = ""  # the calculation with its numbers
    formula: str = ""  # the same in words
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and its lines."""

    title: str
    lines: tuple[Line, ...]


WHAT_IF = " (if it fitted)"
ENGINE_FIT = "engine constants (section 0)"
ESTIMATE = "estimate"
CONFIG = "config.json of the model"


def what_if(plan: Plan) -> str:
    """Said behind the title of sections whose times hold only if the model fitted."""
    return "" if plan.load is not None else WHAT_IF


def theory(section: str) -> str:
    """The page that derives a figure; ``section`` is a heading of it."""
    return f'docs/theory.md, "{section}"'
