"""Prompts that the choice of a pool depends on are counted first, and whatever goes wrong there is no error of the client's."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.answers import chat_answer, plain, usage_of
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.raw_client import RawClient, request_bytes
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Hang, Send, Step, Until
from tests.tokenizers_made import a_tokenizer_file

pytestmark = [pytest.mark.integration, pytest.mark.asyncio, pytest.mark.flaky(reruns=2)]

CHAT = "/v1/chat/completions"
SHORT, LONG = 4000, 100_000


def answering(request: Received) -> list[Step]:
    return (
        [Send(plain(200, {"count": 3000, "tokens": []}))]
        if request.path == "/tokenize"
        else [Send(chat_answer("ok", usage=usage_of(3000, 1, 0)))]
    )


def silent_on_tokenize(request: Received) -> list[Step]:
    return [Hang()] if request.path == "/tokenize" else answering(request)


class Two:
    """A gateway with a short and a long pool of one worker each."""

    def __init__(self, gateway: Gateway, short: ScriptedWorker, long: ScriptedWorker) -> None:
        self.gateway = gateway
        self.short = short
        self.long = long

    def request(self, text: str, request_id: str) -> bytes:
        body = {"model": "tiny", "max_tokens": 10, "messages": [{"role": "user", "content": text}]}
        return request_bytes("POST", CHAT, body, [("X-Request-Id", request_id)])

    async def ask(self, text: str, request_id: str) -> dict[str, Any]:
        """The record of a request that was answered."""
        async with await RawClient.connect(self.gateway.base_url) as client:
            await client.send(self.request(text, request_id))
            answer = await client.read_answer(20)
        assert answer.status == 200, answer
        return await self.record(request_id)

    async def record(self, request_id: str) -> dict[str, Any]:
        ends_at = time.monotonic() + 10
        while time.monotonic() < ends_at:
            found = [line for line in self.gateway.log_lines() if line.get("request_id") == request_id]
            if found:
                assert len(found) == 1
                return found[0]
            await asyncio.sleep(0.02)
        raise TimeoutError(request_id)

    async def reload(self, models: list[dict[str, Any]]) -> None:
        """Put other models in force, everywhere."""
        self.gateway.config["models"] = models
        self.gateway.config_path.write_text(yaml.safe_dump(self.gateway.config))
        self.gateway.supervisor.send_signal(signal.SIGHUP)
        await self.gateway.metrics_when(lambda metrics: metrics.value("ridgeline_reloads_total", result="ok") == 1, 10)
        await asyncio.sleep(0.7)  # serving processes look for news twice a second

    async def until_counted(self, text: str) -> None:
        """The counting process takes a moment to load."""
        for number in range(100):
            if (await self.ask(text, f"warm-{number}"))["count_result"] == "counted":
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(self.gateway.stderr)


@asynccontextmanager
async def two_pools(tokenizer: object, script: Any = answering) -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        short, long = [await stack.enter_async_context(ScriptedWorker(script)) for _ in range(2)]
        pools = [
            {"name": "short", "max_total_tokens": SHORT, "workers": [short.url]},
            {"name": "long", "max_total_tokens": LONG, "workers": [long.url]},
        ]
        config = {"models": [{"name": "tiny", "tokenizer": tokenizer, "pools": pools}]}
        gateway = await stack.enter_async_context(running_gateway(config))
        yield Two(gateway, short, long)


# Estimated at 2,700 to 5,100 tokens, likely 3,700; the tokenizer made here has two a word.
NEAR = "hello " * 3500


async def test_a_prompt_near_a_boundary_is_counted(tmp_path: Path):
    """The estimate would likely take the short pool, the count does not."""
    async with two_pools({"file": str(a_tokenizer_file(tmp_path)), "timeout_seconds": 5}) as two:
        await two.until_counted(NEAR)

        near, far = await two.ask(NEAR, "near"), await two.ask("hello", "far")

        assert (near["pool"], near["count_result"]) == ("long", "counted")
        assert near["counted_prompt_tokens"] == pytest.approx(7000, abs=50)
        assert near["estimated_prompt_tokens"] < 4000
        assert 0 < near["count_seconds"] < 5
        assert near["overhead_seconds"] < 0.1
        assert (far["pool"], far["count_result"], far["count_seconds"]) == ("short", None, None)
        metrics = await two.gateway.metrics()
        assert metrics.value("ridgeline_exact_counts_total", result="counted", pool="long") >= 2


async def test_special_tokens_and_long_runs_are_ordinary(tmp_path: Path):
    """They are routed like any text, and no stream waits for them."""
    async with two_pools({"file": str(a_tokenizer_file(tmp_path)), "timeout_seconds": 5}) as two:
        await two.until_counted(NEAR)
        for number, text in enumerate(
            ("<|endoftext|><|im_start|>" * 160, "a" * 12_000, "^" * 5000, "\n" * 4000, "a" * 5_000_000)
        ):
            record = await two.ask(text, f"odd-{number}")
            assert record["outcome"] == "ok"
            assert record["count_result"] in (None, "counted")


async def test_without_a_count_the_larger_pool_is_taken(tmp_path: Path):
    """A worker that does not answer in time, and a tokenizer that is not there, cost the request nothing but its place."""
    async with two_pools({"from_worker": True, "timeout_seconds": 0.2}, silent_on_tokenize) as two:
        record = await two.ask(NEAR, "late")
        assert (record["pool"], record["count_result"]) == ("long", "timeout")
        assert 0.19 < record["count_seconds"] < 2
    async with two_pools({"file": str(tmp_path / "nothing.json")}) as two:
        record = await two.ask(NEAR, "never")
        assert (record["pool"], record["count_result"]) == ("long", "busy")


async def test_a_worker_counts_with_its_template():
    """What it says is exact: the short pool holds it, which the estimate could not promise."""
    async with two_pools("from-worker") as two:
        record = await two.ask(NEAR, "asked")

        assert (record["pool"], record["count_result"], record["counted_prompt_tokens"]) == ("short", "counted", 3000)
        [question] = [request for request in two.long.requests if request.path == "/tokenize"]
        assert json.loads(question.body)["messages"][0]["role"] == "user"


@pytest.mark.parametrize("count", [-5, 10**30])
async def test_an_absurd_count_is_none(count: int):
    """Its request goes on with the most that was estimated, and has its record."""

    def absurd(request: Received) -> list[Step]:
        return [Send(plain(200, {"count": count}))] if request.path == "/tokenize" else answering(request)

    async with two_pools("from-worker", absurd) as two:
        record = await two.ask(NEAR, "asked")

        assert (record["pool"], record["count_result"], record["counted_prompt_tokens"]) == ("long", "failed", None)


async def test_a_client_may_leave_while_its_prompt_is_counted():
    """Its record says so, no worker gets it, and nothing stays in flight."""
    async with two_pools({"from_worker": True, "timeout_seconds": 30}, silent_on_tokenize) as two:
        client = await RawClient.connect(two.gateway.base_url)
        await client.send(two.request(NEAR, "gone"))
        await two.long.received()
        client.reset()

        record = await two.record("gone")

        assert (record["outcome"], record["phase"], record["attempts"]) == ("client_gone", "queue", 0)
        await two.gateway.metrics_when(
            lambda metrics: all(sample.value == 0 for sample in metrics["ridgeline_in_flight_requests"]), 5
        )
        assert not [request for request in (*two.short.requests, *two.long.requests) if request.path == CHAT]


@pytest.mark.parametrize("stays", [True, False])
async def test_a_reload_while_a_prompt_is_counted(stays: bool):
    """What it goes to is a worker of the configuration that is in force by then; a model that is gone is told as such."""
    may_count = asyncio.Event()

    def late_on_tokenize(request: Received) -> list[Step]:
        return [Until(may_count), *answering(request)] if request.path == "/tokenize" else answering(request)

    async with two_pools({"from_worker": True, "timeout_seconds": 30}, late_on_tokenize) as two:
        async with await RawClient.connect(two.gateway.base_url) as client:
            await client.send(two.request(NEAR, "counted"))
            await two.long.received()
            left = [{"name": "tiny" if stays else "other", "pools": [{"name": "long", "workers": [two.long.url]}]}]
            await two.reload(left)
            may_count.set()
            answer = await client.read_answer(20)

        record = await two.record("counted")

        assert (answer.status, record["worker"]) == ((200, two.long.url.removeprefix("http://")) if stays else (404, None))
        assert not [request for request in two.short.requests if request.path == CHAT]
        await two.gateway.metrics_when(
            lambda metrics: all(sample.value == 0 for sample in metrics["ridgeline_in_flight_requests"]), 5
        )


async def test_the_estimate_is_learned_from_answers(tmp_path: Path):
    """After some answers the serving process estimates as the worker counts."""

    def counting(request: Received) -> list[Step]:
        said = sum(len(message["content"]) for message in json.loads(request.body)["messages"]) if request.path == CHAT else 0
        return [Send(chat_answer("ok", usage=usage_of(said // 2, 1, 0)))]

    async with two_pools(None, counting) as two:
        for number in range(60):
            first = await two.ask("plain words of some length " * (10 + number * 3), f"teach-{number}")
            if number == 0:
                before = first
        await asyncio.sleep(2)
        after = await two.ask("plain words of some length " * 120, "taught")

    assert before["estimated_prompt_tokens"] < 0.7 * before["prompt_tokens"]
    assert after["estimated_prompt_tokens"] == pytest.approx(after["prompt_tokens"], rel=0.15)
