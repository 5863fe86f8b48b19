"""Quotas in a serving process: limits over all processes, what is charged and given back, leases of a shared limit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.config.settings import parse_config
from proxy.config.wiring import build_topology
from proxy.serving.quotas import LEASE_SECONDS, Charge, Quotas, tokens_used
from proxy.upstream.load import WorkerLoads
from proxy.wire.errors import ProxyError
from proxy.wire.framing import parse_answer_head
from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.topology import Topology
from telemetry.catalog import Writer
from telemetry.cells import create_cells, reset_gauges
from telemetry.events import Usage
from telemetry.layout import Layout, offset, slot
from telemetry.measurements import Measurements

SHA = "ab" * 32


def a_topology(quota: str, store: str = "") -> Topology:
    text = f"{store}\nkeys: [{{name: k, sha256: {SHA}, quota: {{{quota}}}}}]\nmodels: [{{name: m, workers: [http://a]}}]"
    return build_topology(parse_config(text, {}, "f"))


@dataclass
class Process:
    """One serving process of several."""

    quotas: Quotas
    loads: WorkerLoads
    values: memoryview
    topology: Topology
    layout: Layout
    now: float = 1000.0

    def ask(self, tokens: int = 0) -> Charge:
        return self.quotas.begin(self.topology.keys[0], tokens, self.now)

    def refusal(self, tokens: int = 0) -> ProxyError:
        with pytest.raises(ProxyError) as caught:
            self.ask(tokens)
        return caught.value

    def minutes_pass(self, minutes: float) -> None:
        ends_at = self.now + 60 * minutes + 1
        while self.now < ends_at:
            self.now += 0.5
            self.quotas.look(self.now)

    def figure(self, name: str, **labels: str) -> float:
        return self.values[self.layout.key_base(0) + slot(f"ridgeline_{name}", **labels)]


def processes(run_dir: Path, topology: Topology, count: int = 1) -> list[Process]:
    layout = Layout.of(topology)
    control = create_cells(run_dir / "control.cells", layout, Writer.CONTROL)
    made = []
    for number in range(count):
        cells = create_cells(run_dir / f"serving-{number}.cells", layout, Writer.SERVING)
        reset_gauges(cells, layout, Writer.SERVING)
        loads = WorkerLoads(cells.values, layout, topology, run_dir, number, count)
        made.append(Process(Quotas(cells.values, layout, topology, loads, 1000.0), loads, cells.values, topology, layout))
    for process in made:
        process.loads.look_around()
    del control
    return made


def test_requests_of_a_minute(tmp_path):
    """Beyond the limit 429 with when to come again; a minute later there is room."""
    (process,) = processes(tmp_path, a_topology("requests_per_minute: 3"))
    for _ in range(3):
        process.ask()

    error = process.refusal()
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    assert error.retry_after_seconds == 60
    assert b"x-ratelimit-limit-requests: 3\r\nx-ratelimit-remaining-requests: 0\r\n" in error.lines
    assert process.figure("quota_refusals_total", limit="requests") == 1
    process.minutes_pass(1)
    process.ask()
    assert process.figure("quota_requests_total") == 4


def test_the_limit_is_for_all_processes_together(tmp_path):
    """What one lets in, the others see at once."""
    one, two = processes(tmp_path, a_topology("requests_per_minute: 3, concurrent_requests: 5"), 2)
    one.ask()
    two.ask()
    one.ask()

    assert two.refusal().code == one.refusal().code == "rate_limit_exceeded"
    for process in (one, two):
        for now in range(1001, 1064):
            process.now = now
            process.quotas.look(now)
    two.ask()


def test_tokens_are_charged_as_estimated_and_settled_by_usage(tmp_path):
    """More is charged later, less is given back, and what is not known stays as it was estimated."""
    (process,) = processes(tmp_path, a_topology("tokens_per_minute: 1000"))
    first = process.ask(600)
    error = process.refusal(401)
    assert error.code == "rate_limit_exceeded"
    assert "1000 tokens a minute" in error.text

    process.quotas.end(first, 100, process.now)
    second = process.ask(900)
    process.quotas.end(second, None, process.now)
    assert process.refusal(1).status == 429
    assert process.figure("quota_tokens_total", change="charged") == 1500
    assert process.figure("quota_tokens_total", change="returned") == 500

    process.minutes_pass(1)
    third = process.ask(10)
    process.quotas.end(third, 1500, process.now)
    assert process.refusal(1).status == 429


ESTIMATED = 9
JSON, STREAM, SQUEEZED = b"application/json", b"text/event-stream", b"application/json\r\nContent-Encoding: gzip"


@pytest.mark.parametrize(
    ("media", "status", "found", "used"),
    [
        (JSON, 200, Measurements(usage=Usage(40, 2)), 42),
        (JSON, 200, Measurements(usage=Usage(None, 2)), ESTIMATED + 2),  # an impossible number of prompt tokens
        (JSON, 200, Measurements(is_unmetered=True), None),  # too long to be read
        (JSON, 200, Measurements(faults=1), None),  # only its beginning came, or was taken
        (JSON, 200, None, None),
        (SQUEEZED, 200, Measurements(is_unmetered=True), None),
        (STREAM, 200, Measurements(token_events=5), ESTIMATED + 5),  # the client left
        (STREAM, 200, None, ESTIMATED),
        (JSON, 400, Measurements(), 0),
        (None, 0, None, None),  # no answer yet: the worker may be computing
    ],
)
def test_what_a_request_has_used(media: bytes | None, status: int, found: Measurements | None, used: int | None) -> None:
    """No answer is free because its end, where the usage stands, was not read; then the estimate stands."""
    answer = media and parse_answer_head(b"HTTP/1.1 %d X\r\nContent-Type: %b\r\nContent-Length: 9\r\n\r\n" % (status, media))
    demand = Demand(TokenEstimate(ESTIMATED, ESTIMATED, ESTIMATED), max_tokens=5000)
    exchange: Any = SimpleNamespace(
        sent_at=1.0,
        found=found,
        answer=answer,
        prepared=SimpleNamespace(demand=demand),
        endpoint=SimpleNamespace(is_form=False),
    )
    assert tokens_used(exchange) == used


def test_tokens_of_an_earlier_minute_are_not_given_back_to_this_one(tmp_path):
    """A long stream that used less than was estimated was paid for in the minute that it began in."""
    (process,) = processes(tmp_path, a_topology("tokens_per_minute: 1000"))
    long_one = process.ask(1000)
    process.minutes_pass(1.5)
    process.quotas.end(long_one, 10, process.now)
    process.ask(1000)

    assert process.refusal(1).status == 429


def test_a_request_over_the_whole_limit_is_told_so(tmp_path):
    """Waiting would not help: no 429, which clients repeat."""
    (process,) = processes(tmp_path, a_topology("tokens_per_minute: 1000"))

    error = process.refusal(1001)

    assert (error.status, error.code, error.retry_after_seconds) == (400, "request_over_quota", None)


def test_requests_at_a_time(tmp_path):
    """Over all processes; who ends makes room, also when the quota has changed meanwhile."""
    topology = a_topology("concurrent_requests: 2")
    one, two = processes(tmp_path, topology, 2)
    first, _ = one.ask(), two.ask()
    assert one.refusal().retry_after_seconds == 1
    one.quotas.end(first, None, one.now)
    third = two.ask()
    assert one.refusal().code == "rate_limit_exceeded"

    two.quotas.adopt(two.values, two.layout, a_topology("concurrent_requests: 3"), two.loads, two.now)
    two.ask()
    two.quotas.end(third, None, two.now)
    assert two.figure("key_in_flight_requests") == 2


def test_a_changed_limit_does_not_forget_what_was_used(tmp_path):
    """A reload is no way to get a fresh minute."""
    (process,) = processes(tmp_path, a_topology("requests_per_minute: 3"))
    for _ in range(3):
        process.ask()

    process.quotas.adopt(process.values, process.layout, a_topology("requests_per_minute: 4"), process.loads, process.now)

    process.ask()
    assert process.refusal().status == 429


def test_a_reload_that_not_all_processes_have_followed_yet_forgets_nothing(tmp_path):
    """The arrays of the others are away for a moment; what they let in was let in."""
    one, two = processes(tmp_path, a_topology("requests_per_minute: 3"), 2)
    for process in (two, two, one):
        process.ask()
    assert one.refusal().status == 429

    lonely = WorkerLoads(one.values, one.layout, one.topology, tmp_path, 0, 1)
    one.quotas.adopt(one.values, one.layout, one.topology, lonely, one.now)

    assert one.refusal().status == 429


def test_a_key_without_a_quota_is_let_in(tmp_path):
    """As after a reload that has taken it out while a request was being read."""
    (process,) = processes(tmp_path, a_topology("requests_per_minute: 1"))
    process.ask()
    process.quotas.adopt(process.values, process.layout, a_topology(""), process.loads, process.now)

    charge = process.ask(5)
    assert process.quotas.lines(charge, process.now) == b""
    process.quotas.end(charge, 5, process.now)


def test_what_is_left_stands_in_the_head(tmp_path):
    """In the usual headers, as of when the request was let in."""
    (process,) = processes(tmp_path, a_topology("requests_per_minute: 10, tokens_per_minute: 1000"))
    process.ask(100)
    charge = process.ask(250)

    assert process.quotas.lines(charge, process.now).split(b"\r\n")[:-1] == [
        b"x-ratelimit-limit-requests: 10",
        b"x-ratelimit-remaining-requests: 8",
        b"x-ratelimit-reset-requests: 60s",
        b"x-ratelimit-limit-tokens: 1000",
        b"x-ratelimit-remaining-tokens: 650",
        b"x-ratelimit-reset-tokens: 60s",
    ]


CLOSED = "quotas: {store: 'redis://r', on_store_failure: closed}"
OPEN = "quotas: {store: 'redis://r', on_store_failure: open}"
SHARED = "requests_per_minute: 100, tokens_per_minute: 1000"


class Lender:
    """What control writes."""

    def __init__(self, run_dir: Path, process: Process) -> None:
        self._cells = create_cells(run_dir / "control.cells", process.layout)
        self._base = process.layout.key_base(0)
        self.store(up=True)

    def store(self, *, up: bool) -> None:
        self._cells.values[offset("ridgeline_quota_store_up")] = float(up)

    def lease(self, requests: int, tokens: int) -> None:
        self._cells.values[self._base + slot("ridgeline_quota_leased_total", of="requests")] += requests
        self._cells.values[self._base + slot("ridgeline_quota_leased_total", of="tokens")] += tokens

    def deny(self, of: str, at: float, seconds: float) -> None:
        self._cells.values[self._base + slot("ridgeline_quota_denied_at_seconds", of=of)] = at
        self._cells.values[self._base + slot("ridgeline_quota_denied_for_seconds", of=of)] = seconds


def test_a_shared_limit_is_used_lease_by_lease(tmp_path):
    """Who finds too little waits, says how much it needs, and goes on with the next lease."""
    (process,) = processes(tmp_path, a_topology(SHARED, CLOSED))
    lender = Lender(tmp_path, process)
    lender.lease(1, 300)

    assert not process.ask(200).is_waiting
    waits = process.ask(200)
    assert waits.is_waiting
    assert process.figure("quota_wanted", of="requests") == 1
    assert process.figure("quota_wanted", of="tokens") == 200
    assert not process.quotas.again(waits, process.now + 0.005)
    lender.lease(1, 100)
    assert process.quotas.again(waits, process.now + 0.01)
    assert process.figure("quota_wanted", of="tokens") == process.figure("quota_wanted", of="requests") == 0
    assert process.figure("quota_requests_total") == 2


def test_a_shared_limit_that_is_used_up_refuses(tmp_path):
    """Once the store has nothing to give, at once, with the time that control has said."""
    (process,) = processes(tmp_path, a_topology(SHARED, CLOSED))
    lender = Lender(tmp_path, process)
    waits = process.ask(200)
    lender.deny("tokens", process.now + 0.01, 7.5)

    with pytest.raises(ProxyError) as caught:
        process.quotas.again(waits, process.now + 0.02)
    assert (caught.value.status, caught.value.retry_after_seconds) == (429, 8)
    assert b"x-ratelimit-remaining-tokens: 0\r\n" in caught.value.lines
    assert process.figure("quota_wanted", of="tokens") == 0
    process.now += 0.1
    assert process.refusal(200).status == 429
    process.now += 0.5  # control has looked again since
    assert process.ask(200).is_waiting


@pytest.mark.parametrize("how", ["store", "silent"])
def test_without_the_store_nobody_is_let_in_or_everybody(tmp_path, how):
    """As configured; whoever is let in still goes by this gateway's own count."""
    for number, (setting, status) in enumerate(((CLOSED, 503), (OPEN, None))):
        folder = tmp_path / str(number)
        folder.mkdir()
        (process,) = processes(folder, a_topology(SHARED, setting))
        lender = Lender(folder, process)
        if how == "store":
            lender.store(up=False)
        else:  # control does not answer
            waits = process.ask(1)
            process.now += LEASE_SECONDS
            if status is None:
                assert process.quotas.again(waits, process.now)
            else:
                with pytest.raises(ProxyError):
                    process.quotas.again(waits, process.now)
            process.now += 0.01
        if status is None:
            assert not process.ask(900).is_waiting
            assert process.refusal(200).status == 429
        else:
            assert process.refusal(1).code == "quota_unavailable"
            assert process.figure("quota_refusals_total", limit="store") >= 1


