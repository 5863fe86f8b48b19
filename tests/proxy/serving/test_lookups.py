"""Who is asked for an answer that some worker keeps, and who is remembered."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from proxy.serving.lookups import MOST_ASKED, Owner, Owners, possible_owners, serves_one_model
from proxy.wire.errors import ClientFault
from routing.topology import Key, Pool
from tests.routing.topologies import a_model, a_pool, a_topology


def placed(pool: Pool) -> Pool:
    """The pool with a URL of its own for each worker."""
    return replace(pool, workers=tuple(replace(worker, url=f"http://w-{worker.index}") for worker in pool.workers))


TOPOLOGY = a_topology(
    a_model(placed(a_pool(0, 1, name="short")), placed(a_pool(2, name="long")), name="a"), a_model(placed(a_pool(3)), name="b")
)
UP = (1.0,) * 4
ONLY_A = Key(index=0, name="k", sha256=b"", models=frozenset({"a"}))


def asked(known: Owner | None = None, *, key: Key | None = None, up: tuple[float, ...] = UP) -> list[int]:
    return [decision.worker.index for decision in possible_owners(TOPOLOGY, key, up, known)]


def test_all_that_may_have_it_are_asked():
    """Without a memory of it every worker is asked, in the order of the file."""
    assert asked() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("known", "order"),
    [
        (Owner("http://w-2", "a"), [2, 0, 1, 3]),
        (Owner("http://gone", "a"), [0, 1, 2, 3]),
        (Owner("http://w-2", "gone"), [0, 1, 2, 3]),
    ],
)
def test_who_is_known_to_have_it_is_asked_first(known, order):
    """The others come behind it, since it may have forgotten; one that is no worker any more is left out."""
    assert asked(known) == order


def test_workers_that_are_down_are_not_asked():
    """Down is left out, not known yet is not."""
    assert asked(Owner("http://w-1", "a"), up=(1.0, 0.0, nan, 1.0)) == [0, 2, 3]


def test_a_key_reaches_its_models_only():
    """Also a worker that is known to have it is left out when it serves other models."""
    assert asked(Owner("http://w-3", "b"), key=ONLY_A) == [0, 1, 2]


def test_a_worker_of_two_models_is_asked_once():
    """Adapters are models of the same worker."""
    pool = placed(a_pool(0))
    topology = a_topology(a_model(pool, name="a"), a_model(pool, name="b"))

    assert len(possible_owners(topology, None, (1.0,), None)) == 1
    assert len(possible_owners(topology, None, (1.0,), Owner("http://w-0", "b"))) == 1


SHARED = a_topology(
    a_model(placed(a_pool(0, 1)), name="a"),
    a_model(
        replace(
            a_pool(2, name="more"),
            workers=tuple(replace(worker, url="http://w-0") for worker in a_pool(2, name="more").workers),
        ),
        name="b",
    ),
)


@pytest.mark.parametrize(
    ("known", "order"),
    [
        (None, [1]),
        (Owner("http://w-0", "b"), [1]),
        (Owner("http://w-0", "a"), [0, 1]),
        (Owner("http://w-1", "a"), [1]),
    ],
)
def test_a_key_gets_nothing_of_other_models_from_a_worker_that_serves_both(known, order):
    """Such a worker is asked only for what it is known to have made with a model of the key."""
    found = possible_owners(SHARED, ONLY_A, (1.0,) * 3, known)

    assert [decision.worker.index for decision in found] == order


def test_a_key_whose_workers_all_serve_other_models_too():
    """Then nothing can be told from what is not there; if they are down, that is said instead."""
    with pytest.raises(ClientFault) as refused:
        possible_owners(SHARED, ONLY_A, (1.0, 0.0, 1.0), None)

    assert refused.value.status == 404
    assert possible_owners(SHARED, ONLY_A, (0.0, 0.0, 1.0), None) == []


def test_which_workers_serve_one_model():
    """By their URL, over all models."""
    assert [serves_one_model(SHARED, url) for url in ("http://w-0", "http://w-1", "http://gone")] == [False, True, False]


def test_a_large_fleet_is_not_asked_as_a_whole():
    """The number is bounded, and who is known is among them."""
    topology = a_topology(a_model(placed(a_pool(*range(100))), name="a"))

    found = possible_owners(topology, None, (1.0,) * 100, Owner("http://w-99", "a"))

    assert [decision.worker.index for decision in found] == [99, *range(MOST_ASKED - 1)]


def test_the_oldest_is_forgotten_first():
    """The memory is bounded; what is told again is young again."""
    owners = Owners(2)
    for answer_id in ("a", "b", "a", "c"):
        owners.remember(answer_id, f"http://{answer_id}", "m")

    assert [owners.find(answer_id) for answer_id in "abc"] == [Owner("http://a", "m"), None, Owner("http://c", "m")]
    assert repr(owners) == "<Owners of 2 answers>"


@pytest.mark.parametrize(("answer_id", "is_kept"), [("r" * 200, True), ("r" * 201, False), ("a/b", False), ("", False)])
def test_ids_that_nobody_can_ask_for_are_not_kept(answer_id, is_kept):
    """Some workers let clients choose them, of any length."""
    owners = Owners()
    owners.remember(answer_id, "http://a", "m")

    assert (owners.find(answer_id) is not None) is is_kept


def test_an_answer_stays_its_models():
    """A client that chooses the id of another model's answer does not make that its own; another worker's is another answer."""
    owners = Owners()
    owners.remember("r", "http://a", "m")
    owners.remember("r", "http://a", "other")
    assert owners.find("r") == Owner("http://a", "m")
    owners.remember("r", "http://b", "other")
    assert owners.find("r") == Owner("http://b", "other")
