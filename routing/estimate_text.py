"""What an estimate is made from: how often each class of characters comes in a prompt, and what else adds tokens to it.

Only C-speed passes over the bytes: a table that turns each byte into its class, and counts of classes. Of a long text a
sample is counted, slices at even distances, and scaled up. JSON escapes are undone first, so that a client that sends
``\\u4e2d`` and one that sends the character are the same.
"""

from __future__ import annotations

import re
from enum import IntEnum
from json import JSONDecoder
from zlib import compress

import msgspec

FEATURES = (
    "request",  # 1: what a template adds to any request
    "messages",
    "tools",  # 1 if there are any: their preamble
    "parts",  # texts that are parts of a message
    "lower",  # a-z, most of them in words
    "upper",
    "capitals_inside",  # upper behind lower: names in code, and encoded data
    "digits",
    "spaces",
    "double_spaces",  # indentation; a run of them is one token
    "lines",  # newlines and tabs
    "punctuation",
    "double_punctuation",  # one token more often than two
    "two_bytes",  # characters of two bytes: accented Latin, Cyrillic, Greek, Hebrew, Arabic
    "kana",
    "ideographs",
    "hangul",
    "three_bytes",  # any other: Indic scripts, Thai, typographic punctuation, symbols
    "four_bytes",  # emoji and rare ideographs
)
Counts = tuple[float, ...]
"""A figure for each of `FEATURES`."""

NOTHING: Counts = (0.0,) * len(FEATURES)


class Mix(IntEnum):
    """What a text is mostly made of; estimates of different mixes go wrong by different amounts."""

    PROSE = 0
    MARKED = 1  # a fifth and more punctuation and digits: code, JSON, tables
    UNBROKEN = 2  # hardly a blank: base64, hex, minified code
    CJK = 3
    SYMBOLS = 4  # other scripts than Latin and CJK, emoji
    SHORT = 5  # too short for shares to mean anything


class Sampling(msgspec.Struct, frozen=True, gc=False):
    """How much of a text is counted. A text of up to ``slices * slice_bytes`` is counted whole."""

    slices: int
    slice_bytes: int


FINE = Sampling(48, 96)
COARSE = Sampling(4, 128)
"""Enough where nothing but a load figure hangs on it."""

LONGEST_TOKEN_BYTES = 128
"""Of the tokens that vocabularies have for runs of blanks and the like."""

_SHORT_BYTES = 200
_LOOKED_AT_BYTES = 16 * 1024
_LEAST_SQUEEZED = 40  # times


def _class_of(byte: int) -> str:
    character = chr(byte)
    for found, holds in (
        ("l", "a" <= character <= "z"),
        ("U", "A" <= character <= "Z"),
        ("d", "0" <= character <= "9"),
        ("s", character == " "),
        ("n", character in "\n\t\r"),
        ("p", byte < 0x80),
        ("x", byte < 0xC0),  # inside of a character
        ("2", byte < 0xE0),
        ("k", byte == 0xE3),
        ("c", 0xE4 <= byte <= 0xE9),
        ("h", 0xEA <= byte <= 0xED),
        ("3", byte < 0xF0),
    ):
        if holds:
            return found
    return "4"


_CLASSES = "".join(map(_class_of, range(256))).encode()
_read_text = JSONDecoder(strict=False).decode  # unlike others it takes halves of surrogate pairs
_NO_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')


def count_raw(raw: bytes, sampling: Sampling, messages: int = 0, tools: int = 0, parts: int = 0) -> tuple[Counts, Mix]:
    """Counts of what stands in JSON strings that are joined to ``raw``, scaled up to all of it."""
    size = len(raw)
    slices, width = sampling.slices, sampling.slice_bytes
    if size <= slices * width:
        return count(unescape(raw) if b"\\" in raw else raw, 1.0, messages, tools, parts)
    step = size // slices
    sample = b" ".join([raw[start : start + width] for start in range(0, step * slices, step)])
    scale = size / len(sample)
    return count(unescape(sample) if b"\\" in sample else sample, scale, messages, tools, parts)


def count_text(text: str, sampling: Sampling, messages: int = 0) -> tuple[Counts, Mix]:
    """The same of a text that has been read."""
    size = len(text)
    slices, width = sampling.slices, sampling.slice_bytes
    if size <= slices * width:
        return count(text.encode("utf-8", "surrogatepass"), 1.0, messages)
    step = size // slices
    sample = " ".join([text[start : start + width] for start in range(0, step * slices, step)])
    return count(sample.encode("utf-8", "surrogatepass"), size / len(sample), messages)


def count(sample: bytes, scale: float, messages: int = 0, tools: int = 0, parts: int = 0) -> tuple[Counts, Mix]:
    """Counts of the classes in UTF-8, times ``scale``, and of what else adds tokens, as given."""
    classes = sample.translate(_CLASSES)
    each = classes.count
    length = len(classes)
    upper, digits, spaces, lines, marks = each(b"U"), each(b"d"), each(b"s"), each(b"n"), each(b"p")
    ascii_only = sample.isascii()
    if ascii_only:
        two = kana = ideographs = hangul = three = four = 0
        lower = length - upper - digits - spaces - lines - marks
    else:
        two, kana, ideographs, hangul = each(b"2"), each(b"k"), each(b"c"), each(b"h")
        three, four, lower = each(b"3"), each(b"4"), each(b"l")
    if length < _SHORT_BYTES:
        mix = Mix.SHORT
    elif not ascii_only and (kana + ideographs + hangul) * 15 > length:
        mix = Mix.CJK
    elif not ascii_only and (two * 2 + three * 3 + four * 4) * 10 > length:
        mix = Mix.SYMBOLS
    elif (spaces + lines) * 20 < length:
        mix = Mix.UNBROKEN
    elif (marks + digits) * 5 > length:
        mix = Mix.MARKED
    else:
        mix = Mix.PROSE
    return (
        1.0,
        messages,
        tools,
        parts,
        lower * scale,
        upper * scale,
        each(b"lU") * scale if upper else 0.0,
        digits * scale,
        spaces * scale,
        each(b"ss") * scale,
        lines * scale,
        marks * scale,
        each(b"pp") * scale,
        two * scale,
        kana * scale,
        ideographs * scale,
        hangul * scale,
        three * scale,
        four * scale,
    ), mix


def is_monotonous(raw: bytes) -> bool:
    """Whether a long text repeats itself all along, as no prose or code does. Takes a tenth of a millisecond."""
    middle = len(raw) // 2
    sample = raw[middle : middle + _LOOKED_AT_BYTES]
    return len(compress(sample, 1)) * _LEAST_SQUEEZED < len(sample)


def unescape(raw: bytes) -> bytes:
    """The characters that JSON's escapes stand for, in UTF-8; a quote becomes an apostrophe, what is no escape is left out."""
    text = raw.replace(b"\\\\", b"/").replace(b'\\"', b"'").replace(b'"', b"'")
    found: str = _read_text(f'"{_NO_ESCAPE.sub(b"", text).decode("utf-8", "ignore")}"')
    return found.encode("utf-8", "surrogatepass")
