"""How long answers are."""

from __future__ import annotations

import random

import pytest

from routing.estimate_output import Outputs


def test_nothing_is_said_of_few_answers():
    """A budget that was learned from a handful would be wrong too often."""
    outputs = Outputs()
    for _ in range(99):
        outputs.add("app", 500)

    assert outputs.budgets(0.99) == {}


def test_a_budget_is_the_quantile_of_each_key_and_of_all():
    """An agent that asks for 32,000 tokens and uses 300 is known by what it uses."""
    outputs, draws = Outputs(), random.Random(1)
    for _ in range(1000):
        outputs.add("agent", draws.randrange(100, 300))
        outputs.add("writer", draws.randrange(100, 6000))

    budgets = outputs.budgets(0.99)
    assert budgets["agent"] == pytest.approx(300, rel=0.11)
    assert budgets["writer"] == pytest.approx(5940, rel=0.11)
    assert budgets["agent"] < budgets[""] <= budgets["writer"]
    assert outputs.budgets(0.5)["agent"] == pytest.approx(200, rel=0.12)


def test_budgets_move_with_the_answers():
    """What was months ago does not count for ever."""
    outputs = Outputs()
    for tokens in (5000, 100):
        for _ in range(20_000):
            outputs.add("", tokens)

    assert outputs.budgets(0.99)[""] < 120


def test_memory_is_bounded():
    """However many keys there are, and whatever they report."""
    outputs = Outputs()
    for number in range(3000):
        outputs.add(f"key-{number}", 10**9 if number % 2 else 0)

    assert len(outputs._by_key) <= 1002
    assert outputs.budgets(0.4)[""] == 1
