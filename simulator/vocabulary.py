"""The tokens of a simulated model.

A prompt has a token for four bytes of its UTF-8 begun, whose id is those bytes as a number, so that ids turn back into the
text. What the model says are words of a fixed list, one a token, with ids that no valid text has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from simulator.engine.prefix import BYTES_PER_TOKEN

WORDS = (
    *("water", "stone", "river", "light", "morning", "engine", "memory", "signal", "copper", "harbour", "window"),
    *("garden", "winter", "letter", "number", "village", "mountain", "paper", "silver", "answer", "question", "bridge"),
    *("market", "summer", "yellow", "quiet", "narrow", "early", "simple", "gentle", "northern", "open", "carries"),
    *("follows", "holds", "turns", "reads", "opens", "crosses", "measures", "returns", "begins", "and", "or", "but"),
    *("near", "above", "below", "between", "after"),
)
_FIRST_WORD_ID = 0x0380  # little-endian 80 03, 81 03, …: no text in UTF-8; so is what follows
_WITHOUT_SPACE = 64  # further on, the same words as the first of a text
_FIRST_CONTROL_ID = 0x03F8


class Part(Enum):
    """Where in an answer a token's text goes."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_NAME = "tool name"
    TOOL_ARGUMENTS = "tool arguments"
    CONTROL = "control"  # nowhere


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token."""

    identifier: int
    spelling: str  # what the vocabulary calls it
    text: str  # what the client sees once it is there; may be empty, or more than the token's own
    part: Part = Part.CONTENT


END = Token(_FIRST_CONTROL_ID, "<|im_end|>", "", Part.CONTROL)
_CONTROLS = {
    name: Token(_FIRST_CONTROL_ID + 1 + number, name, "", Part.CONTROL)
    for number, name in enumerate(("<think>", "</think>", "<tool_call>", "</tool_call>"))
}
_SPACED = tuple(Token(_FIRST_WORD_ID + number, f" {word}", f" {word}") for number, word in enumerate(WORDS))
_UNSPACED = tuple(Token(_FIRST_WORD_ID + _WITHOUT_SPACE + number, word, word) for number, word in enumerate(WORDS))
SPACED_WORDS: Sequence[Token] = _SPACED
REASONING_WORDS: Sequence[Token] = tuple(Token(t.identifier, t.spelling, t.text, Part.REASONING) for t in _SPACED)
_BY_ID = {token.identifier: token.spelling for token in (*_SPACED, *_UNSPACED, *_CONTROLS.values(), END)}


def control(spelling: str) -> Token:
    """A token that steers a parser and that no client sees."""
    return _CONTROLS[spelling]


def without_space(token: Token) -> Token:
    """The same word as the first of a text."""
    other = _UNSPACED[token.identifier - _FIRST_WORD_ID]
    return Token(other.identifier, other.spelling, other.text, token.part)


def tokens_of(text: str, part: Part = Part.CONTENT) -> Iterator[Token]:
    """A given text as tokens: words with the space before them, single signs, and the bytes of what is not ASCII.

    A character of several tokens is seen with the last of them.
    """
    for piece in re.findall(r" ?[A-Za-z0-9_]+|\n+|.", text, re.DOTALL):
        if piece.isascii():
            yield Token(_number(piece.encode()[:BYTES_PER_TOKEN]), piece, piece, part)
        else:
            *first, last = piece.encode()
            for byte in first:
                yield Token(byte, f"<0x{byte:02X}>", "", part)
            yield Token(last, f"<0x{last:02X}>", piece, part)


def ids_of_text(text: str) -> list[int]:
    """The ids of a prompt's tokens."""
    raw = text.encode() or b"\0"
    return [_number(raw[start : start + BYTES_PER_TOKEN]) for start in range(0, len(raw), BYTES_PER_TOKEN)]


def tokens_of_ids(ids: Sequence[int]) -> list[Token]:
    """A prompt's tokens by id; a character that is cut by a token's end is not to be read there."""
    return [Token(number, piece, piece) for number in ids for piece in (text_of_ids([number]),)]


def text_of_ids(ids: Sequence[int]) -> str:
    """What the ids say, those of prompts and those of words. ``ValueError`` for an id outside the vocabulary."""
    pieces = [_BY_ID[number].encode() if number in _BY_ID else _bytes(number) for number in ids]
    return b"".join(pieces).decode(errors="replace")


def is_known(identifier: int) -> bool:
    """Whether the vocabulary has this id."""
    return 0 <= identifier < 1 << (8 * BYTES_PER_TOKEN)


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


def _bytes(identifier: int) -> bytes:
    if not is_known(identifier):
        raise ValueError(f"Token id {identifier} is out of vocabulary")
    return identifier.to_bytes(BYTES_PER_TOKEN, "little").rstrip(b"\0")
