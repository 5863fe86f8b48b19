"""What a simulated worker says: the same for the same prompt, seed and choice, known as a whole before the engine runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from simulator.vocabulary import (
    END,
    REASONING_WORDS,
    SPACED_WORDS,
    WORDS,
    Part,
    Token,
    control,
    tokens_of,
    without_space,
)

__all__ = ["WORDS", "Output", "ToolCall", "Wish", "write_output"]

_SHORTEST_TOKENS = 16
_MEAN_FURTHER_TOKENS = 160
_LONGEST_TOKENS = 1024
_MEAN_REASONING_TOKENS = 60
_LONGEST_REASONING_TOKENS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """The call of one function."""

    name: str
    arguments: str  # JSON
    finish_reason: str  # how an answer ends that is this call
    beside: str | None = None  # the content of a plain message with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request decides about its answer."""

    limit_tokens: int  # most tokens, at least 1
    least_tokens: int = 0  # the end token does not come before
    ignores_end: bool = False  # goes on to the limit
    thinks: bool = False
    tool: ToolCall | None = None
    fixed: str | None = None  # the only text that may be said
    thoughts: str | None = None  # what is thought, if it ``thinks``; None: some words
    stop: tuple[str, ...] = ()  # texts that end the answer
    includes_stop: bool = False
    stop_ids: frozenset[int] = frozenset()  # tokens that end the answer, and are not seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A whole answer."""

    tokens: tuple[Token, ...]
    finish_reason: str  # "length", "stop", "tool_calls"
    stop_reason: str | int | None = None  # which stop text or token it was

    def text(self, start: int = 0, end: int | None = None, part: Part = Part.CONTENT) -> str:
        """What the tokens from ``start`` up to, not including, ``end`` let the client see of one part."""
        return "".join(token.text for token in self.tokens[start:end] if token.part is part)

    def reasoning_tokens(self, end: int) -> int:
        """How many of the first ``end`` tokens are reasoning."""
        return sum(token.part is Part.REASONING for token in self.tokens[:end])


def write_output(digest: bytes, wish: Wish, *, seed: int = 0, choice: int = 0) -> Output:
    """The answer to the prompt of this digest."""
    dice = Random(f"{seed}:{digest.hex()}:{choice}" if choice else f"{seed}:{digest.hex()}")  # noqa: S311 -- made-up words
    tokens, ends = _natural(dice, wish)
    if ends and len(tokens) < wish.limit_tokens:
        output = Output(tokens=(*tokens, END), finish_reason=wish.tool.finish_reason if wish.tool else "stop")
    else:
        output = Output(tokens=tuple(tokens[: wish.limit_tokens]), finish_reason="length")
    if wish.stop_ids:
        output = _stopped_at_token(output, wish.stop_ids)
    return _stopped_at_text(output, wish) if wish.stop else output


def _natural(dice: Random, wish: Wish) -> tuple[list[Token], bool]:
    """What would be said without limit and stops, and whether it ends by itself within the limit."""
    if wish.tool is not None:
        return _call(wish.tool), True
    thoughts = _reason(dice, wish.thoughts) if wish.thinks else []
    if wish.fixed is not None:
        return [*thoughts, *tokens_of(wish.fixed)], True
    length = min(_LONGEST_TOKENS, _SHORTEST_TOKENS + int(dice.expovariate(1 / _MEAN_FURTHER_TOKENS)))
    length = max(length, wish.least_tokens + 1)
    ends = not wish.ignores_end and len(thoughts) + length <= wish.limit_tokens
    words = dice.choices(SPACED_WORDS, k=length - 1 if ends else max(1, wish.limit_tokens - len(thoughts)))
    if not thoughts:
        words[0] = without_space(words[0])
    return [*thoughts, *words], ends


def _reason(dice: Random, thoughts: str | None) -> list[Token]:
    if thoughts is None:
        length = min(_LONGEST_REASONING_TOKENS, 1 + int(dice.expovariate(1 / _MEAN_REASONING_TOKENS)))
        words = dice.choices(REASONING_WORDS, k=length)
        words[0] = without_space(words[0])
    else:
        words = list(tokens_of(thoughts, Part.REASONING))
    return [control("<think>"), *words, control("</think>"), *tokens_of("\n\n")]


def _call(tool: ToolCall) -> list[Token]:
    """A call in the form of the hermes parser: its name is known with the third token, its arguments from the fifth on."""
    opening = Token(ord("{"), '\n{"name": ', "", Part.CONTROL)
    name = Token(ord('"'), f'"{tool.name}", ', tool.name, Part.TOOL_NAME)
    before = Token(ord(":"), '"arguments": ', "", Part.CONTROL)
    arguments = tokens_of(tool.arguments, Part.TOOL_ARGUMENTS)
    closing = Token(ord("\n"), "\n", "", Part.CONTROL)
    return [control("<tool_call>"), opening, name, before, *arguments, closing, control("</tool_call>")]


def _stopped_at_token(output: Output, stop_ids: frozenset[int]) -> Output:
    for position, token in enumerate(output.tokens):
        if token.identifier in stop_ids and token is not END:
            last = Token(token.identifier, token.spelling, "", Part.CONTROL)
            kept = (*output.tokens[:position], last)
            return Output(tokens=kept, finish_reason="stop", stop_reason=token.identifier)
    return output


def _stopped_at_text(output: Output, wish: Wish) -> Output:
    """The output as it is with stop texts: cut at the first, and seen only as far as no stop text may have begun."""
    held_back = 0 if wish.includes_stop else max(map(len, wish.stop)) - 1
    visible: list[Token] = []
    text, seen = "", 0  # what was said, and how much of it has been shown
    for token in output.tokens:
        own = token.text if token.part is Part.CONTENT else ""
        text += own
        found = _first_stop(text, wish.stop, len(text) - len(own))
        if found is not None:
            start, stop = found
            shown = text[seen : start + (len(stop) if wish.includes_stop else 0)]
            return Output(tokens=(*visible, replace(token, text=shown)), finish_reason="stop", stop_reason=stop)
        end = len(text) if token is output.tokens[-1] else max(seen, len(text) - held_back)
        if end > seen or token.part is Part.CONTENT:
            visible.append(replace(token, text=text[seen:end], part=Part.CONTENT))
            seen = end
        else:
            visible.append(token)
    return replace(output, tokens=tuple(visible))


def _first_stop(text: str, stops: Sequence[str], known: int) -> tuple[int, str] | None:
    """Where the first stop text begins, and which it is; the first ``known`` characters alone have none."""
    found = [(place, stop) for stop in stops if (place := text.find(stop, max(0, known - len(stop) + 1))) >= 0]
    return min(found) if found else None
