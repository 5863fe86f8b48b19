"""The gateway's token counters are the worker's own, for requests that finished.

Two differences are known and stated here: vLLM counts a prompt once for each choice, and its usage once; and the usage of a
batch of prompts has the cached tokens of one of them, so the gateway calls them unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.integration.gateway import Gateway
from tests.integration.scene import events_of
from tests.vllm.answers import USAGE, ask, chat, completion, new_id, record_of, whole
from tests.vllm.worker import CACHED, COMPLETION, PROMPT, RealWorker, growth

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKERS = {"prompt": PROMPT, "completion": COMPLETION, "cached": CACHED}
OURS = {
    "prompt": "ridgeline_prompt_tokens_total",
    "completion": "ridgeline_completion_tokens_total",
    "cached": "ridgeline_cached_tokens_total",
    "cache_known_prompt": "ridgeline_cache_known_prompt_tokens_total",
    "cache_unknown_requests": "ridgeline_cache_unknown_requests_total",
}
BLOCK_TOKENS = 128  # vLLM caches whole blocks, which are that large on a CPU
LONG = "know the people that come down to the water and make a long sound " * 30  # 30 × 14 words: three blocks


@dataclass(slots=True)
class Counted:
    """What the counters of both sides grew by."""

    worker: dict[str, float] = field(default_factory=dict)
    ours: dict[str, float] = field(default_factory=dict)


@asynccontextmanager
async def counting(gateway: Gateway, worker: RealWorker, requests: int) -> AsyncIterator[Counted]:
    """Read all counters before and after; ``requests`` are made within, and finish."""
    counted = Counted()
    before, ours_before = await worker.quiet(), await gateway.metrics()
    yield counted
    finished = ours_before.total("ridgeline_requests_total", outcome="ok") + requests
    ours = await gateway.metrics_when(lambda page: page.total("ridgeline_requests_total", outcome="ok") == finished, 10.0)
    succeeded = before.total("vllm:request_success_total") + requests
    after = await worker.metrics_when(lambda page: page.total("vllm:request_success_total") >= succeeded)
    counted.worker, counted.ours = growth(before, after, WORKERS), growth(ours_before, ours, OURS)


async def test_finished_requests_are_counted_as_the_worker_counts_them(gateway: Gateway, worker: RealWorker) -> None:
    """Prompt, completion and cached tokens of streamed and plain requests, by both endpoints, are the worker's own."""
    bodies: list[dict[str, Any]] = [
        chat("one thing"),
        chat("two things", stream=True),
        chat("three things", 40, stream=True, **USAGE),
        completion("number four", stream=True),
        completion("number five", 3),
        chat(f"{LONG} six", 2, stream=True),
        chat(f"{LONG} seven", 2),
    ]
    async with counting(gateway, worker, len(bodies)) as counted:
        for body in bodies:
            assert (await ask(gateway.base_url, body)).status == 200

    assert {name: counted.ours[name] for name in WORKERS} == counted.worker
    assert counted.worker["cached"] >= BLOCK_TOKENS, "the two long prompts share their beginning"
    assert counted.ours["cache_known_prompt"] == counted.ours["prompt"]
    assert counted.ours["cache_unknown_requests"] == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_warm_prompt_has_the_cached_tokens_that_the_worker_reports(
    gateway: Gateway, worker: RealWorker, stream: bool
) -> None:
    """The first call of a prompt has 0 cached tokens, the second as many as the worker counted and told, asked or not."""
    body = chat(f"{'streamed' if stream else 'plain'} {LONG}", 4, **({"stream": True, **USAGE} if stream else {}))
    records, told = [], []
    for _ in range(2):
        request_id = new_id()
        async with counting(gateway, worker, 1) as counted:
            answer = await ask(gateway.base_url, body, request_id)
        usage = events_of(answer.body)[-2]["usage"] if stream else whole(answer)["usage"]
        records.append(await record_of(gateway, request_id))
        told.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert counted.ours["cached"] == counted.worker["cached"] == told[-1] == records[-1]["cached_tokens"]

    assert told[0] == 0
    assert told[1] == records[1]["prompt_tokens"] // BLOCK_TOKENS * BLOCK_TOKENS > 0
    assert [record["cached_inferred"] for record in records] == [False, False]

    if stream:
        del body["stream_options"]
        request_id = new_id()
        answer = await ask(gateway.base_url, body, request_id)
        assert b"usage" not in answer.body
        assert (await record_of(gateway, request_id))["cached_tokens"] == told[1]


async def test_the_choices_of_a_prompt(gateway: Gateway, worker: RealWorker) -> None:
    """Tokens of all choices are counted; the prompt is counted once, as usage has it, while vLLM counts it for each choice."""
    async with counting(gateway, worker, 1) as counted:
        await ask(gateway.base_url, chat("two answers", 8, n=2, temperature=1, seed=3, stream=True))

    assert counted.ours["completion"] == counted.worker["completion"] == 16
    assert 2 * counted.ours["prompt"] == counted.worker["prompt"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_batch_of_prompts(gateway: Gateway, worker: RealWorker, stream: bool) -> None:
    """Prompts and completions are summed; cached tokens are unknown, because usage has those of one prompt only."""
    prompts = [f"{number} {LONG}" for number in range(2)]
    for prompt in prompts:
        assert (await ask(worker.url, completion(prompt, 1))).status == 200
    request_id = new_id()
    async with counting(gateway, worker, 1) as counted:
        await ask(gateway.base_url, completion(prompts, 5, stream=stream), request_id)
    record = await record_of(gateway, request_id)

    assert counted.ours["prompt"] == counted.worker["prompt"]
    assert counted.ours["completion"] == counted.worker["completion"] == 10
    assert (counted.ours["cached"], counted.ours["cache_unknown_requests"], record["cached_tokens"]) == (0, 1, None)


async def test_many_streams_at_once_are_counted_exactly(gateway: Gateway, worker: RealWorker) -> None:
    """Of 32 streams at once, half of which ask for usage, every token is counted once, and usage reaches who asked."""
    bodies = [chat(f"stream {number}", 20 + number, stream=True, **(USAGE if number % 2 else {})) for number in range(32)]
    ids = [new_id() for _ in bodies]
    async with counting(gateway, worker, len(bodies)) as counted:
        answers = await asyncio.gather(
            *(ask(gateway.base_url, body, request_id) for body, request_id in zip(bodies, ids, strict=True))
        )
    records = [await record_of(gateway, request_id) for request_id in ids]

    assert [b'"usage"' in answer.body for answer in answers] == [bool(number % 2) for number in range(32)]
    assert [record["completion_tokens"] for record in records] == [body["max_tokens"] for body in bodies]
    assert {record["outcome"] for record in records} == {"ok"}
    assert {name: counted.ours[name] for name in WORKERS} == counted.worker
    assert counted.ours["prompt"] == sum(record["prompt_tokens"] for record in records)
    assert (await gateway.metrics()).total("ridgeline_in_flight_requests") == 0
