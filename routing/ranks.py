"""Which data-parallel rank of a worker: each has queues and a prefix cache of its own, and takes requests that name it."""

from __future__ import annotations

from collections.abc import Sequence

from routing.demand import Demand
from routing.policies import load_bound


def choose_rank(load_tokens: Sequence[float], demand: Demand) -> int:
    """The rank that the request's session or beginning is at home at, while that is within the bound of a pool's workers.

    ``load_tokens``: of each rank, in flight. Without a home, or with one that has too much to do, the least loaded rank.
    """
    key = demand.affinity if demand.session is None else demand.session
    if key is not None:
        ranks = len(load_tokens)
        home = key * _SPREAD % _SIZE * ranks // _SIZE  # other bits than those which chose the worker
        if load_tokens[home] <= load_bound(sum(load_tokens) / ranks, demand):
            return home
    return min(range(len(load_tokens)), key=load_tokens.__getitem__)


_SPREAD = 0x9E3779B97F4A7C15
_SIZE = 1 << 64
