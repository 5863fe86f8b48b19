"""What requests ask for."""

from __future__ import annotations

import pytest

from roofline.capacity.workload import Workload


def test_memory_is_kept_for_the_longest_completion() -> None:
    """The cache is sized by prompt and longest completion, the mean context by half of the mean one."""
    asked = Workload(prompt_tokens=1_000, completion_tokens=200, max_completion_tokens=2_000)

    assert asked.total_tokens == 3_000
    assert asked.mean_context_tokens == 1_100
    assert Workload(prompt_tokens=1_000, completion_tokens=200).total_tokens == 1_200


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 1}, "at least one token, not 0, 1"),
        ({"prompt_tokens": 1, "completion_tokens": 0}, "at least one token, not 1, 0"),
        ({"prompt_tokens": 10, "completion_tokens": 1, "cached_tokens": 11}, "part of the prompt's 10, not 11"),
        ({"prompt_tokens": 10, "completion_tokens": 1, "cached_tokens": -1}, "part of the prompt's 10, not -1"),
        ({"prompt_tokens": 10, "completion_tokens": 9, "max_completion_tokens": 8}, "longest completion is 8, less than 9"),
    ],
)
def test_lengths_that_cannot_be_are_refused(lengths: dict[str, int], message: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(ValueError, match=message):
        Workload(**lengths)
