"""Caps and the queue before a simulated fleet."""

from __future__ import annotations

from math import inf

import pytest

from routing.topology import Model, Pool
from simulator.arrivals import Arrival
from simulator.engine.engine import Engine, EngineSettings
from simulator.virtual.admission import Sender, simulate_admission
from simulator.virtual.fleet import simulate
from simulator.virtual.routing import by_model, workers_named
from simulator.virtual.served import Served
from tests.simulator.engine_runs import GPU, a_prompt

MODEL = Model(
    index=0,
    name="m",
    aliases=(),
    pools=(Pool(index=0, model="m", name="default", workers=workers_named(["a", "b"]), policy="least-load"),),
)


def engines() -> list[Engine]:
    return [Engine(EngineSettings(**GPU)) for _ in range(2)]  # type: ignore[arg-type]


def arrivals(count: int, kind: str = "", at_seconds: float = 0.0) -> list[Arrival]:
    return [
        Arrival(at_seconds=at_seconds, prompt=a_prompt(100, f"{kind}{number}"), output_tokens=20, max_tokens=20, kind=kind)
        for number in range(count)
    ]


def most_at_once(served: list[Served], worker: int) -> int:
    """Requests whose answers overlapped, from first token to end."""
    changes = sorted(
        (instant or 0.0, change)
        for one in served
        if one.worker == worker
        for instant, change in ((one.first_token_at, 1), (one.ended_at, -1))
    )
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def test_without_caps_it_is_the_same_as_without_a_queue():
    """Every request is sent on arrival."""
    plain = simulate(engines(), arrivals(30), by_model(MODEL))

    assert simulate_admission(engines(), arrivals(30), MODEL) == plain


@pytest.mark.parametrize(("max_requests", "max_tokens"), [(3.0, inf), (inf, 360.0)])
def test_a_worker_has_no_more_than_its_cap(max_requests: float, max_tokens: float):
    """Three at once, by number or by tokens; everybody is served."""
    served = simulate_admission(engines(), arrivals(40), MODEL, max_requests=max_requests, max_tokens=max_tokens)

    assert all(one.ended_at is not None for one in served)
    assert [most_at_once(served, worker) for worker in (0, 1)] == [3, 3]


def test_a_small_key_does_not_wait_for_a_greedy_one():
    """With a queue in the gateway its request comes next; with everything in the engines it comes last."""
    both = [*arrivals(200, "greedy"), *arrivals(1, "small", at_seconds=0.05)]
    by_kind = lambda arrival: Sender(key=arrival.kind)  # noqa: E731

    capped = simulate_admission(engines(), both, MODEL, max_requests=2.0, sender_of=by_kind)
    shared = simulate_admission(engines(), both, MODEL, max_requests=2.0)

    ends = sorted(one.ended_at or 0.0 for one in capped)
    assert (capped[-1].ended_at or 0.0) <= ends[10]
    assert shared[-1].ended_at == max(one.ended_at or 0.0 for one in shared)


def test_a_large_request_keeps_one_worker_and_not_both():
    """While it waits for an empty worker, small ones go on at the other; it is served alone, and not last."""
    small, large = (
        arrivals(60),
        Arrival(at_seconds=0.01, prompt=a_prompt(900, "x"), output_tokens=5, max_tokens=5, kind="large"),
    )

    served = simulate_admission(engines(), [*small, large], MODEL, max_tokens=500.0)

    (big,) = (one for one in served if one.kind == "large")
    assert big.ended_at is not None
    assert big.first_token_at is not None
    during = [
        one for one in served if one is not big and (one.first_token_at or 0) > 0.2 and (one.ended_at or 0) < big.ended_at
    ]
    assert during
    assert big.ended_at < max(one.ended_at or 0.0 for one in served)
    assert all(
        (one.ended_at or 0.0) <= big.first_token_at or (one.first_token_at or 0.0) >= big.ended_at
        for one in served
        if one is not big and one.worker == big.worker
    )
