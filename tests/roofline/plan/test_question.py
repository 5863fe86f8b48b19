"""What may be asked of a plan."""

from __future__ import annotations

import pytest

from tests.roofline.plans import a_question


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurrency": 0.5}, "of at least 1, not 0.5"),
        ({"concurrency": float("inf")}, "not inf"),
        ({"concurrency": float("nan")}, "not nan"),
        ({"rate": 0.0}, "above 0 a second, not 0"),
        ({"rate": float("nan")}, "not nan"),
        ({"workers": 0}, "at least one worker, not 0"),
    ],
)
def test_impossible_questions_are_refused(changes, message):
    """Numbers that cannot be are an error that says what would be right."""
    with pytest.raises(ValueError, match=message):
        a_question(**changes)


def test_a_cold_workload_has_nothing_cached():
    """The cold workload is the same but for what is cached."""
    question = a_question(cached=1500, most=900)

    assert question.cold_workload.cached_tokens == 0
    assert question.cold_workload.total_tokens == question.workload.total_tokens == 2900
