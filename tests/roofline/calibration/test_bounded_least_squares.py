"""Least squares with lower bounds."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from roofline.calibration.bounded_least_squares import inverse, solve, solve_bounded


def a_problem(random: Random, size: int) -> tuple[list[list[float]], list[float]]:
    rows = [[random.uniform(-1, 1) for _ in range(size)] for _ in range(size + 3)]
    matrix = [[sum(row[i] * row[j] for row in rows) + (0.1 if i == j else 0.0) for j in range(size)] for i in range(size)]
    return matrix, [random.uniform(-2, 2) for _ in range(size)]


def cost(matrix: list[list[float]], right: list[float], x: list[float]) -> float:
    size = len(x)
    return sum(x[i] * (0.5 * sum(matrix[i][j] * x[j] for j in range(size)) - right[i]) for i in range(size))


def test_a_system_of_equations_is_solved() -> None:
    """What goes in comes out."""
    matrix, right = a_problem(Random(1), 4)
    x = solve(matrix, right)

    assert [sum(matrix[i][j] * x[j] for j in range(4)) for i in range(4)] == pytest.approx(right)


def test_an_inverse_undoes_its_matrix() -> None:
    """Their product is one."""
    matrix, _ = a_problem(Random(2), 3)
    back = inverse(matrix)

    for i, j in product(range(3), repeat=2):
        assert sum(matrix[i][k] * back[k][j] for k in range(3)) == pytest.approx(float(i == j), abs=1e-9)


def test_without_need_nothing_is_held() -> None:
    """Bounds far below change nothing."""
    matrix, right = a_problem(Random(3), 4)

    assert solve_bounded(matrix, right, [-1e9] * 4) == pytest.approx(solve(matrix, right))


@pytest.mark.parametrize("number", range(20))
def test_no_allowed_step_from_the_bounded_optimum_is_better(number: int) -> None:
    """Within the bounds, and every small step that stays within them costs more."""
    random = Random(number)
    matrix, right = a_problem(random, 4)
    lowest = [random.uniform(-1, 1) for _ in range(4)]
    x = solve_bounded(matrix, right, lowest)

    assert all(value >= bound for value, bound in zip(x, lowest, strict=True))
    for step in product((-1e-3, 0.0, 1e-3), repeat=4):
        moved = [max(value + by, bound) for value, by, bound in zip(x, step, lowest, strict=True)]
        assert cost(matrix, right, moved) >= cost(matrix, right, x) - 1e-12
