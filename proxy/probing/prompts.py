"""Prompts of about so many tokens for a tokenizer that nobody knows: common words, and what they turned out to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_TEXT = """
the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not what all
were we when your can said there use an each which she do how their if will up other about out many then them these so some
her would make like him into time has look two more write go see number no way could people my than first water been call who
oil its now find long down day did get come made may part
"""
_WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMaker:
    """Makes texts. ``tokens`` of one with n words are about ``overhead_tokens + tokens_per_word * n``."""

    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0  # a template, and the salt

    def text(self, tokens: int, salt: str) -> str:
        """About so many tokens. Texts of different ``salt`` differ from the first token on: no cache has one for another."""
        words = max(1, round((tokens - self.overhead_tokens) / self.tokens_per_word))
        return words_text(words, salt)


def words_text(count: int, salt: str) -> str:
    """So many words behind the salt."""
    start = sum(salt.encode())
    size = len(_WORDS)
    return " ".join([salt, *(_WORDS[(start + place) % size] for place in range(count))])


def learned(measured: Sequence[tuple[int, int]]) -> PromptMaker:
    """From texts with known words and the prompt tokens that the endpoint counted; a token a word without two of them."""
    known = sorted(set(measured))
    if len(known) < 2 or known[-1][0] == known[0][0]:
        return PromptMaker()
    (few_words, few_tokens), (many_words, many_tokens) = known[0], known[-1]
    each = (many_tokens - few_tokens) / (many_words - few_words)
    if each <= 0.0:
        return PromptMaker()
    return PromptMaker(tokens_per_word=each, overhead_tokens=few_tokens - each * few_words)
