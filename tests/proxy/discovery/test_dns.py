"""Workers behind a name, asked of a real name server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from proxy.discovery.dns import DnsSource, Records
from proxy.discovery.found import SourceError
from proxy.discovery.source import Pause
from tests.integration.name_server import NameServer
from tests.proxy.discovery.finding import Ear, a_worker, heard

NAME = "vllm.default.svc"


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    async with NameServer() as one:
        yield one


def a_source(server: NameServer, *kinds: str, empty_seconds: float = 0.2) -> DnsSource:
    return DnsSource(
        NAME,
        kinds or ("A", "AAAA"),
        8000,
        ("127.0.0.1", server.port),
        pause=Pause(0.05, 0.2),
        empty_seconds=empty_seconds,
        lifetime_seconds=0.5,
    )


async def test_every_address_is_a_worker(server: NameServer) -> None:
    """Of both families, in one form each."""
    server.says(NAME, "10.0.0.2", "10.0.0.1")
    server.says(NAME, "fd00::1", "FD00:0:0::2", kind="AAAA")
    async with heard(a_source(server)) as ear:
        await ear.hears_of("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000", "[fd00::2]:8000")

    assert [worker.url.url for worker in ear.found[0]][2:] == ["http://[fd00::1]:8000", "http://[fd00::2]:8000"]
    assert {worker.source for worker in ear.found[0]} == {"dns"}
    assert ear.failures == []


async def test_workers_that_speak_tls_have_urls_that_say_so(server: NameServer) -> None:
    """By address and by target."""
    server.says(NAME, "10.0.0.1")
    server.says(NAME, "0 5 8443 a.example.", kind="SRV")
    at = ("127.0.0.1", server.port)
    for source, url in (
        (DnsSource(NAME, ("A",), 8000, at, scheme="https"), "https://10.0.0.1:8000"),
        (DnsSource(NAME, ("SRV",), None, at, scheme="https"), "https://a.example:8443"),
    ):
        async with heard(source) as ear:
            await ear.hears(lambda ear=ear: bool(ear.found))
        assert [worker.url.url for worker in ear.found[0]] == [url]


async def test_records_are_used_for_as_long_as_they_hold(server: NameServer) -> None:
    """It asks again when the shortest TTL is over and not before; other records are in force then."""
    server.says(NAME, "10.0.0.1", ttl=1)
    server.says(NAME, "fd00::1", kind="AAAA", ttl=600)
    async with heard(a_source(server)) as ear:
        await ear.hears_of("10.0.0.1:8000", "[fd00::1]:8000")
        server.says(NAME, "10.0.0.7", ttl=600)
        await ear.hears_of("10.0.0.7:8000", "[fd00::1]:8000")
        asked = [at for at, _, kind in server.asked if kind == "A"]
        await ear.hears(lambda: len(ear.found) >= 2)

    assert len(asked) == 2
    assert 0.95 <= asked[1] - asked[0] < 2.0


async def test_one_kind_is_asked_when_only_one_is_wanted(server: NameServer) -> None:
    """A fleet with two families would be counted twice."""
    server.says(NAME, "10.0.0.1")
    async with heard(a_source(server, "A")) as ear:
        await ear.hears_of("10.0.0.1:8000")

    assert {kind for _, _, kind in server.asked} == {"A"}


async def test_hundreds_of_addresses_arrive(server: NameServer) -> None:
    """An answer that is too long for a datagram comes over TCP."""
    server.says(NAME, *(f"10.0.{number // 250}.{number % 250}" for number in range(600)))
    async with heard(a_source(server, "A")) as ear:
        await ear.hears(lambda: bool(ear.found))

    assert len(ear.found[0]) == 600
    assert server.over_tcp == 1


async def test_service_records_name_host_and_port(server: NameServer) -> None:
    """Those of the first priority; a bare dot is nobody."""
    server.says(f"_http._tcp.{NAME}", "10 5 8001 b.example.", "10 50 8000 A.example.", "20 5 8002 c.example.", kind="SRV")
    source = DnsSource(f"_http._tcp.{NAME}", ("SRV",), nameserver=("127.0.0.1", server.port))
    async with heard(source) as ear:
        await ear.hears_of("a.example:8000", "b.example:8001")
        server.says(f"_http._tcp.{NAME}", "0 0 0 .", kind="SRV")
        await ear.hears(lambda: "no records" in str(ear.failures))


@pytest.mark.parametrize("how", ["servfail", "silent", "away"])
async def test_a_failing_name_server_takes_no_worker_away(server: NameServer, how: str) -> None:
    """The set that is known stays, however it fails, and is told as a failure; then it goes on."""
    server.says(NAME, "10.0.0.1")
    source = a_source(server, "A")
    async with heard(source) as ear:
        await ear.hears_of("10.0.0.1:8000")
        if how == "servfail":
            server.failing.add("A")
        elif how == "silent":
            server.is_silent = True
        else:
            await server.__aexit__()
        await ear.hears(lambda: bool(ear.failures), 10.0)
        assert ear.names == ["10.0.0.1:8000"]
        server.failing.clear()
        server.is_silent = False
        server.says(NAME, "10.0.0.2")
        if how == "away":
            await server.__aenter__()
        await ear.hears(lambda: ear.names == ["10.0.0.2:8000"], 10.0)


async def test_a_family_that_fails_takes_nothing_from_the_other(server: NameServer) -> None:
    """Servers that cannot answer AAAA exist; what was known of that family stays, too."""
    server.says(NAME, "10.0.0.1")
    server.says(NAME, "fd00::1", kind="AAAA")
    async with heard(a_source(server)) as ear:
        await ear.hears_of("10.0.0.1:8000", "[fd00::1]:8000")
        server.failing.add("AAAA")
        server.says(NAME, "10.0.0.2")
        await ear.hears_of("10.0.0.2:8000", "[fd00::1]:8000")


@pytest.mark.parametrize("is_unknown", [True, False])
async def test_a_name_without_records_is_believed_after_a_while(server: NameServer, is_unknown: bool) -> None:
    """A name server in the middle of a change may say so for a moment."""
    server.says(NAME, "10.0.0.1")
    async with heard(a_source(server, empty_seconds=0.4)) as ear:
        await ear.hears_of("10.0.0.1:8000")
        server.says(NAME)
        if is_unknown:
            server.unknown.add(NAME)
        await ear.hears(lambda: bool(ear.failures))
        assert ear.names == ["10.0.0.1:8000"]
        assert ("does not exist" if is_unknown else "no records") in ear.failures[0]
        await ear.hears_of()


def test_a_name_that_has_nobody_for_a_moment_keeps_its_workers() -> None:
    """The time without records is counted anew after each answer."""
    now = 0.0
    source = DnsSource(NAME, ("A",), 8000, clock=lambda: now)
    some, none = Records(workers=(a_worker("a"),), ttl_seconds=5.0), Records(workers=(), ttl_seconds=5.0)
    ear = Ear()

    for step in (some, none, none, none, some, none, none, none):
        source.take({"A": step}, ear.listener)
        now += 9.0
    assert ear.names == ["a"]
    source.take({"A": SourceError("x")}, ear.listener)
    now += 1000.0
    source.take({"A": none}, ear.listener)
    assert ear.names == ["a"]
    now += 31.0
    source.take({"A": none}, ear.listener)
    assert ear.names == []


def test_a_name_that_never_had_anybody_is_believed_at_once() -> None:
    """The pool is known to be empty, and the gateway need not wait for it."""
    ear = Ear()

    assert DnsSource(NAME, ("A",), 8000).take({"A": Records(workers=(), ttl_seconds=5.0)}, ear.listener) == 5.0

    assert ear.found == [()]
    assert ear.failures == [f"{NAME}: there are no records"]


def test_a_name_without_records_takes_nobody_away_at_once_after_a_restart() -> None:
    """What is in force from before has the same time as what this process has found itself."""
    now = 0.0
    source, ear = DnsSource(NAME, ("A",), 8000, has_known=True, clock=lambda: now), Ear()
    none = {"A": Records(workers=(), ttl_seconds=5.0)}

    source.take(none, ear.listener)
    assert ear.found == []
    now = 31.0
    source.take(none, ear.listener)
    assert ear.found == [()]


@pytest.mark.parametrize(("ttl", "seconds"), [(0.0, 1.0), (30.0, 30.0), (86400.0, 3600.0)])
def test_looks_are_neither_too_many_nor_too_few(ttl: float, seconds: float) -> None:
    """TTL 0 asks every second, a day every hour."""
    source = DnsSource(NAME, ("A", "AAAA"), 8000)
    looks = {"A": Records(workers=(a_worker("a"),), ttl_seconds=ttl), "AAAA": Records(workers=(), ttl_seconds=0.0)}

    assert source.take(looks, Ear().listener) == seconds


def test_too_many_addresses_change_nothing() -> None:
    """What was known stays."""
    ear = Ear()
    source = DnsSource(NAME, ("A",), 8000)
    source.take({"A": Records(workers=(a_worker("a"),), ttl_seconds=1.0)}, ear.listener)
    many = tuple(a_worker(f"w{number}") for number in range(2001))
    source.take({"A": Records(workers=many, ttl_seconds=1.0)}, ear.listener)

    assert ear.names == ["a"]
    assert "2,001" in ear.failures[0]
