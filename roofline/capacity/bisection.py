"""Where a condition that is false for small numbers and true for large ones turns."""

from __future__ import annotations

from collections.abc import Callable


def crossing(is_past: Callable[[float], bool], lower: float, upper: float, *, tolerance_ratio: float = 1e-9) -> float:
    """The smallest number at which ``is_past`` holds, from above: it holds at the answer.

    It must hold at ``upper``; ``lower`` is not tried. If the condition turns more than once, one of the turns is found.
    """
    while upper - lower > tolerance_ratio * upper:
        middle = (lower + upper) / 2
        if not lower < middle < upper:
            break
        if is_past(middle):
            upper = middle
        else:
            lower = middle
    return upper
