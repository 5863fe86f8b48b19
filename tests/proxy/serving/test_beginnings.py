"""What is told of how requests begin: a family each, a sketch once, and never too many sketches at a time."""

from __future__ import annotations

import json

from proxy.serving.beginnings import MOST_KNOWN, SKETCHES_PER_SECOND, Beginnings
from routing.sketch import Beginning


def find(beginnings: Beginnings, text: str, now: float = 0.0, *, is_salted: bool = False) -> Beginning | None:
    raw = json.dumps([{"role": "system", "content": text}]).encode()
    return beginnings.find(raw, b"", now, is_salted=is_salted)


def a_text(number: int) -> str:
    return f"Prompt {number}. " * 40


def test_a_family_is_sketched_once():
    """The same text has the same family, and its sketch only the first time."""
    beginnings = Beginnings()
    first, second = find(beginnings, a_text(1)), find(beginnings, a_text(1), is_salted=True)

    assert first is not None
    assert second is not None
    assert first.sketch is not None
    assert second.sketch is None
    assert (first.family, first.length_bytes) == (second.family, second.length_bytes) == (first.family, len(a_text(1)))
    assert (first.is_salted, second.is_salted) == (False, True)


def test_new_texts_in_a_hurry_are_sketched_in_turn():
    """Of a thousand at once ten are; the others when they come again, so many a second."""
    beginnings = Beginnings()
    made = [find(beginnings, a_text(number), 100.0) for number in range(1000)]
    assert sum(one is not None and one.sketch is not None for one in made) == 10

    later = [find(beginnings, a_text(number), 101.0) for number in range(500, 1000)]
    assert sum(one is not None and one.sketch is not None for one in later) == SKETCHES_PER_SECOND


def test_what_is_known_is_bounded():
    """The text that came last longest ago is sketched again when it comes back."""
    beginnings = Beginnings()
    for number in range(MOST_KNOWN + 1):
        find(beginnings, a_text(number), float(number))

    forgotten, kept = find(beginnings, a_text(0), 1e6), find(beginnings, a_text(MOST_KNOWN), 1e6)
    assert forgotten is not None
    assert forgotten.sketch is not None
    assert kept is not None
    assert kept.sketch is None


def test_short_prompts_are_left_alone():
    """And so is what has no system prompt."""
    assert find(Beginnings(), "Be kind.") is None
    assert Beginnings().find(b"[1,2]", b"", 0.0, is_salted=False) is None
