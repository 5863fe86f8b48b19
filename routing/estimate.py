"""How many tokens a prompt will have, before anybody counted: a likely number, and the interval that should hold the true one.

Linear in counts of character classes (`routing.estimate_text`), with coefficients per model. They begin as what today's
vocabularies have in common, and are learned from the usage that workers return (`routing.estimate_learning`).
"""

from __future__ import annotations

from math import exp
from operator import mul

import msgspec

from routing.estimate_text import FEATURES, Counts, Mix

SPREADS = 2.6
"""Half the width of an interval, in spreads of the errors seen; they have longer tails than a normal distribution."""
SLACK_TOKENS = 30
"""An error of so many tokens is none: it keeps short prompts, where a template is most of all, from counting too much."""
_LEAST_LOG, _MOST_LOG = 0.03, 1.5


class TokenEstimate(msgspec.Struct, frozen=True, gc=False):
    """Prompt tokens: the likely number, and the least and most it can reasonably be."""

    tokens: int
    least: int
    most: int


class Coefficients(msgspec.Struct, frozen=True, gc=False):
    """What one model's tokens are made of. ``weights`` are tokens per count, ``spreads`` of the logarithm of true / likely."""

    weights: Counts
    spreads: tuple[float, ...]  # by `Mix`
    answers: int = 0  # learned from so many
    per_byte: tuple[float, float] = (0.23, 0.3)  # tokens per byte of raw JSON: of texts in ASCII, and of others


class Prompt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What is read of one prompt; of a batch, of its longest."""

    counts: Counts
    mix: Mix = Mix.SHORT
    has_text: bool = True
    token_ids: int = 0  # given as such, so exact
    images: int = 0
    audios: int = 0
    prompts: int = 1  # of a batch
    batch_ratio: float = 1.0  # all prompts of a batch / the longest, by their bytes or ids
    is_fine: bool = True  # the whole text or a large sample was counted
    text_bytes: int = 0  # of the raw JSON; 0: not what it is estimated by


PRIORS: dict[str, tuple[float, float, float, float]] = {
    # likely, how unsure of it (a standard deviation), least, most
    "request": (6.0, 15.0, 0.0, 600.0),
    "messages": (3.0, 3.0, -3.0, 40.0),
    "tools": (40.0, 60.0, 0.0, 800.0),
    "parts": (0.0, 1.0, -5.0, 10.0),
    "lower": (0.15, 0.04, 0.03, 0.6),
    "upper": (0.5, 0.3, 0.0, 2.0),
    "capitals_inside": (1.4, 0.5, -0.5, 3.0),
    "digits": (0.8, 0.3, 0.2, 2.0),
    "spaces": (0.3, 0.15, -0.2, 1.0),
    "double_spaces": (-0.5, 0.2, -1.5, 0.3),
    "lines": (0.9, 0.2, 0.0, 1.5),
    "punctuation": (0.85, 0.15, 0.2, 1.5),
    "double_punctuation": (-1.2, 0.3, -2.0, 0.3),
    "two_bytes": (0.5, 0.25, 0.1, 2.2),
    "kana": (0.65, 0.15, 0.2, 1.6),
    "ideographs": (0.75, 0.2, 0.3, 2.5),
    "hangul": (0.8, 0.25, 0.3, 2.6),
    "three_bytes": (1.0, 0.35, 0.2, 3.0),
    "four_bytes": (1.9, 0.5, 0.5, 5.0),
}
PRIOR_SPREADS = {Mix.PROSE: 0.12, Mix.MARKED: 0.15, Mix.UNBROKEN: 0.25, Mix.CJK: 0.18, Mix.SYMBOLS: 0.25, Mix.SHORT: 0.2}
UNLEARNED = Coefficients(tuple(PRIORS[name][0] for name in FEATURES), tuple(PRIOR_SPREADS[mix] for mix in Mix))


def estimate_by_size(text_bytes: int, coefficients: Coefficients, *, is_ascii: bool) -> TokenEstimate:
    """A rough estimate for where no choice depends on it, at a fraction of the cost."""
    return TokenEstimate(int(text_bytes * coefficients.per_byte[not is_ascii]) + 1, 0, text_bytes + SLACK_TOKENS)


def estimate(prompt: Prompt, coefficients: Coefficients, image_tokens: int = 0, audio_tokens: int = 0) -> TokenEstimate:
    """The estimate of one prompt, with this allowance for each image and audio: what they really take depends on their size."""
    ids = prompt.token_ids
    if not prompt.has_text:
        return TokenEstimate(ids, ids, ids)
    likely = max(1.0, sum(map(mul, prompt.counts, coefficients.weights)))
    reach = min(max(SPREADS * coefficients.spreads[prompt.mix], _LEAST_LOG), _MOST_LOG)
    factor = exp(reach)
    beyond = likely + SLACK_TOKENS
    least = max(0.0, beyond / factor - SLACK_TOKENS)
    most = beyond * factor - SLACK_TOKENS
    allowance = prompt.images * image_tokens + prompt.audios * audio_tokens
    if allowance:
        return TokenEstimate(ids + int(likely) + allowance, ids + int(least), ids + int(most) + 1 + 2 * allowance)
    return TokenEstimate(ids + int(likely), ids + int(least), ids + int(most) + 1)
