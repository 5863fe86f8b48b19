"""What a simulated worker says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.text import Output, ToolCall, Wish, write_output
from simulator.vocabulary import END, Part

CALL = ToolCall(name="get_weather", arguments='{"city": "Paris"}', finish_reason="tool_calls")


def an_output(digest: bytes = b"prompt", *, seed: int = 0, choice: int = 0, limit: int = 5000, **wish: Any) -> Output:
    return write_output(digest, Wish(limit_tokens=limit, **wish), seed=seed, choice=choice)


def test_the_same_prompt_and_seed_give_the_same_answer():
    """An answer depends on prompt, seed and choice only; another one of these gives another answer."""
    assert an_output() == an_output()
    assert len({an_output(), an_output(b"other"), an_output(seed=1), an_output(choice=1)}) == 4


def test_an_answer_that_ends_by_itself_ends_with_a_token_without_text():
    """The end token counts and says nothing."""
    output = an_output()

    assert (output.finish_reason, output.tokens[-1]) == ("stop", END)
    assert all(token.text for token in output.tokens[:-1])


def test_the_limit_cuts_an_answer():
    """An answer that would be longer has exactly as many tokens as allowed, all with text."""
    output = an_output(limit=5)

    assert (output.finish_reason, len(output.tokens)) == ("length", 5)
    assert all(token.text for token in output.tokens)


def test_ignoring_the_end_goes_on_to_the_limit():
    """With the end ignored an answer has exactly the length asked for."""
    output = an_output(limit=3000, ignores_end=True)

    assert (output.finish_reason, len(output.tokens)) == ("length", 3000)


def test_the_end_does_not_come_before_the_least_length():
    """So many tokens have text before the end token may come."""
    assert len(an_output(least_tokens=1500).tokens) > 1500


def test_texts_of_any_cut_make_the_whole():
    """Pieces joined in any cut give the whole text, one word a token."""
    output = an_output(limit=9, ignores_end=True)

    assert output.text() == output.text(0, 4) + output.text(4, 9)
    assert len(output.text().split()) == 9


def test_a_fixed_text_is_said_and_nothing_else():
    """The only text allowed is the whole answer; a character of several bytes has as many tokens, and comes with the last."""
    output = an_output(fixed="é!")

    assert [token.text for token in output.tokens] == ["", "é", "!", ""]
    assert (output.text(), output.finish_reason) == ("é!", "stop")


@pytest.mark.parametrize("thoughts", [None, "First I weigh it."])
def test_reasoning_comes_first_and_apart(thoughts):
    """Reasoning lies between two tokens nobody sees, and is no part of the content."""
    output = an_output(thinks=True, thoughts=thoughts, fixed="So: yes.")
    spellings = [token.spelling for token in output.tokens]
    reasoning = output.text(part=Part.REASONING)

    assert spellings[0] == "<think>"
    assert reasoning
    assert thoughts in (None, reasoning)
    assert output.text() == "\n\nSo: yes."
    assert output.reasoning_tokens(len(output.tokens)) == spellings.index("</think>") - 1
    assert output.reasoning_tokens(1) == 0


def test_a_limit_may_cut_the_reasoning():
    """An answer may end before it has begun."""
    output = an_output(thinks=True, limit=2)

    assert (output.text(), output.finish_reason, output.reasoning_tokens(2)) == ("", "length", 1)


def test_a_call_tells_its_name_before_its_arguments():
    """The name is known with the third token, the arguments from the fifth on, and the content is empty."""
    output = an_output(tool=CALL)
    parts = [token.part for token in output.tokens]

    assert (parts.index(Part.TOOL_NAME), parts.index(Part.TOOL_ARGUMENTS)) == (2, 4)
    assert output.text(part=Part.TOOL_NAME) == "get_weather"
    assert output.text(part=Part.TOOL_ARGUMENTS) == '{"city": "Paris"}'
    assert (output.text(), output.finish_reason) == ("", "tool_calls")


def test_a_call_may_be_cut():
    """The limit holds for calls too."""
    output = an_output(tool=CALL, limit=6)

    assert (len(output.tokens), output.finish_reason) == (6, "length")


def test_a_stop_text_ends_the_answer():
    """What precedes the stop text is said, its tokens are counted, and it is the reason."""
    output = an_output(fixed="one two STOP three", stop=("STOP", "three"))

    assert (output.text(), output.finish_reason, output.stop_reason) == ("one two ", "stop", "STOP")
    assert output.tokens[-1].spelling == " STOP"


def test_a_stop_text_may_be_included():
    """With that wish the stop text is the end of what is said, and nothing is held back."""
    output = an_output(fixed="one two STOP three", stop=("STOP",), includes_stop=True)

    assert output.text() == "one two STOP"
    assert [token.text for token in output.tokens] == ["one", " two", " STOP"]


def test_a_stop_text_may_lie_across_tokens():
    """It need not begin or end with a token."""
    output = an_output(fixed="one two three", stop=("e tw",))

    assert (output.text(), output.stop_reason, len(output.tokens)) == ("on", "e tw", 2)


def test_text_is_held_back_where_a_stop_text_may_have_begun():
    """As many characters as could begin a stop text are told later, at the latest with the last token."""
    output = an_output(fixed="one two", stop=("unheard of",))

    assert [token.text for token in output.tokens] == ["", "", "one two"]
    assert (output.tokens[-1].spelling, output.finish_reason) == (END.spelling, "stop")


def test_what_nobody_sees_stays_unseen_behind_stop_texts():
    """Tokens without text pass between texts that are held back."""
    output = an_output(thinks=True, thoughts="hm", fixed="yes and", stop=("xx",))

    assert output.text() == "\n\nyes and"
    assert output.text(part=Part.REASONING) == "hm"


def test_a_stop_token_ends_the_answer():
    """The token is counted, is the reason, and is not seen."""
    whole = an_output(limit=9, ignores_end=True)
    third = whole.tokens[2]
    output = an_output(limit=9, ignores_end=True, stop_ids=frozenset({third.identifier}))
    place = [token.identifier for token in whole.tokens].index(third.identifier)

    assert (output.finish_reason, output.stop_reason) == ("stop", third.identifier)
    assert output.tokens == (*whole.tokens[:place], replace(third, text="", part=Part.CONTROL))


def test_the_end_token_is_no_stop_token():
    """An answer that ends by itself has no stop reason."""
    output = an_output(stop_ids=frozenset({END.identifier}))

    assert (output.finish_reason, output.stop_reason) == ("stop", None)
