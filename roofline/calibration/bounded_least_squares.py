"""Least squares with lower bounds for a handful of unknowns, from normal equations that are positive definite."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

Matrix = Sequence[Sequence[float]]


def solve_bounded(matrix: Matrix, right: Sequence[float], lowest: Sequence[float]) -> list[float]:
    """The x at or above ``lowest`` that makes x·Mx/2 - b·x smallest: the best of those with some unknowns held at their bound.

    Tries every set of held unknowns, so it is exact, and meant for four of them rather than for twenty.
    """
    size = len(right)
    best, least = list(lowest), float("inf")
    for held_count in range(size + 1):
        for held in combinations(range(size), held_count):
            x = _with_held(matrix, right, lowest, held)
            if any(value < bound for value, bound in zip(x, lowest, strict=True)):
                continue
            cost = sum(x[i] * (0.5 * sum(matrix[i][j] * x[j] for j in range(size)) - right[i]) for i in range(size))
            if cost < least:
                best, least = x, cost
        if held_count == 0 and least < float("inf"):
            break  # the unbounded optimum is within the bounds
    return best


def inverse(matrix: Matrix) -> list[list[float]]:
    """Of a positive definite matrix."""
    size = len(matrix)
    return [solve(matrix, [1.0 if row == column else 0.0 for row in range(size)]) for column in range(size)]


def solve(matrix: Matrix, right: Sequence[float]) -> list[float]:
    """Gaussian elimination without pivoting, which a positive definite matrix does not need."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for at in range(size):
        for below in range(at + 1, size):
            factor = rows[below][at] / rows[at][at]
            for column in range(at, size + 1):
                rows[below][column] -= factor * rows[at][column]
    solved = [0.0] * size
    for at in reversed(range(size)):
        known = sum(rows[at][column] * solved[column] for column in range(at + 1, size))
        solved[at] = (rows[at][size] - known) / rows[at][at]
    return solved


def _with_held(matrix: Matrix, right: Sequence[float], lowest: Sequence[float], held: Sequence[int]) -> list[float]:
    free = [at for at in range(len(right)) if at not in held]
    rest = [right[at] - sum(matrix[at][other] * lowest[other] for other in held) for at in free]
    x = list(lowest)
    for at, value in zip(free, solve([[matrix[at][other] for other in free] for at in free], rest), strict=True):
        x[at] = value
    return x
