"""Requests find their worker: by their beginning, their session, their length; and other pools and ranks come into it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from tests.integration.answers import chat_answer, usage_of
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Script, Send, Wait

ANSWER = chat_answer("hi", usage=usage_of(5, 1))


def says_hi(_request: Received) -> Script:
    return [Send(ANSWER)]


def a_chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 10, **fields}


def pooled(*pools: Mapping[str, Any]) -> dict[str, Any]:
    return {"models": [{"name": "tiny", "pools": list(pools)}]}


@asynccontextmanager
async def workers(count: int, **pages: bytes) -> AsyncIterator[list[ScriptedWorker]]:
    """Workers that answer everything, and say of themselves what the pages hold by ``w0`` and so on."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(ScriptedWorker(says_hi)) for _ in range(count)]
        for number, worker in enumerate(found):
            worker.models_page = pages.get(f"w{number}")
        yield found


async def ask(gateway: Gateway, body: Mapping[str, Any], **headers: str) -> tuple[int, str, dict[str, Any]]:
    """Status, worker and answer."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.base_url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        return response.status, response.headers.get("x-ridgeline-worker", ""), await response.json()


async def homes(gateway: Gateway, bodies: Sequence[Mapping[str, Any]], **headers: str) -> list[str]:
    return [(await ask(gateway, body, **headers))[1] for body in bodies]


async def test_two_gateways_send_equal_prompts_to_equal_workers():
    """Replicas with the same configuration agree without talking, also with several processes and in the second turn."""
    async with workers(3) as three:
        named = [{"name": f"w-{number}", "url": worker.url} for number, worker in enumerate(three)]
        config = pooled({"name": "all", "policy": "prefix-affinity", "workers": named})
        async with running_gateway(config) as one, running_gateway(config, processes=2) as other:
            firsts = [a_chat(f"question {number}") for number in range(24)]
            seconds = [
                {
                    **first,
                    "messages": [*first["messages"], {"role": "assistant", "content": "hi"}, {"role": "user", "content": "?"}],
                }
                for first in firsts
            ]
            found = await homes(one, firsts)
            assert found == await homes(other, firsts) == await homes(other, seconds)
            assert set(found) == {"w-0", "w-1", "w-2"}

            reasons = Counter(record["route_reason"] for record in await one.records(24))
            assert reasons == {"affinity": 24}
            counted = await one.metrics_when(
                lambda metrics: sum(sample.value for sample in metrics["ridgeline_routes_total"]) == 24
            )
            assert {
                (sample.labels["policy"], sample.labels["reason"])
                for sample in counted["ridgeline_routes_total"]
                if sample.value
            } == {("prefix-affinity", "affinity")}


async def test_a_session_stays_with_its_worker():
    """Requests of one session go to one worker, whatever they say; the name itself reaches no record."""
    async with workers(3) as three:
        pool = {"name": "all", "policy": "session", "session_header": "x-session", "workers": [each.url for each in three]}
        async with running_gateway(pooled(pool)) as gateway:
            sessions = [
                set(await homes(gateway, [a_chat(f"{turn} of {name}") for turn in range(4)], **{"x-session": f"secret-{name}"}))
                for name in range(12)
            ]
            assert all(len(each) == 1 for each in sessions)
            assert len(set().union(*sessions)) == 3
            by_user = set(await homes(gateway, [a_chat(f"turn {turn}", user="ann") for turn in range(4)]))
            assert len(by_user) == 1
            records = await gateway.records(52)
            assert {record["route_reason"] for record in records} == {"session"}
            assert "secret-" not in json.dumps(records)


async def test_load_is_bounded_however_alike_prompts_are():
    """Many long requests with one beginning at once do not all wait at one worker."""
    async with workers(2) as two:
        for worker in two:
            worker.script = [Wait(0.5), Send(ANSWER)]
        pool = {"name": "all", "policy": "prefix-affinity", "workers": [each.url for each in two]}
        async with running_gateway(pooled(pool)) as gateway:
            found = await asyncio.gather(*(ask(gateway, a_chat("alike", max_tokens=5000)) for _ in range(20)))
            counts = Counter(worker for _, worker, _ in found)
            assert len(counts) == 2
            assert min(counts.values()) >= 7
            assert {record["route_reason"] for record in await gateway.records(20)} == {"affinity", "load_bound"}


async def test_workers_say_how_much_they_hold():
    """Control learns it; a request that no worker can hold is refused with the numbers, one that one can hold goes there."""
    pages = {
        f"w{number}": json.dumps({"data": [{"id": "tiny", "max_model_len": 1000 * (number + 1)}]}).encode() for number in (0, 1)
    }
    async with workers(2, **pages) as (small, large):
        pool = {"name": "all", "policy": "round-robin", "workers": [small.url, large.url]}
        async with running_gateway(pooled(pool)) as gateway:
            async with asyncio.timeout(15):
                while (answer := await ask(gateway, a_chat("hi", max_tokens=2500)))[0] != 400:  # not learned yet
                    continue
            status, _, error = answer
            assert (status, error["error"]["code"]) == (400, "context_length_exceeded")
            assert "2000 tokens" in error["error"]["message"]
            assert "2500 tokens" in error["error"]["message"]
            before = len(small.requests)
            assert {(await ask(gateway, a_chat("hi", max_tokens=1500)))[0] for _ in range(4)} == {200}
            assert len(small.requests) == before


async def test_a_pool_that_is_down_overflows_where_that_is_configured():
    """The request is answered by the other pool, and says and counts that it is a stranger there."""
    async with workers(2) as (short, long):
        pools = (
            {"name": "short", "max_total_tokens": 1000, "overflow_to": "long", "workers": [short.url]},
            {"name": "long", "max_total_tokens": 9000, "workers": [long.url]},
        )
        async with running_gateway(pooled(*pools)) as gateway:
            assert (await ask(gateway, a_chat("hi")))[0] == 200
            await short.stop()
            assert (await ask(gateway, a_chat("hi")))[0] == 200
            first, second = await gateway.records(2)
            assert [first["pool"], first["pool_reason"]] == ["short", "context_length"]
            assert [second["pool"], second["pool_reason"]] == ["long", "overflow"]
            counted = await gateway.metrics_when(
                lambda metrics: any(
                    sample.value == 1
                    for sample in metrics["ridgeline_routes_total"]
                    if (sample.labels["pool"], sample.labels["reason"]) == ("long", "overflow")
                )
            )
            assert all(sample.value == 0 for sample in counted["ridgeline_in_flight_tokens"])


async def test_requests_name_a_rank():
    """With ranks configured each request names one, equal beginnings the same; a client's own choice does not pass."""
    async with workers(1) as (worker,):
        pool = {
            "name": "all",
            "policy": "prefix-affinity",
            "workers": [{"url": worker.url, "data_parallel_ranks": 4}],
        }
        async with running_gateway(pooled(pool)) as gateway:
            for _ in range(2):
                await homes(gateway, [a_chat(f"question {number}") for number in range(16)], **{"X-Data-Parallel-Rank": "9"})
            ranks = [request.headers["x-data-parallel-rank"] for request in worker.requests]
            assert ranks[:16] == ranks[16:]
            assert set(ranks) == {"0", "1", "2", "3"}


async def test_without_ranks_no_rank_is_named():
    """A client's own header does not reach a worker that chooses by itself."""
    async with workers(1) as (worker,), running_gateway(workers=[worker.url]) as gateway:
        await ask(gateway, a_chat("hi"), **{"X-Data-Parallel-Rank": "1"})
        assert "x-data-parallel-rank" not in worker.requests[0].headers
