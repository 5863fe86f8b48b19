"""Three gateways before the same four workers: they agree without talking, their figures add up, and a restart of each in turn
loses nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from simulator.faults import Faults
from simulator.server import WorkerSettings, start_worker
from tests.integration.gateway import running_gateway
from tests.integration.load import eventually
from tests.integration.prometheus import Prometheus, running_prometheus
from tests.integration.replicas import GATEWAYS, MODEL, WORKERS, Client, Replicas, Service, body_of, running_replicas

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=1)]

NAMES = {f"w-{number}" for number in range(WORKERS)}
BEGINNINGS = 27
DISTINCT = 480
BAND = (0.75, 1.25)  # of the mean: shares of the ring differ by a tenth, and 120 prompts a worker by another one
GRACE_SECONDS = 1.0  # of the drain: ten looks of the Service
LOOK_SECONDS = 0.1
CLIENTS = 8  # of each kind
STREAM_TOKENS = 40


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas() -> AsyncIterator[Replicas]:
    """Whose workers are four times as fast as an H100."""
    async with running_replicas(speed=4.0) as some:
        yield some


async def test_what_begins_alike_goes_to_one_worker_by_whichever_gateway(replicas: Replicas) -> None:
    """And finds there what another gateway's request has left in the prefix cache."""
    found: dict[int, set[str]] = {}
    for turn in range(GATEWAYS):  # each beginning by each gateway in turn
        asked = [
            ((turn + number) % GATEWAYS, body_of(f"Topic {number}.", f"Question {turn}?", 4)) for number in range(BEGINNINGS)
        ]
        for number, told in enumerate(await replicas.ask_all(asked, at_once=12)):
            found.setdefault(number, set()).add(told.worker)
            assert (told.cached_tokens > 100) == (turn > 0), told

    assert {number: len(workers) for number, workers in found.items()} == dict.fromkeys(range(BEGINNINGS), 1)
    assert set[str]().union(*found.values()) == NAMES


async def test_distinct_prompts_are_spread_evenly_by_all_gateways_together(replicas: Replicas) -> None:
    """Each worker gets its share of the tokens, within a quarter of the mean, from all gateways and from each alone roughly."""
    asked = [(number % GATEWAYS, body_of(f"Letter {number * number}.", "Reply.", 8)) for number in range(DISTINCT)]
    told = await replicas.ask_all(asked, at_once=24)

    tokens: Counter[str] = Counter()
    for each in told:
        tokens[each.worker] += each.prompt_tokens + each.completion_tokens
    mean = sum(tokens.values()) / WORKERS
    shares = {worker: tokens[worker] / mean for worker in sorted(NAMES)}
    print(f"\nshares of tokens over the mean: { ({worker: round(share, 3) for worker, share in shares.items()}) }")
    assert all(BAND[0] <= share <= BAND[1] for share in shares.values()), shares
    for gateway in range(GATEWAYS):
        assert {each.worker for each in told if each.gateway == gateway} == NAMES


async def number_of(prometheus: Prometheus, expr: str) -> float:
    """The one value of an instant query."""
    [series] = await prometheus.query(expr)
    return float(series["value"][1])


async def test_sums_over_gateways_are_what_clients_and_workers_counted(replicas: Replicas, tmp_path: Path) -> None:
    """By a real Prometheus that scrapes all of them: requests, tokens, cached ones, answers of each worker."""
    await replicas.ask_all([(n % GATEWAYS, body_of(f"Sum {n % 5}.", f"Of {n}.", 5)) for n in range(30)], at_once=6)
    targets = {
        "ridgeline": [gateway.observe_url.removeprefix("http://") for gateway in replicas.gateways],
        "vllm": [worker.listener.url.removeprefix("http://") for worker in replicas.workers],
    }
    told = replicas.told
    expected = {
        'sum(ridgeline_requests_total{outcome="ok"})': len(told),
        "sum(ridgeline_requests_total)": len(told),
        "sum(ridgeline_ttft_seconds_count)": len(told),
        "sum(ridgeline_prompt_tokens_total)": sum(each.prompt_tokens for each in told),
        "sum(vllm:prompt_tokens_total)": sum(each.prompt_tokens for each in told),
        "sum(ridgeline_completion_tokens_total)": sum(each.completion_tokens for each in told),
        "sum(vllm:generation_tokens_total)": sum(each.completion_tokens for each in told),
        "sum(ridgeline_cached_tokens_total)": sum(each.cached_tokens for each in told),
        "sum(vllm:prompt_tokens_cached_total)": sum(each.cached_tokens for each in told),
        "sum(ridgeline_in_flight_requests)": 0,
        # What each gateway says of a worker is said by all of them, and is not to be added up.
        "count(ridgeline_worker_up)": GATEWAYS * WORKERS,
        "sum(max by (worker) (ridgeline_worker_up))": WORKERS,
    }
    for worker, answers in Counter(each.worker for each in told).items():
        expected[f'sum(ridgeline_attempts_total{{worker="{worker}", result="answered"}})'] = answers
    for number, gateway in enumerate(replicas.gateways):
        own = f'{{instance="{gateway.observe_url.removeprefix("http://")}"}}'
        expected[f"sum(ridgeline_requests_total{own})"] = sum(each.gateway == number for each in told)
    async with running_prometheus(tmp_path, targets) as prometheus:
        found: dict[str, float | None] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                while found != expected:
                    await asyncio.sleep(0.3)
                    for expr in expected:
                        found[expr] = None
                        with suppress(ValueError):  # not scraped yet
                            found[expr] = await number_of(prometheus, expr)

    assert found == expected
    assert all(value > 0 for expr, value in expected.items() if "in_flight" not in expr)


