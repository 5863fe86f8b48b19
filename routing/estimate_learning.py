"""Learning a model's coefficients from the usage that its workers return: one recursive least squares per model.

It starts from the priors of `routing.estimate` and is sure of what it has seen: a class of characters that no prompt had yet
keeps its prior. Errors count in relation to the prompt's length. A wild answer moves nothing much; nothing leaves its bounds;
and what was learned is forgotten slowly, so that another model behind the same name is learned too.
"""

from __future__ import annotations

from math import log, sqrt

from routing.estimate import PRIORS, SLACK_TOKENS, UNLEARNED, Coefficients, Prompt
from routing.estimate_text import FEATURES, Mix

_NOISE = 0.08**2  # variance of the ratio true / likely that no coefficient explains
_WILD = 3.0  # an error of more spreads than this has the weight of one that is just so large
_DRIFT = 0.01**2  # of its prior variance, what every coefficient may have moved between two answers
_PRIOR_ANSWERS = 2.0  # the priors of the spreads weigh as much
_KEPT_VARIANCE = 0.1  # how unsure what was learned before is, as a share of the priors
_MOST_ANSWERS = 30.0  # older answers count less and less
_LARGEST_ERROR = 1.0
_FIRST_OTHER = FEATURES.index("two_bytes")
_STEP = 0.05  # how much the latest answer moves the tokens per byte
_MOST_PER_BYTE = 1.0


class Learner:
    """Of one model."""

    __slots__ = ("_answers", "_covariance", "_per_byte", "_squares", "_weights", "_widths")

    def __init__(self, start: Coefficients | None = None) -> None:
        """Begin with the priors, or with what has been learned before."""
        known = UNLEARNED if start is None else start
        trust = 1.0 if start is None else _KEPT_VARIANCE
        self._weights = list(known.weights)
        self._covariance = [
            [trust * PRIORS[name][1] ** 2 if row == column else 0.0 for column in range(len(FEATURES))]
            for row, name in enumerate(FEATURES)
        ]
        self._widths = dict.fromkeys(Mix, _PRIOR_ANSWERS)
        self._squares = {mix: known.spreads[mix] ** 2 * _PRIOR_ANSWERS for mix in Mix}
        self._per_byte = list(known.per_byte)
        self._answers = known.answers

    def __repr__(self) -> str:
        return f"<Learner {self._answers} answers>"

    @property
    def coefficients(self) -> Coefficients:
        """What is known now."""
        spreads = tuple(sqrt(self._squares[mix] / self._widths[mix]) for mix in Mix)
        return Coefficients(tuple(self._weights), spreads, self._answers, (self._per_byte[0], self._per_byte[1]))

    def learn(self, prompt: Prompt, likely: int, true: int) -> None:
        """An answer says that a prompt estimated at ``likely`` tokens had ``true`` ones."""
        if true < 1 or not prompt.has_text or prompt.images or prompt.audios or prompt.prompts > 1 or prompt.token_ids:
            return  # their usage is not of the text alone
        if prompt.text_bytes:
            index = 1 if any(prompt.counts[_FIRST_OTHER:]) else 0
            ratio = min(true / prompt.text_bytes, _MOST_PER_BYTE)
            self._per_byte[index] += _STEP * (ratio - self._per_byte[index])
        if prompt.is_fine:  # intervals matter only there
            error = log((true + SLACK_TOKENS) / (max(likely, 0) + SLACK_TOKENS))
            self._learn_spread(prompt.mix, max(-_LARGEST_ERROR, min(_LARGEST_ERROR, error)))
        self._learn_weights(prompt, true)
        self._answers += 1

    def _learn_spread(self, mix: Mix, error: float) -> None:
        kept = min(1.0, _MOST_ANSWERS / (self._widths[mix] + 1.0))
        self._widths[mix] = self._widths[mix] * kept + 1.0
        self._squares[mix] = self._squares[mix] * kept + error * error

    def _learn_weights(self, prompt: Prompt, true: int) -> None:
        scale = 1.0 / (true + SLACK_TOKENS)
        inputs = [(index, count * scale) for index, count in enumerate(prompt.counts) if count]
        weights, covariance = self._weights, self._covariance
        gains = [sum([row[index] * value for index, value in inputs]) for row in covariance]
        explained = sum([gains[index] * value for index, value in inputs])
        error = true * scale - sum([weights[index] * value for index, value in inputs])
        noise = _NOISE
        limit = _WILD * sqrt(explained + noise)
        if abs(error) > limit:
            noise = (explained + noise) * abs(error) / limit - explained
        total = explained + noise
        step = error / total
        for row, name in enumerate(FEATURES):
            _, unsure, least, most = PRIORS[name]
            gain = gains[row]
            weights[row] = min(max(weights[row] + gain * step, least), most)
            line = covariance[row]
            share = gain / total
            if share:
                covariance[row] = line = [value - share * other for value, other in zip(line, gains, strict=True)]
            line[row] = min(max(line[row], 0.0) + _DRIFT * unsure**2, unsure**2)
