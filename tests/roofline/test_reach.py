"""Closed forms of what attention looks at, against counting it out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.reach import Reach

REACHES = [Reach(), Reach(1), Reach(4), Reach(100), Reach(4, is_chunked=True), Reach(7, is_chunked=True)]


def reached(reach: Reach, position: int) -> int:
    """How many tokens the one at ``position`` attends to, itself included."""
    if reach.tokens is None:
        return position + 1
    return position % reach.tokens + 1 if reach.is_chunked else min(position + 1, reach.tokens)


@pytest.mark.parametrize("reach", REACHES, ids=repr)
@given(past=st.integers(0, 60), new=st.integers(1, 60))
def test_pairs_are_those_of_a_causal_mask(reach: Reach, past: int, new: int) -> None:
    """Every new token meets exactly what its layer lets it see."""
    assert reach.pairs(past, new) == sum(reached(reach, position) for position in range(past, past + new))


@pytest.mark.parametrize("reach", REACHES, ids=repr)
@given(past=st.integers(0, 60), new=st.integers(1, 60))
def test_one_step_reads_what_its_first_token_sees_of_the_past(reach: Reach, past: int, new: int) -> None:
    """Tokens computed in the step itself are not read from the cache."""
    assert reach.reads(past, new, 1) == reached(reach, past) - 1


@pytest.mark.parametrize("reach", REACHES, ids=repr)
@given(past=st.integers(0, 60), steps=st.integers(1, 60))
def test_a_decode_reads_the_growing_past_of_every_step(reach: Reach, past: int, steps: int) -> None:
    """One token a step: each step reads what that token sees before itself."""
    assert reach.reads(past, steps, steps) == pytest.approx(
        sum(reached(reach, position) - 1 for position in range(past, past + steps))
    )


@pytest.mark.parametrize("reach", [reach for reach in REACHES if not reach.is_chunked], ids=repr)
@given(past=st.integers(0, 60), part=st.integers(1, 9), steps=st.integers(1, 9))
def test_a_prefill_in_parts_reads_the_past_of_every_part(reach: Reach, past: int, part: int, steps: int) -> None:
    """A chunk reads the chunks before it as far as the layer reaches."""
    starts = range(past, past + part * steps, part)

    assert reach.reads(past, part * steps, steps) == pytest.approx(sum(reached(reach, start) - 1 for start in starts))
