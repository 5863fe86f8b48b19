"""Which workers have more than their share when everybody's requests count, also those that came by other gateways.

What others have at a worker is known from its own gauges, seconds late. Whoever chose the emptiest worker by figures that old
would choose it with all the other gateways at once; so they only say who gets nothing more for now, and among the rest this
gateway's own requests decide. Evidence: docs/replicas.md.
"""

from __future__ import annotations

from collections.abc import Sequence

CROWDED_FACTOR = 1.25
"""A worker has more than its share above so many times the mean of its pool ..."""
CROWDED_REQUESTS = 2.0
"""... and so many usual requests: with a few in flight one alone would be over the factor."""
LEAST_OTHERS_RATIO = 0.1
"""Of what the pool has in flight, this much has to be others'. What a request has just begun or ended looks like less."""


def others_of(running: float | None, waiting: float | None, own: float) -> float | None:
    """Requests of others at a worker, at least 0, by its gauges and what was in flight from here; None: it does not say."""
    return None if running is None else max(0.0, running + (waiting or 0.0) - own)


def crowding(own_tokens: Sequence[float], others: Sequence[float | None], request_tokens: float) -> list[float]:
    """By how many tokens each worker of a pool is above its share; 0 for one that is not, or of which too little is known.

    ``own_tokens`` are in flight from here, ``others`` the requests of others, each of which is taken to be a usual one of
    ``request_tokens``.
    """
    foreign = [None if requests is None else requests * request_tokens for requests in others]
    totals = [own + tokens for own, tokens in zip(own_tokens, foreign, strict=True) if tokens is not None]
    total = sum(totals)
    if sum(tokens for tokens in foreign if tokens is not None) <= LEAST_OTHERS_RATIO * total:
        return [0.0] * len(foreign)
    share = CROWDED_FACTOR * total / len(totals) + CROWDED_REQUESTS * request_tokens
    return [0.0 if tokens is None else max(0.0, own + tokens - share) for own, tokens in zip(own_tokens, foreign, strict=True)]
