"""Who is asked for an answer that some worker keeps, and who is remembered."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from proxy.lookups import MOST_ASKED, Owners, possible_owners
from routing.topology import Key, Pool
from tests.routing.topologies import a_model, a_pool, a_topology


def placed(pool: Pool) -> Pool:
    """The pool with a URL of its own for each worker."""
    return replace(pool, workers=tuple(replace(worker, url=f"http://w-{worker.index}") for worker in pool.workers))


TOPOLOGY = a_topology(
    a_model(placed(a_pool(0, 1, name="short")), placed(a_pool(2, name="long")), name="a"), a_model(placed(a_pool(3)), name="b")
)
UP = (1.0,) * 4


def asked(known: str | None = None, *, key: Key | None = None, up: tuple[float, ...] = UP) -> list[int]:
    return [decision.worker.index for decision in possible_owners(TOPOLOGY, key, up, known)]


def test_all_that_may_have_it_are_asked():
    """Without a memory of it every worker is asked, in the order of the file."""
    assert asked() == [0, 1, 2, 3]


@pytest.mark.parametrize(("known", "order"), [("http://w-2", [2, 0, 1, 3]), ("http://gone", [0, 1, 2, 3])])
def test_who_is_known_to_have_it_is_asked_first(known, order):
    """The others come behind it, since it may have forgotten; one that is no worker any more is left out."""
    assert asked(known) == order


def test_workers_that_are_down_are_not_asked():
    """Down is left out, not known yet is not."""
    assert asked("http://w-1", up=(1.0, 0.0, nan, 1.0)) == [0, 2, 3]


def test_a_key_reaches_its_models_only():
    """Also a worker that is known to have it is left out when it serves other models."""
    key = Key(index=0, name="k", sha256=b"", models=frozenset({"a"}))

    assert asked("http://w-3", key=key) == [0, 1, 2]


def test_a_worker_of_two_models_is_asked_once():
    """Adapters are models of the same worker."""
    pool = placed(a_pool(0))
    topology = a_topology(a_model(pool, name="a"), a_model(pool, name="b"))

    assert len(possible_owners(topology, None, (1.0,), None)) == 1


def test_a_large_fleet_is_not_asked_as_a_whole():
    """The number is bounded, and who is known is among them."""
    topology = a_topology(a_model(placed(a_pool(*range(100))), name="a"))

    found = possible_owners(topology, None, (1.0,) * 100, "http://w-99")

    assert [decision.worker.index for decision in found] == [99, *range(MOST_ASKED - 1)]


def test_the_oldest_is_forgotten_first():
    """The memory is bounded; what is told again is young again."""
    owners = Owners(2)
    for answer_id in ("a", "b", "a", "c"):
        owners.remember(answer_id, f"http://{answer_id}")

    assert [owners.find(answer_id) for answer_id in "abc"] == ["http://a", None, "http://c"]
    assert repr(owners) == "<Owners of 2 answers>"
