"""What a simulated worker says: words of a fixed list, one a token, the same for the same prompt and seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

WORDS = (
    *("water", "stone", "river", "light", "morning", "engine", "memory", "signal", "copper", "harbour", "window"),
    *("garden", "winter", "letter", "number", "village", "mountain", "paper", "silver", "answer", "question", "bridge"),
    *("market", "summer", "yellow", "quiet", "narrow", "early", "simple", "gentle", "northern", "open", "carries"),
    *("follows", "holds", "turns", "reads", "opens", "crosses", "measures", "returns", "begins", "and", "or", "but"),
    *("near", "above", "below", "between", "after"),
)

_SHORTEST_TOKENS = 16
_MEAN_FURTHER_TOKENS = 160
_LONGEST_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A whole answer, known before the engine runs it."""

    pieces: tuple[str, ...]  # the text of each token; an end token has none
    finish_reason: str  # "length", or "stop" when the last token is the end token

    def text(self, start: int, end: int) -> str:
        """What the tokens from ``start`` up to, not including, ``end`` say."""
        return "".join(self.pieces[start:end])


def write_output(digest: bytes, *, seed: int, limit: int, ignores_end: bool) -> Output:
    """The answer to the prompt of this digest, of at most ``limit`` tokens.

    It ends by itself after a length that the prompt and the seed decide, unless ``ignores_end``.
    """
    random = Random(f"{seed}:{digest.hex()}")  # noqa: S311 -- made-up words, not secrets
    natural = min(_LONGEST_TOKENS, _SHORTEST_TOKENS + int(random.expovariate(1 / _MEAN_FURTHER_TOKENS)))
    ends = not ignores_end and natural <= limit
    words = random.choices(WORDS, k=natural - 1 if ends else limit)
    pieces = [word if position == 0 else " " + word for position, word in enumerate(words)]
    return Output(pieces=(*pieces, "") if ends else tuple(pieces), finish_reason="stop" if ends else "length")
