"""Answers that workers keep, and which worker keeps which: ``/v1/responses/{id}`` names no model and no worker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.serving.endpoints import ANSWER_ID, may_use
from proxy.wire.errors import response_not_found
from routing.policy import Decision, PoolReason, Reason
from routing.topology import Key, Topology

MOST_ASKED = 16
"""Workers that are asked for one answer, at most, one after another."""

ASK_SECONDS = 5.0
"""How long one of several may take to begin its answer; it has nothing to compute."""

_MOST_KEPT = 20_000
_may_be_asked_for = re.compile(ANSWER_ID).fullmatch


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has an answer. One worker may serve several models, and a key may be for some of them."""

    url: str
    model: str


class Owners:
    """Remembers who has an answer, for as many as fit; the oldest go first.

    Other serving processes do not know what this one knows, so whoever is not found here is asked for in turn.
    """

    __slots__ = ("_most", "_owners")

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._owners: dict[str, Owner] = {}
        self._most = most

    def __repr__(self) -> str:
        return f"<Owners of {len(self._owners)} answers>"

    def remember(self, answer_id: str, url: str, model: str) -> None:
        """The model of the worker at this URL has made the answer. An id that no path can name, however long, is not kept.

        Clients may choose ids: one that is known as another model's at the same worker stays that model's.
        """
        owner = self._owners.get(answer_id)
        if owner is None:
            if _may_be_asked_for(answer_id) is None:
                return
        elif owner.url == url and owner.model != model:
            return
        else:
            del self._owners[answer_id]
        self._owners[answer_id] = Owner(url, model)
        if len(self._owners) > self._most:
            del self._owners[next(iter(self._owners))]

    def find(self, answer_id: str) -> Owner | None:
        """Who has it; ``None`` if that is not known here."""
        return self._owners.get(answer_id)


def serves_one_model(topology: Topology, url: str) -> bool:
    """Whether what the worker at this URL shows can be of one model only."""
    return sum(any(worker.url == url for pool in model.pools for worker in pool.workers) for model in topology.models) == 1


def possible_owners(topology: Topology, key: Key | None, is_up: Sequence[float], known: Owner | None) -> list[Decision]:
    """Whom to ask for an answer, in turn: the one that is known to have it, then those that may, each worker once.

    None that is down; one that is being drained is asked too. Whoever is not known to have made the answer with a model that
    the key may use is asked only if all its models are such. Raises `ProxyError`, 404, if that leaves out all that are up.
    """
    first: list[Decision] = []
    found: dict[str, Decision] = {}
    closed = {
        worker.url for model in topology.models if not may_use(key, model) for pool in model.pools for worker in pool.workers
    }
    has_left_out = False
    for model in topology.models:
        if not may_use(key, model):
            continue
        for pool in model.pools:
            for worker in pool.workers:
                if is_up[worker.index] == 0.0:
                    continue
                decision = Decision(pool, worker, PoolReason.ONLY_POOL, pool.policy, Reason.TURN)
                if known is not None and worker.url == known.url and model.name == known.model:
                    first = [decision]
                elif worker.url in closed:
                    has_left_out = True
                else:
                    found.setdefault(worker.url, decision)
    if first:
        found.pop(first[0].worker.url, None)
    elif not found and has_left_out:
        raise response_not_found()
    return [*first, *found.values()][:MOST_ASKED]
