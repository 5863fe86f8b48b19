"""What is counted of a text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.estimate_text import COARSE, FEATURES, FINE, Mix, count_raw, count_text, unescape


def figures(counts) -> dict[str, float]:
    """Those that are not 0, by name, without the one of every request."""
    return {name: count for name, count in zip(FEATURES, counts, strict=True) if count and name != "request"}


def test_each_character_has_its_class():
    """Letters, digits, blanks, marks, and scripts by the first byte of their characters."""
    counts, _ = count_text("aB 1  \n{é中かハ한ไ😀", FINE)

    assert figures(counts) == {
        "lower": 1,
        "upper": 1,
        "capitals_inside": 1,
        "digits": 1,
        "spaces": 3,
        "double_spaces": 1,
        "lines": 1,
        "punctuation": 1,
        "two_bytes": 1,
        "kana": 2,
        "ideographs": 1,
        "hangul": 1,
        "three_bytes": 1,
        "four_bytes": 1,
    }


@pytest.mark.parametrize("text", ['中文测试 mixed\n"quoted" \\ back\tslash', "😀 pairs 😀", "é", "plain"])
def test_escapes_count_as_what_they_stand_for(text):
    """A client that escapes is estimated like one that does not."""
    escaped, raw = (json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode() for ascii_only in (True, False))

    assert count_raw(escaped, FINE) == count_raw(raw, FINE) == count_text(text.replace("\\", "/").replace('"', "'"), FINE)


@pytest.mark.parametrize(
    "broken", [rb"\ud83d", rb"\ude00 text", rb"cut \u4e", rb"cut \u", b"cut \\", rb"no \x escape \'", b"\xff\xfe\\n"]
)
def test_what_is_no_escape_does_no_harm(broken):
    """Samples begin and end anywhere."""
    assert isinstance(unescape(broken), bytes)


@given(st.binary(max_size=300))
def test_any_bytes_can_be_counted(data):
    """Nothing that a body may hold is an error."""
    assert all(count >= 0 for count in count_raw(data, FINE)[0])


@given(st.text(max_size=300))
def test_any_text_can_be_counted(text):
    """The same for what was read, surrogates among it."""
    assert all(count >= 0 for count in count_text(text, FINE)[0])


@pytest.mark.parametrize("sampling", [FINE, COARSE])
def test_a_sample_stands_for_the_whole(sampling):
    """Of a long regular text, a sample tells the counts to within a few percent."""
    text = "The quick brown Fox jumps over 13 lazy dogs, said Foo.\n" * 4000
    sampled = figures(count_text(text, sampling)[0])

    for name, true in (("lower", 38), ("upper", 3), ("digits", 2), ("spaces", 10), ("lines", 1), ("punctuation", 2)):
        assert sampled[name] == pytest.approx(true * 4000, rel=0.35 if sampling is COARSE else 0.12), name
    assert figures(count_raw(json.dumps(text).encode(), sampling)[0]).keys() >= sampled.keys()


@pytest.mark.parametrize(
    ("text", "mix"),
    [
        ("The quick brown fox jumps over the lazy dogs and goes home. " * 5, Mix.PROSE),
        ('{"a": [1, 2, 3], "b": {"c": null}, "d": 4.25}, ' * 8, Mix.MARKED),
        ("eJwBlgBp/7kMMF2gSAN36X6N7jLuhlGrT2Lob6hIYabEcWxVUEzkMw5S4tC7l4bN" * 5, Mix.UNBROKEN),
        ("中文测试一二三四" * 20, Mix.CJK),
        ("Привет, как дела сегодня? " * 20, Mix.SYMBOLS),
        ("😀🚀" * 60, Mix.SYMBOLS),
        ("hello", Mix.SHORT),
        ("", Mix.SHORT),
    ],
)
def test_mixes_are_told_apart(text, mix):
    """By the shares of a few classes."""
    assert count_text(text, FINE)[1] is mix
