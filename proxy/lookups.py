"""Answers that workers keep, and which worker keeps which: ``/v1/responses/{id}`` names no model and no worker."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.endpoints import may_use
from routing.policy import Decision, PoolReason, Reason
from routing.topology import Key, Topology

MOST_ASKED = 16
"""Workers that are asked for one answer, at most, one after another."""

ASK_SECONDS = 5.0
"""How long one of several may take to begin its answer; it has nothing to compute."""

_MOST_KEPT = 20_000


class Owners:
    """Remembers which worker has an answer, for as many as fit; the oldest go first.

    Other serving processes do not know what this one knows, so whoever is not found here is asked for in turn.
    """

    __slots__ = ("_most", "_urls")

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._urls: dict[str, str] = {}
        self._most = most

    def __repr__(self) -> str:
        return f"<Owners of {len(self._urls)} answers>"

    def remember(self, answer_id: str, url: str) -> None:
        """The worker at this URL has made or shown the answer."""
        self._urls.pop(answer_id, None)
        self._urls[answer_id] = url
        if len(self._urls) > self._most:
            del self._urls[next(iter(self._urls))]

    def find(self, answer_id: str) -> str | None:
        """The URL of the worker that has it; ``None`` if that is not known here."""
        return self._urls.get(answer_id)


def possible_owners(topology: Topology, key: Key | None, is_up: Sequence[float], known: str | None) -> list[Decision]:
    """Whom to ask for an answer, in turn: the one that is known to have it, then those that may, each worker once.

    Only workers of models that the key may use, and none that is down. One that is being drained is asked too.
    """
    found: dict[str, Decision] = {}
    for model in topology.models:
        if not may_use(key, model):
            continue
        for pool in model.pools:
            for worker in pool.workers:
                if is_up[worker.index] != 0.0 and worker.url not in found:
                    found[worker.url] = Decision(pool, worker, PoolReason.ONLY_POOL, pool.policy, Reason.TURN)
    first = [found.pop(known)] if known is not None and known in found else []
    return [*first, *found.values()][:MOST_ASKED]
