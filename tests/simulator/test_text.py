"""What a simulated worker says."""

from __future__ import annotations

from simulator.text import write_output


def an_output(digest: bytes = b"prompt", *, seed: int = 0, limit: int = 5000, ignores_end: bool = False):
    return write_output(digest, seed=seed, limit=limit, ignores_end=ignores_end)


def test_the_same_prompt_and_seed_give_the_same_answer():
    """An answer depends on prompt and seed only; another prompt or seed gives another one."""
    assert an_output() == an_output()
    assert len({an_output(), an_output(b"other"), an_output(seed=1)}) == 3


def test_an_answer_that_ends_by_itself_ends_with_a_token_without_text():
    """The end token counts and says nothing."""
    output = an_output()

    assert (output.finish_reason, output.pieces[-1]) == ("stop", "")
    assert all(output.pieces[:-1])


def test_the_limit_cuts_an_answer():
    """An answer that would be longer has exactly as many tokens as allowed, all with text."""
    output = an_output(limit=5)

    assert (output.finish_reason, len(output.pieces)) == ("length", 5)
    assert all(output.pieces)


def test_ignoring_the_end_goes_on_to_the_limit():
    """With the end ignored an answer has exactly the length asked for."""
    output = an_output(limit=3000, ignores_end=True)

    assert (output.finish_reason, len(output.pieces)) == ("length", 3000)


def test_a_cut_answer_begins_like_any_other_of_its_limit():
    """Pieces joined in any cut give the whole text."""
    output = an_output(limit=9, ignores_end=True)

    assert output.text(0, 9) == output.text(0, 4) + output.text(4, 9)
    assert len(output.text(0, 9).split()) == 9
