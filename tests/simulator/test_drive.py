"""The driver of an engine: when a request comes to the engine's queue."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from simulator.drive import Driver, Ticket
from simulator.engine.engine import Engine, EngineSettings
from tests.simulator.engine_runs import GPU, TIMER, a_prompt


def a_driver(overhead_seconds: float, speed: float = 1.0) -> Driver:
    timer = replace(TIMER, request_overhead_seconds=overhead_seconds)
    settings = EngineSettings(**{**GPU, "timer": timer, "ranks": 2})
    return Driver(Engine(settings), clock=asyncio.get_running_loop().time, speed=speed)


async def test_a_request_without_overhead_is_queued_at_once():
    """Nothing lies between the two."""
    driver = a_driver(0.0)
    driver.submit(a_prompt(10), 1, "stop", lambda _: None)

    assert driver.engine.waiting == 1


async def test_the_overhead_of_a_request_comes_before_the_queue():
    """It is not there yet and may leave meanwhile; speed shortens the overhead, and it is part of the waiting time."""
    driver = a_driver(0.2, speed=20.0)
    ended = asyncio.Event()
    stays = driver.submit(a_prompt(10), 1, "stop", lambda _: ended.set())
    leaves = driver.submit(a_prompt(10), 1, "stop", lambda _: None)
    driver.withdraw(leaves)
    assert driver.engine.waiting == 0
    running = asyncio.create_task(driver.run())
    async with asyncio.timeout(5):
        await ended.wait()
    running.cancel()

    assert stays.scheduled_at is not None
    assert stays.scheduled_at - stays.arrived_at >= 0.009
    assert [rank.totals.steps for rank in driver.engine.ranks] == [1, 0]


async def test_others_in_flight_lengthen_the_overhead():
    """Each of those that are not answered yet adds its part, as long as they are there."""
    timer = replace(TIMER, stream_overhead_seconds=0.05)
    driver = Driver(Engine(EngineSettings(**{**GPU, "timer": timer})), clock=asyncio.get_running_loop().time)
    alone = driver.submit(a_prompt(10), 1, "stop", lambda _: None)
    beside = driver.submit(a_prompt(10), 1, "stop", lambda _: None)
    assert driver.engine.waiting == 1
    driver.withdraw(alone)
    driver.withdraw(beside)
    driver.submit(a_prompt(10), 1, "stop", lambda _: None)

    assert driver.engine.waiting == 1


async def test_ranks_with_shared_experts_step_together():
    """A short prompt has its token when the long one beside it on another rank has its own, not before."""
    engine = Engine(EngineSettings(**{**GPU, "ranks": 2, "steps_together": True}))
    driver = Driver(engine, clock=asyncio.get_running_loop().time, speed=10.0)
    ended = asyncio.Event()
    short = driver.submit(a_prompt(10), 1, "stop", lambda _: None)
    long = driver.submit(a_prompt(2000, "b"), 1, "stop", lambda _: ended.set())
    running = asyncio.create_task(driver.run())
    async with asyncio.timeout(5):
        await ended.wait()
    running.cancel()

    assert (short.rank, long.rank) == (0, 1)
    assert short.first_token_at == long.first_token_at
    assert short.first_token_at - short.arrived_at >= 0.02


async def test_what_could_never_run_is_refused_before_the_overhead():
    """The one who asks learns it at once."""
    with pytest.raises(ValueError, match="do not fit the KV cache"):
        a_driver(1.0).submit(a_prompt(10), 20_000, "stop", lambda _: None)


async def test_catching_up_shortens_no_request_that_came_meanwhile(monkeypatch):
    """The loop wakes 30 ms late, and a request came 25 ms late: its prefill takes its time from then on."""
    now, hand_over = 0.0, asyncio.sleep
    driver = Driver(Engine(EngineSettings(**GPU)), clock=lambda: now)
    came: list[Ticket] = []

    async def sleep_too_long(seconds: float) -> None:
        nonlocal now
        now += seconds
        if driver.engine.running and not came:
            now += 0.025
            came.append(driver.submit(a_prompt(10, "b"), 1, "stop", lambda _: ended.set()))
            now += 0.005
        await hand_over(0)

    monkeypatch.setattr("simulator.drive.asyncio.sleep", sleep_too_long)
    ended = asyncio.Event()
    driver.submit(a_prompt(10), 50, "stop", lambda _: None)
    running = asyncio.create_task(driver.run())
    async with asyncio.timeout(5):
        await ended.wait()
    running.cancel()

    (late,) = came
    assert late.first_token_at is not None
    assert late.first_token_at - late.arrived_at == pytest.approx(0.011, abs=0.0002)
    assert driver.lag.lost_seconds == pytest.approx(0.025)
