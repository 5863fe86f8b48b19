"""How many tokens answers have, for each key of a model: a quantile that moves with them and takes bounded memory."""

from __future__ import annotations

from math import ceil, log

_RATIO = 1.1  # between neighbouring buckets: what is given back is above the quantile by less than this
_LOG_RATIO = log(_RATIO)
_BUCKETS = 160  # up to 4 million tokens
_FEWEST = 100  # answers before a quantile is given
_HALVED_AT = 4000.0  # answers; then older ones count half
_MOST_KEYS = 1000
ALL_KEYS = ""


class Outputs:
    """Of one model."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[str, list[float]] = {ALL_KEYS: [0.0] * _BUCKETS}

    def __repr__(self) -> str:
        return f"<Outputs {sum(self._by_key[ALL_KEYS]):.0f} answers of {len(self._by_key) - 1} keys>"

    def add(self, key: str, tokens: int) -> None:
        """An answer of so many tokens, to a request by this key (``""``: without one)."""
        bucket = min(_BUCKETS - 1, ceil(log(tokens) / _LOG_RATIO)) if tokens > 1 else 0
        for name in (ALL_KEYS,) if key == ALL_KEYS else (ALL_KEYS, key):
            counts = self._by_key.get(name)
            if counts is None:
                if len(self._by_key) > _MOST_KEYS:
                    continue
                counts = self._by_key[name] = [0.0] * _BUCKETS
            counts[bucket] += 1.0
            if sum(counts) >= _HALVED_AT:
                counts[:] = [count / 2 for count in counts]

    def budgets(self, quantile: float) -> dict[str, int]:
        """Tokens that this share of answers stays within, by key, where enough is known; ``""`` is of all of them."""
        found = {}
        for key, counts in self._by_key.items():
            total = sum(counts)
            if total < _FEWEST:
                continue
            below = 0.0
            for bucket, count in enumerate(counts):
                below += count
                if below >= quantile * total:
                    found[key] = ceil(_RATIO**bucket)
                    break
        return found
