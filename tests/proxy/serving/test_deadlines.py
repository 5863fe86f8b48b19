"""Which limit a request is over, by what is known of its worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from proxy.serving.deadlines import FIRST_BYTE, overdue
from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.guidance import Guidance, WorkerGuidance
from routing.topology import Limits
from telemetry.meter import StreamMeter
from telemetry.record import Phase
from tests.proxy.fleets import a_decision, a_topology

ONE = a_topology({"default": ["w-0"]})


def waiting(tokens: int, *, stream: bool = True, max_tokens: int = 100, max_model_len: int | None = 100_000) -> Any:
    """A request that was sent at 0 and has had nothing; its worker computes 1,000 tokens a second and makes 50."""
    pace = WorkerGuidance(max_model_len, prefill_tokens_per_second=1000.0, decode_tokens_per_second=50.0)
    demand = Demand(TokenEstimate(tokens, tokens, tokens), max_tokens=max_tokens)
    return SimpleNamespace(
        limits=Limits(first_byte_seconds=60.0),
        received_at=0.0,
        sent_at=0.0,
        paused_at=None,
        first_body_at=None,
        phase=Phase.WAIT,
        decision=a_decision(ONE, "w-0"),
        prepared=SimpleNamespace(demand=demand, request=SimpleNamespace(stream=stream, hides_reasoning=False)),
        state=SimpleNamespace(loads=SimpleNamespace(guidance=Guidance(workers={"w-0": pace}))),
    )


@pytest.mark.parametrize(
    ("exchange", "limit_seconds"),
    [
        (waiting(1_000), 60.0),
        (waiting(50_000), 150.0),
        (waiting(16_000_000), 300.0),
        (waiting(16_000_000, max_model_len=32_768), 98.304),
        (waiting(1_000, stream=False, max_tokens=2**40), 3 * (1.0 + 2_000.0)),
    ],
    ids=["short", "long", "more than it holds", "more than a small one holds", "an absurd output limit"],
)
def test_the_first_byte_is_waited_for_as_long_as_the_work_can_take(exchange: Any, limit_seconds: float) -> None:
    """Three times what is expected of the tokens that the worker can hold, and never less than what is configured."""
    assert overdue(exchange, limit_seconds - 0.1) is None
    error = overdue(exchange, limit_seconds + 0.1)

    assert error is not None
    assert error.reason == FIRST_BYTE


class Arriving:
    """What relays a stream; reading what has arrived shows an event at this instant."""

    def __init__(self, known_at: float, arrived_at: float) -> None:
        self.meter = StreamMeter(1, (0.1,))
        self.meter.last_event_at = known_at
        self.arrived_at = arrived_at
        self.scans = 0

    def scan(self) -> None:
        self.scans += 1
        self.meter.last_event_at = self.arrived_at


def answering(known_at: float, arrived_at: float) -> Any:
    """A stream that began at 1, with an event known of one instant and one of another not read yet."""
    exchange = waiting(1_000)
    exchange.limits = Limits(token_gap_seconds=10.0)
    exchange.phase, exchange.first_body_at, exchange.resumed_at = Phase.ANSWER, 1.0, None
    exchange.last_data_at, exchange.relay = arrived_at, Arriving(known_at, arrived_at)
    return exchange


@pytest.mark.parametrize(
    ("known_at", "arrived_at", "scans", "is_over"),
    [(95.0, 99.0, 0, False), (85.0, 99.0, 1, False), (85.0, 89.0, 1, True)],
    ids=["known to be well", "well, as it turns out", "silent"],
)
def test_what_has_arrived_is_read_only_where_it_decides(known_at: float, arrived_at: float, scans: int, is_over: bool) -> None:
    """A stream of which a sign within the limit is known is left alone; else its arrivals are read before it is judged."""
    exchange = answering(known_at, arrived_at)

    error = overdue(exchange, 100.0)

    assert (error is not None) == is_over
    assert exchange.relay.scans == scans
