"""Finding where a condition turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.capacity.bisection import crossing


@given(turn=st.floats(1e-6, 1e9), above=st.floats(0.0, 1e9))
def test_the_turn_is_found_from_above(turn: float, above: float) -> None:
    """The answer satisfies the condition and lies within a billionth of where it turns."""
    found = crossing(lambda number: number >= turn, 0.0, turn + above)

    assert found >= turn
    assert found == pytest.approx(turn, rel=2e-9)


def test_a_condition_that_always_holds_turns_at_the_lower_end() -> None:
    """Nothing is below the lower end; the search ends although relative steps to zero never do."""
    assert crossing(lambda number: True, 0.0, 1.0) < 1e-300
    assert crossing(lambda number: True, 4.0, 8.0) == pytest.approx(4.0)