async def test_a_worker_that_another_gateway_has_filled_gets_less_from_this_one() -> None:
    """By what the worker says of itself, within a scrape."""
    async with AsyncExitStack() as stack:
        urls = []
        for _ in range(2):
            worker, url = await start_worker(WorkerSettings(model=MODEL, gpu="h100-sxm", port=0))
            stack.push_async_callback(worker.cleanup)
            urls.append(url)
            if len(urls) == 1:
                await worker.apply(Faults(slow_factor=10.0))  # so that few tokens last for long
        named = [{"name": f"w-{number}", "url": url} for number, url in enumerate(urls)]
        configs = [
            {"models": [{"name": MODEL, "pools": [{"name": "default", "workers": workers, "policy": "least-load"}]}]}
            for workers in (named[:1], named)
        ]
        other = await stack.enter_async_context(running_gateway(configs[0]))
        replicas = Replicas([other], [])
        streams = [asyncio.create_task(replicas.ask(0, body_of("Fill", str(number), 500))) for number in range(8)]
        await other.metrics_when(lambda page: page.total("ridgeline_in_flight_requests") == 8)
        replicas.gateways.append(await stack.enter_async_context(running_gateway(configs[1])))
        async with asyncio.timeout(8):
            while True:  # requests that equals take in turns, until the worker has been asked
                told = [await replicas.ask(1, body_of("Few", str(number), 1)) for number in range(3)]
                if {each.worker for each in told} == {"w-1"}:
                    break
                await asyncio.sleep(0.2)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def test_a_restart_of_each_gateway_in_turn_loses_no_request() -> None:
    """Streams end whole, and no connection is refused, also for clients that keep theirs; homes stay what they were."""
    async with running_replicas(speed=0.5, drain_grace_seconds=GRACE_SECONDS, drain_seconds=20) as replicas:
        service = Service(replicas.gateways, LOOK_SECONDS)
        looking = asyncio.create_task(service.run())
        await eventually(lambda: len(service.ready) == GATEWAYS)
        bodies = [body_of(f"Restart {number}.", "Go on.", STREAM_TOKENS) for number in range(12)]
        clients = [Client(replicas, service, bodies, keeps=keeps) for keeps in (True, False) for _ in range(CLIENTS)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        clock = asyncio.get_running_loop().time
        spans = []  # SIGTERM to the end of the process
        back_at = []
        await asyncio.sleep(1)
        for number, gateway in enumerate(replicas.gateways):
            told_at = clock()
            await gateway.stop()
            spans.append((told_at, clock()))
            await gateway.start()
            await gateway.ready()
            await eventually(partial(service.ready.__contains__, number))
            back_at.append(clock())
        await asyncio.sleep(1)
        for client in clients:
            client.has_to_end = True
        await asyncio.gather(*tasks)
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        failures = [failure for client in clients for failure in client.failures]
        homes = [set[str]().union(*(client.homes.get(place, set()) for client in clients)) for place in range(len(bodies))]
        count = len(replicas.told)
        ends_at = clock() + 5
        records = [record for gateway in replicas.gateways for record in await gateway.records(1)]
        while len(records) < count and clock() < ends_at:
            await asyncio.sleep(0.1)
            records = [record for gateway in replicas.gateways for record in await gateway.records(1)]

    print(
        f"\n{count} streams in {max(each.ended_at for each in replicas.told) - replicas.told[0].began_at:.1f} s; "
        f"drained in {[round(end - begin, 1) for begin, end in spans]} s"
    )
    assert failures == []
    assert Counter(record["outcome"] for record in records) == {"ok": count}
    assert {record["request_id"] for record in records} == {each.request_id for each in replicas.told}
    assert [len(workers) for workers in homes] == [1] * len(bodies)
    assert service.draining_seen == set(range(GATEWAYS))
    for number, (began, ended) in enumerate(spans):
        own = [each for each in replicas.told if each.gateway == number]
        assert [each for each in own if each.began_at < began < each.ended_at], "no stream ran when it was told to end"
        assert [each for each in own if began < each.began_at < ended], "it refused while it was draining"
        assert [each for each in own if each.began_at > back_at[number]], "nobody came back to it"
