"""Who belongs to a pool, and how long those that have vanished stay."""

from __future__ import annotations

from proxy.discovery.members import LINGER_SECONDS, Members
from tests.proxy.discovery.finding import a_worker, names

A, B, C = (a_worker(name) for name in "abc")
DRAIN_SECONDS = 600.0


def draining(members: Members) -> list[str]:
    return [worker.name for worker in members.in_force if worker.is_draining]


def test_what_is_found_is_in_force_in_the_order_of_names() -> None:
    """Replicas that found the same workers agree on their order."""
    assert names(Members().after((B, A), 0.0).in_force) == ["a", "b"]


def test_a_vanished_worker_drains_before_it_goes() -> None:
    """It gets no new request at once, and stays for as long as a process may need to hear of that."""
    members = Members().after((A, B), 0.0).after((A,), 10.0)

    assert names(members.in_force) == ["a", "b"]
    assert draining(members) == ["b"]
    assert members.settled(lambda _: False, DRAIN_SECONDS, 10.0 + LINGER_SECONDS - 1) == members
    assert names(members.settled(lambda _: False, DRAIN_SECONDS, 10.0 + LINGER_SECONDS).in_force) == ["a"]


def test_a_busy_worker_stays_until_its_time_is_over() -> None:
    """While it has requests it is kept, at most for the seconds that are configured."""
    members = Members().after((A, B), 0.0).after((A,), 0.0)

    assert draining(members.settled(lambda worker: worker == B, DRAIN_SECONDS, DRAIN_SECONDS - 1)) == ["b"]
    assert names(members.settled(lambda worker: worker == B, DRAIN_SECONDS, DRAIN_SECONDS).in_force) == ["a"]
    assert names(members.settled(lambda worker: worker == B, 0.0, LINGER_SECONDS).in_force) == ["a"]
    assert draining(members.settled(lambda worker: worker == B, 0.0, LINGER_SECONDS - 1)) == ["b"]


def test_time_is_counted_from_when_it_vanished_first() -> None:
    """Other changes meanwhile do not begin it anew."""
    members = Members().after((A, B), 0.0).after((A,), 0.0).after((A, C), 20.0)

    assert names(members.settled(lambda _: False, DRAIN_SECONDS, LINGER_SECONDS).in_force) == ["a", "c"]


def test_a_worker_that_comes_back_takes_requests_again() -> None:
    """A name server that leaves one out for a moment does no harm."""
    members = Members().after((A, B), 0.0).after((A,), 1.0).after((A, B), 2.0)

    assert members == Members(present=(A, B))


def test_another_worker_at_the_address_takes_its_place() -> None:
    """The old one is gone when its address has been given away, and so is one whose name moved to another address."""
    members = Members().after((A, B), 0.0)

    assert names(members.after((A, a_worker("new", "b")), 1.0).in_force) == ["a", "new"]
    moved = a_worker("b", "elsewhere")
    assert members.after((A, moved), 1.0).in_force == (A, moved)


def test_a_worker_that_ends_is_draining_and_not_forgotten() -> None:
    """What its source still names, but for no new requests, stays for as long as it is named."""
    ending = a_worker("b", is_draining=True)
    members = Members().after((A, B), 0.0).after((A, ending), 1.0)

    assert draining(members) == ["b"]
    assert members.settled(lambda _: False, 0.0, 1e9) == members


def test_members_go_on_after_a_restart() -> None:
    """Who was leaving goes on leaving, from now on."""
    ending, gone = a_worker("c", is_draining=True), a_worker("b", is_draining=True, is_gone=True)
    members = Members.going_on((A, gone, ending), 100.0)

    assert names(members.present) == ["a", "c"]
    assert members.in_force == (A, gone, ending)
    assert draining(members.settled(lambda _: False, 0.0, 100.0 + LINGER_SECONDS - 1)) == ["b", "c"]
    assert draining(members.settled(lambda _: False, 0.0, 100.0 + LINGER_SECONDS)) == ["c"]
