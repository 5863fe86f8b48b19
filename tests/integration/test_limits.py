"""Requests through a gateway and simulated workers, held against the limits of the GPU that those stand for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from tests.chaos.workers import MODEL, SimulatedWorker, simulated_workers
from tests.integration.gateway import Gateway, running_gateway

pytestmark = [pytest.mark.alone, pytest.mark.asyncio(loop_scope="module")]
WORKERS = ("w-0", "w-1")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[tuple[Gateway, dict[str, SimulatedWorker]]]:
    """Two workers that take what an H100 is expected to, and a gateway that knows what they are."""
    options = ("--gpu", "h100-sxm", "--enable-prompt-tokens-details")
    workers = {name: SimulatedWorker(name, port=0, options=options) for name in WORKERS}
    async with simulated_workers(*workers.values()):
        pool = {
            "name": "all",
            "gpu": "h100-sxm",
            "policy": "round-robin",
            "workers": [{"name": name, "url": worker.url} for name, worker in workers.items()],
        }
        async with running_gateway({"models": [{"name": MODEL, "pools": [pool]}]}) as gateway:
            yield gateway, workers


async def ask(gateway: Gateway, count: int, *, streams: bool, tokens: int = 24, at_once: int = 4) -> None:
    """Different short questions."""
    places = asyncio.Semaphore(at_once)

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        body = {
            "model": MODEL,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": streams,
            "messages": [{"role": "user", "content": f"Question {number} of {count}: why?"}],
        }
        async with places, session.post(gateway.base_url + "/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            await answer.read()

    async with aiohttp.ClientSession(trust_env=False) as session:
        await asyncio.gather(*(one(session, number) for number in range(count)))


async def test_streams_and_plain_requests_have_their_limits(scene):
    """The log line of each has floor, reference and expected; nothing is faster than its floor, and nothing deviates."""
    gateway, _ = scene
    await ask(gateway, 8, streams=True)
    await ask(gateway, 8, streams=False)

    records = (await gateway.records(16))[-16:]
    streams, plain = [one for one in records if one["stream"]], [one for one in records if not one["stream"]]
    assert len(streams) == len(plain) == 8
    for one in streams:
        assert 0 < one["tpot_floor_seconds"] <= one["tpot_reference_seconds"] < one["tpot_expected_seconds"]
        assert one["tpot_floor_seconds"] < one["tpot_seconds"]
        assert one["ttft_floor_seconds"] < one["upstream_ttft_seconds"]
    for one in plain:
        assert 0 < one["e2e_floor_seconds"] <= one["e2e_reference_seconds"] < one["e2e_expected_seconds"]
        assert one["e2e_floor_seconds"] < one["e2e_seconds"]
    assert [one["deviations"] for one in records] == [[]] * 16


async def test_what_ran_beside_a_request_is_known(scene):
    """Of eight at once at two workers, each had about three others beside it."""
    gateway, _ = scene
    before = len([line for line in gateway.log_lines() if "outcome" in line])
    await ask(gateway, 16, streams=True, tokens=60, at_once=8)

    records = (await gateway.records(before + 16))[before:]
    others = [one["beside_decode_requests"] for one in records]
    assert 1.5 < sum(others) / len(others) < 3.5
    assert max(others) < 8


async def test_a_slow_worker_is_named_by_its_requests(scene):
    """Five times slower than the other one: flagged, with its pace as the cause, in the log line and in the metrics."""
    gateway, workers = scene
    await ask(gateway, 40, streams=True)
    await workers["w-1"].set_faults({"slow_factor": 5})
    try:
        before = len([line for line in gateway.log_lines() if "outcome" in line])
        await ask(gateway, 60, streams=True)
        records = (await gateway.records(before + 60))[before:]
    finally:
        await workers["w-1"].set_faults({})

    slow = [one for one in records if one["worker"] == "w-1"][-6:]
    assert all("tpot" in one["deviations"] for one in slow)
    assert {one["causes"][0][0] for one in slow} <= {"slower_than_peers", "slower_than_itself"}
    assert not any(one["deviations"] for one in records if one["worker"] == "w-0")
    metrics = await gateway.metrics_when(lambda page: page.total("ridgeline_deviations_total", figure="tpot") >= 6)
    assert metrics.value("ridgeline_worker_attained_ratio", worker="w-1", figure="tpot") < 0.5
    assert metrics.value("ridgeline_worker_attained_ratio", worker="w-0", figure="tpot") > 0.7


async def test_calibrations_can_be_seen(scene):
    """What was learned of each worker is shown on the admin listener; accepting needs a worker that is known."""
    gateway, _ = scene
    status, text = await gateway.get(gateway.admin_url + "/api/calibrations")
    assert status == 200
    assert '"w-0"' in text
    status, text = await gateway.get(gateway.admin_url + "/api/advice")
    assert (status, list(json.loads(text))) == (200, [f"{MODEL}/all"])

    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(gateway.admin_url + "/api/calibrations/nobody/accept") as answer,
    ):
        assert answer.status == 404
        assert "nobody" in (await answer.json())["error"]


async def ask_with(gateway: Gateway, system: str, count: int, **fields: object) -> None:
    """Short questions under one system prompt, one after another."""
    async with aiohttp.ClientSession(trust_env=False) as session:
        for number in range(count):
            messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Question {number}?"}]
            body = {"model": MODEL, "max_tokens": 2, "messages": messages, **fields}
            async with session.post(gateway.base_url + "/v1/chat/completions", json=body) as answer:
                assert answer.status == 200
                await answer.read()


async def test_a_system_prompt_that_changes_is_found(scene):
    """A blank at its end, then a clock at its start: each told within ten requests, with place and cost; salt is no drift."""
    gateway, _ = scene
    quiet = await gateway.metrics_when(lambda page: page.total("ridgeline_in_flight_requests") == 0)
    before = int(quiet.total("ridgeline_requests_total", endpoint="chat"))
    system = " ".join(f"Rule {number}: be kind to customer {number * 7}." for number in range(180))
    await ask_with(gateway, system, 30)
    for number in range(3):
        await ask_with(gateway, system, 1, cache_salt=f"mine-{number}")
    await ask_with(gateway, system + " ", 10)
    for number in range(10):
        await ask_with(gateway, f"It is 12:{number:02d}. {system}", 1)

    records = (await gateway.records(before + 53))[before + 30 :]
    assert [one["cache_lost"] for one in records[:3]] == ["salted"] * 3
    assert all(one["expected_cached_tokens"] for one in records[:3])
    assert len({one["prefix_hash"] for one in records}) == 1 + 1 + 10
    await gateway.metrics_when(lambda page: page.total("ridgeline_prefix_drift_total") == 2)
    _, text = await gateway.get(gateway.admin_url + "/api/drifts")
    end, start = sorted(json.loads(text), key=lambda drift: -drift["position_bytes"])
    assert abs(end["position_bytes"] - len(system)) <= 64
    assert (end["kind"], end["change_bytes"], end["requests"], end["texts"]) == ("inserted", 1, 10, 1)
    assert (start["kind"], start["position_bytes"], start["texts"]) == ("inserted", 0, 10)
    prompt = records[-1]["prompt_tokens"]
    assert 0.8 * 10 * (prompt - 40) < start["missed_tokens"] <= 10 * prompt
    assert start["missed_seconds"] > end["missed_seconds"]
    assert "has changed: inserted near byte" in gateway.stderr
