"""A real vLLM held against limits: its ratios settle near 1 once it is known, and what loses a hit is told apart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from statistics import median
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.integration.gateway import Gateway, running_gateway
from tests.vllm.answers import ask, chat, new_id, record_of
from tests.vllm.worker import RealWorker, Workers

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

# Far above what two cores do, so that no floor is beaten; how far below it they stay is what calibration finds.
CPU = {
    "name": "cpu",
    "dense_flop_per_second": {"bf16": 1.0e12, "fp32": 1.0e12},
    "memory_bytes_per_second": 5.0e10,
    "memory_bytes": 4.0e9,
}
SHAPE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "torch_dtype": "float32",
}
SYSTEM = "know the people that come down to the water and make a long sound " * 30


@pytest.fixture(scope="module")
def resettable(workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealWorker]:
    """A vLLM of this file's own, whose cache can be emptied."""
    log = tmp_path_factory.mktemp("resettable") / "log.txt"
    one = RealWorker(log, environ={"VLLM_SERVER_DEV_MODE": "1"})
    yield one
    one.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judged(resettable: RealWorker) -> AsyncIterator[Gateway]:
    """A gateway that has been told what the worker is."""
    pool = {"name": "all", "gpu": CPU, "workers": [{"name": "real", "url": resettable.url}]}
    async with running_gateway({"models": [{"name": "tiny", "shape": SHAPE, "pools": [pool]}]}) as one:
        yield one


async def asked(gateway: Gateway, body: dict[str, Any]) -> dict[str, Any]:
    """The record of one request."""
    request_id = new_id()
    assert (await ask(gateway.base_url, body, request_id)).status == 200
    return await record_of(gateway, request_id)


async def test_ratios_settle_near_one_once_the_worker_is_known(judged: Gateway) -> None:
    """After its calibration is accepted, requests with nobody in their way take what is expected, half within a factor of 2."""
    dice = random.Random(3)

    async def some(count: int, at_once: tuple[int, ...]) -> list[dict[str, Any]]:
        found = []
        for _ in range(count):
            words = " ".join(f"{dice.randrange(10**6)}" for _ in range(dice.choice((5, 40, 120))))
            bodies = [
                chat(f"{words} {number}", dice.choice((8, 24, 48)), stream=True) for number in range(dice.choice(at_once))
            ]
            found += await asyncio.gather(*(asked(judged, body) for body in bodies))
        return found

    await some(90, (1, 2, 4))
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(judged.admin_url + "/api/calibrations/real/accept") as answer,
    ):
        assert answer.status == 200, await answer.text()
    records = await some(30, (1,))

    for figure, measured in (("ttft", "upstream_ttft_seconds"), ("tpot", "tpot_seconds")):
        ratios = [one[f"{figure}_expected_seconds"] / one[measured] for one in records if one[measured] is not None]
        assert len(ratios) >= 15
        assert 0.5 < median(ratios) < 2.0, figure
        assert all(one[f"{figure}_floor_seconds"] < one[measured] for one in records if one[measured] is not None)


async def test_a_salted_request_and_an_emptied_cache_are_told_apart(judged: Gateway, resettable: RealWorker) -> None:
    """The same system prompt is missed for two reasons, and the log line says which."""

    def body(number: int, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"number {number}"}]
        return chat("", 2) | {"messages": messages, **fields}

    for number in range(25):
        warm = await asked(judged, body(number))
    assert warm["cached_tokens"] > 0
    assert warm["expected_cached_tokens"] > 0

    salted = await asked(judged, body(100, cache_salt="a-secret"))
    assert (salted["cached_tokens"], salted["cache_lost"]) == (0, "salted")
    assert (await asked(judged, body(101)))["cache_lost"] is None

    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(resettable.url + "/reset_prefix_cache") as answer,
    ):
        assert answer.status == 200, await answer.text()
    forgotten = await asked(judged, body(102))
    assert (forgotten["cached_tokens"], forgotten["cache_lost"]) == (0, "evicted")