def test_a_request_that_leaves_while_it_waits_wants_nothing_any_more(tmp_path):
    """Its client has gone."""
    (process,) = processes(tmp_path, a_topology(SHARED, CLOSED))
    Lender(tmp_path, process)
    waits = process.ask(200)

    process.quotas.end(waits, 0, process.now)

    assert process.figure("quota_wanted", of="tokens") == 0
    assert process.figure("quota_requests_total") == process.figure("key_in_flight_requests") == 0


def test_a_request_under_way_is_told_its_limits_after_figures_have_moved(tmp_path):
    """Workers are removed while it runs, so that the figures of its key lie elsewhere; what is left is told as it was."""

    def with_workers(count: int) -> Topology:
        workers = ", ".join(f"http://w{number}" for number in range(count))
        quota = "requests_per_minute: 5"
        text = f"keys: [{{name: k, sha256: {SHA}, quota: {{{quota}}}}}]\nmodels: [{{name: m, workers: [{workers}]}}]"
        return build_topology(parse_config(text, {}, "f"))

    (tmp_path / "small").mkdir()
    (process,) = processes(tmp_path, with_workers(3))
    (smaller,) = processes(tmp_path / "small", with_workers(1))
    assert smaller.layout.key_base(0) < process.layout.key_base(0)
    charge = process.ask()
    before = process.quotas.lines(charge, process.now)

    process.quotas.adopt(smaller.values, smaller.layout, smaller.topology, smaller.loads, process.now)

    assert b"x-ratelimit-remaining-requests: 4\r\n" in before
    assert process.quotas.lines(charge, process.now) == before
