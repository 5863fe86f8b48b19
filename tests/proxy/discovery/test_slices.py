"""EndpointSlices, and the workers that they come to."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.discovery.found import FoundWorker, SourceError
from proxy.discovery.slices import MAX_LINE_BYTES, Lines, Slice, workers_of
from tests.integration.kubernetes_api import a_slice, endpoint


def parsed(*slices: dict[str, Any]) -> list[Slice]:
    return [msgspec.json.decode(json.dumps(each), type=Slice) for each in slices]


def found(*slices: dict[str, Any], port: int | str | None = "http") -> list[str]:
    return [shown(worker) for worker in workers_of(parsed(*slices), port)]


def shown(worker: FoundWorker) -> str:
    text = f"{worker.name} {worker.url.authority}"
    return f"({text})" if worker.is_draining else text


def test_pods_are_called_by_their_name() -> None:
    """A name that says something and does not change; without one, the address."""
    slices = parsed(a_slice("s", endpoint("10.0.0.2", "vllm-b"), endpoint("10.0.0.1")))

    workers = workers_of(slices, "http")

    assert [shown(worker) for worker in workers] == ["10.0.0.1:8000 10.0.0.1:8000", "vllm-b 10.0.0.2:8000"]
    assert {worker.source for worker in workers} == {"kubernetes"}


@pytest.mark.parametrize(
    ("ready", "serving", "terminating", "said"),
    [
        (True, True, False, "a 10.0.0.1:8000"),
        (None, None, None, "a 10.0.0.1:8000"),  # unknown is to be taken as ready
        (True, None, None, "a 10.0.0.1:8000"),
        (False, False, False, None),
        (False, True, False, None),
        (False, True, True, "(a 10.0.0.1:8000)"),
        (False, False, True, None),
        (False, None, True, None),
        (True, True, True, "(a 10.0.0.1:8000)"),  # of a service that publishes addresses that are not ready
    ],
)
def test_only_ready_endpoints_take_requests(
    ready: bool | None, serving: bool | None, terminating: bool | None, said: str | None
) -> None:
    """One that ends and still serves is draining; one that is not ready is nobody."""
    one = endpoint("10.0.0.1", "a", ready=ready, serving=serving, terminating=terminating)

    assert found(a_slice("s", one)) == ([] if said is None else [said])


def test_all_slices_count_and_nobody_twice() -> None:
    """A pod may be in two slices for a moment; the better of what is said of it holds, whichever slice comes first."""
    old = a_slice("s-1", endpoint("10.0.0.1", "a", ready=False, serving=True, terminating=True), endpoint("10.0.0.2", "b"))
    new = a_slice("s-2", endpoint("10.0.0.9", "a"), endpoint("10.0.0.2", "b"), endpoint("10.0.0.3", "c"))

    assert found(old, new) == found(new, old) == ["a 10.0.0.9:8000", "b 10.0.0.2:8000", "c 10.0.0.3:8000"]


def test_a_pod_with_two_families_is_one_worker() -> None:
    """At its IPv4 address where it has one."""
    six = a_slice("s-6", endpoint("fd00::1", "a"), endpoint("fd00::2", "b"), address_type="IPv6")
    four = a_slice("s-9", endpoint("10.0.0.1", "a"))

    assert found(six, four) == ["a 10.0.0.1:8000", "b [fd00::2]:8000"]


def test_names_are_no_addresses() -> None:
    """Slices of type FQDN are deprecated and nothing is known of what is behind them."""
    assert found(a_slice("s", endpoint("a.example"), address_type="FQDN"), a_slice("t", endpoint("10.0.0.1"))) == [
        "10.0.0.1:8000 10.0.0.1:8000"
    ]


PORTS = [
    {"name": "http", "port": 8000, "protocol": "TCP"},
    {"name": "metrics", "port": 9000, "protocol": "TCP"},
    {"name": "dns", "port": 53, "protocol": "UDP"},
]


@pytest.mark.parametrize(
    ("ports", "port", "number"),
    [
        (PORTS, "http", 8000),
        (PORTS, 9000, 9000),
        (PORTS[:1], None, 8000),
        (PORTS[1:], None, 9000),
        ([{"name": None, "port": 8000, "protocol": "TCP"}], None, 8000),
        ([{"port": 8000}], 8000, 8000),
        (None, 8000, 8000),
        ([], 8000, 8000),
    ],
)
def test_the_port_is_found(ports: Any, port: int | str | None, number: int) -> None:
    """By name or number, or because there is only one that is TCP."""
    assert found(a_slice("s", endpoint("10.0.0.1", "a"), ports=ports), port=port) == [f"a 10.0.0.1:{number}"]


@pytest.mark.parametrize(
    ("ports", "port", "why"),
    [
        (PORTS, "grpc", r"no port grpc; there are: http \(8000\), metrics \(9000\)"),
        (PORTS, 80, "no port 80"),
        (PORTS, None, "no single port"),
        (PORTS, "dns", "no port dns"),
        (None, "http", "no port http; there are: none"),
    ],
)
def test_a_port_that_nobody_has_is_a_mistake(ports: Any, port: int | str | None, why: str) -> None:
    """It is told, with those that exist, and takes nobody away."""
    with pytest.raises(SourceError, match=why):
        found(a_slice("s", endpoint("10.0.0.1", "a"), ports=ports), port=port)


def test_slices_with_other_ports_stand_beside() -> None:
    """A service's slices may differ in their ports, as while it is being changed."""
    assert found(
        a_slice("s", endpoint("10.0.0.1", "a"), ports=PORTS[1:]), a_slice("t", endpoint("10.0.0.2", "b")), port="http"
    ) == ["b 10.0.0.2:8000"]


def test_nobody_is_no_mistake() -> None:
    """Slices without endpoints, and a service without slices."""
    assert found(a_slice("s"), a_slice("t", ports=None)) == []
    assert found() == []


def test_hostile_addresses_are_refused() -> None:
    """Whatever an endpoint says it is, nothing but an address becomes a URL."""
    for address in ("a b", "x/../y", "evil@h", "fd00::zz", "", "evil.example", "10.0.0.1:80"):
        with pytest.raises(SourceError):
            found(a_slice("s", endpoint(address, "a")))


@given(cuts=st.lists(st.integers(0, 60), max_size=8))
def test_lines_are_whole_wherever_they_were_cut(cuts: list[int]) -> None:
    """Pieces of a stream have nothing to do with its lines."""
    text = b'{"a": 1}\n\n{"b": "\xc3\xa4"}\r\n{"c": 3}\n{"held'
    lines, taken, start = Lines(), [], 0
    for cut in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        taken += lines.feed(text[start:cut])
        start = cut

    assert taken == [b'{"a": 1}', b'{"b": "\xc3\xa4"}\r', b'{"c": 3}']


def test_a_line_without_an_end_is_given_up() -> None:
    """Memory is not at the mercy of what is at the other end."""
    lines = Lines()
    with pytest.raises(SourceError):
        list(lines.feed(b"x" * (MAX_LINE_BYTES + 1)))
