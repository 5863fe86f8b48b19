"""How found workers go into the topology."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config.settings import parse_config
from proxy.config.wiring import build_topology
from proxy.control.overlay import LastWorkerError, Overlay
from proxy.discovery.found import MAX_WORKERS, Found, FoundWorker, SourceError, checked, keep_found, kept_found
from routing.topology import Topology
from tests.proxy.discovery.finding import a_worker
from tests.proxy.discovery.finding import names as found_names
from tests.proxy.fleets import an_addition
from tests.proxy.fleets import names as names_in

TEXT = """
models:
  - name: m
    pools:
      - {name: default, max_total_tokens: 1000, workers: {dns: short.default.svc, port: 8000}}
      - {name: long, workers: [{name: l, url: "http://long:8000"}]}
  - {name: n, workers: {file: n.yaml}}
"""
M, N = ("m", "default"), ("n", "default")


def configured(text: str = TEXT) -> Topology:
    return build_topology(parse_config(text, {}, "test"))


def names(topology: Topology) -> list[str]:
    return [worker.name for worker in topology.workers]


def test_found_workers_stand_where_their_pool_stands() -> None:
    """Indices follow the order of the file, as processes that share arrays rely on."""
    topology = Found(pools={M: (a_worker("a"), a_worker("b")), N: (a_worker("c", source="file"),)}).over(configured())

    assert names(topology) == ["a", "b", "l", "c"]
    assert [worker.index for worker in topology.workers] == [0, 1, 2, 3]
    assert [worker.source for worker in topology.workers] == ["dns", "dns", "config", "file"]
    assert topology.pools[0].workers[0].authority == "a:8000"


def test_a_pool_may_have_nobody() -> None:
    """Before anything is found, and when nothing is there."""
    assert names(Found().over(configured())) == ["l"]
    assert names(Found(pools={M: ()}).over(configured())) == ["l"]


def test_a_server_of_two_pools_has_two_names() -> None:
    """A name is given once; which pool keeps it does not depend on who was found first."""
    found = Found(pools={N: (a_worker("a"), a_worker("l"))}).given(M, (a_worker("a"), a_worker("l")))

    assert names(found.over(configured())) == ["a", "l@m/default", "l", "a@n/default", "l@n/default"]


def test_one_of_each_name_and_address_is_kept() -> None:
    """The one that comes first; the rest in the order of names."""
    first, second = a_worker("b"), a_worker("a")

    assert checked([first, second, a_worker("b", "other"), a_worker("other", "a")]) == (second, first)


def test_names_and_numbers_are_bounded() -> None:
    """What could become no label is refused, and so is a set that would take all memory."""
    for name in ("", "x" * 201, "a\nb", "ä"):
        with pytest.raises(SourceError, match="cannot be called"):
            checked([FoundWorker(name=name, url=a_worker("a").url)])
    many = [a_worker(f"w-{number}") for number in range(MAX_WORKERS + 1)]
    assert len(checked(many[:-1])) == MAX_WORKERS
    with pytest.raises(SourceError, match="2,001 workers"):
        checked(many)


def test_changes_by_hand_lie_over_what_is_found() -> None:
    """Drained, removed, added; and draining holds from either side."""
    base = Found(pools={M: (a_worker("a"), a_worker("b"), a_worker("c", is_draining=True))}).over(configured())
    overlay = Overlay().add(base, an_addition("w-9")).drain(base, "a").remove(base, "b")

    topology = overlay.over(base)

    assert [(each.name, each.is_draining, each.source) for each in topology.pools[0].workers] == [
        ("a", True, "dns"),
        ("c", True, "dns"),
        ("w-9", False, "admin"),
    ]
    assert overlay.over(Found(pools={M: (a_worker("b"),)}).over(configured())).pools[0].workers[0].name == "w-9"


def test_the_last_found_worker_is_not_removed_by_hand() -> None:
    """But what was removed stays so, even when nobody else is found."""
    base = Found(pools={M: (a_worker("a"), a_worker("b"))}).over(configured())
    overlay = Overlay().remove(base, "b")

    with pytest.raises(LastWorkerError):
        overlay.remove(base, "a")
    assert names_in(overlay.over(Found(pools={M: (a_worker("b"),)}).over(configured()))) == []


def test_a_pool_that_had_a_list_keeps_it_until_something_is_found() -> None:
    """A reload that turns a list into a name to look up loses no worker, and the other way round none stays behind."""
    listed = configured("models: [{name: m, workers: [{name: a, url: 'http://a:8000'}]}]")
    by_dns = configured("models: [{name: m, workers: {dns: a, port: 8000}}]")

    found = Found().under(by_dns, listed)

    assert found_names(found.pools[M]) == ["a"]
    assert names(found.over(by_dns)) == ["a"]
    assert Found(pools={M: (a_worker("b"),)}).under(by_dns, by_dns).pools == {M: (a_worker("b"),)}
    assert found.under(listed, by_dns).pools == {}
    assert Found().under(by_dns, by_dns).pools == {}


def test_what_was_found_is_kept_for_a_new_control_process(tmp_path: Path) -> None:
    """All of it, also that a pool has nobody; damaged it counts as nothing."""
    found = Found(pools={M: (a_worker("a"), a_worker("b", is_draining=True)), N: ()})

    keep_found(tmp_path, found)

    assert kept_found(tmp_path) == found
    (tmp_path / "found.msgpack").write_bytes(b"x")
    assert kept_found(tmp_path) == Found()
    assert kept_found(tmp_path / "nowhere") == Found()


def test_everything_else_stays_as_configured() -> None:
    """What was found changes who serves, and no rule by which they are asked."""
    more = "retries: {max_attempts: 1}\nhealth: {failures_in_row: 9}\nquotas: {store: 'redis://r'}\n"
    plain = configured(TEXT + more)
    topology = Found(pools={M: (a_worker("a"),)}).over(plain)

    assert topology.workers != plain.workers
    assert (topology.retries, topology.health, topology.quota_sharing) == (plain.retries, plain.health, plain.quota_sharing)
    assert topology.quota_sharing is not None
