"""Quotas of keys through a whole gateway: over its processes, over several gateways by a real Redis, and without it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.serving.state import TICK_SECONDS
from tests.integration.answers import chat_answer, usage_of
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.load import all_up, eventually
from tests.integration.raw_client import Answer, RawClient, request_bytes
from tests.integration.scene import CHAT, chat_body
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.steps import Send, Wait

pytestmark = pytest.mark.integration

PLAIN = [Send(chat_answer("x", usage=usage_of(40, 2)))]


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def keys(**quota: Any) -> list[dict[str, Any]]:
    return [
        {"name": "limited", "sha256": [digest("sk-old"), digest("sk-new")], "quota": quota},
        {"name": "free", "sha256": digest("sk-free")},
    ]


async def ask(gateway: Gateway, key: str = "sk-old", **fields: Any) -> Answer:
    headers = [("Authorization", f"Bearer {key}"), ("Connection", "close")]
    async with await RawClient.connect(gateway.base_url) as client:
        await client.send(request_bytes("POST", CHAT, chat_body(stream=False, **fields), headers))
        return await client.read_answer()


async def ask_many(gateways: list[Gateway], count: int, **fields: Any) -> Counter[int]:
    answers = await asyncio.gather(*(ask(gateways[at % len(gateways)], **fields) for at in range(count)))
    return Counter(answer.status for answer in answers)


@asynccontextmanager
async def a_worker() -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker() as worker:
        worker.script = lambda _: PLAIN
        yield worker


async def test_a_limit_holds_over_all_processes() -> None:
    """Exactly as many are let in as may, whichever process takes them; both texts of a key count as one, others are free."""
    async with (
        a_worker() as worker,
        running_gateway({"keys": keys(requests_per_minute=20)}, workers=[worker.url], processes=2) as gateway,
    ):
        await all_up(gateway, 2)
        await asyncio.sleep(2 * TICK_SECONDS)  # until they see each other
        first = await ask(gateway)
        assert first.head is not None
        assert first.head.get("x-ratelimit-limit-requests") == "20"
        assert first.head.get("x-ratelimit-remaining-requests") == "19"

        statuses = Counter([(await ask(gateway, ("sk-old", "sk-new")[at % 2])).status for at in range(25)])

        assert statuses == {200: 19, 429: 6}
        refused = await ask(gateway, "sk-new")
        assert refused.head is not None
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert 0 < int(refused.head.get("retry-after") or 0) <= 60
        assert refused.head.get("x-ratelimit-remaining-requests") == "0"
        assert (await ask(gateway, "sk-free")).status == 200
        assert (await ask(gateway, "sk-wrong")).status == 401
        metrics = await gateway.metrics_when(
            lambda metrics: metrics.value("ridgeline_quota_remaining", key="limited", of="requests") == 0
        )
        assert metrics.value("ridgeline_quota_requests_total", key="limited") == 20
        assert metrics.value("ridgeline_quota_refusals_total", key="limited", limit="requests") == 7
        assert metrics.value("ridgeline_quota_limit", key="limited", limit="requests") == 20
        assert not metrics.matching("ridgeline_quota_requests_total", key="free")
        records = await gateway.records(28)
        assert Counter(each["reason"] for each in records if each["status"] == 429) == {"rate": 7}


async def test_tokens_are_settled_by_usage_and_requests_at_a_time_are_bounded() -> None:
    """What a worker counted is what was used in the end; a client that leaves makes room."""
    async with (
        a_worker() as worker,
        running_gateway({"keys": keys(tokens_per_minute=500, concurrent_requests=2)}, workers=[worker.url]) as gateway,
    ):
        answer = await ask(gateway, max_tokens=400)
        assert answer.head is not None
        assert 0 < int(answer.head.get("x-ratelimit-remaining-tokens") or 0) <= 100
        again = await ask(gateway, max_tokens=400)  # 42 were used
        assert again.status == 200
        too_much = await ask(gateway, max_tokens=600)
        assert (too_much.status, too_much.json()["error"]["code"]) == (400, "request_over_quota")
        metrics = await gateway.metrics()
        charged = metrics.value("ridgeline_quota_tokens_total", key="limited", change="charged")
        assert charged - metrics.value("ridgeline_quota_tokens_total", key="limited", change="returned") == 84

        worker.script = lambda _: [Wait(30.0)]
        async with AsyncExitStack() as stack:
            for _ in range(2):
                client = await stack.enter_async_context(await RawClient.connect(gateway.base_url))
                await client.send(request_bytes("POST", CHAT, chat_body(max_tokens=1), [("Authorization", "Bearer sk-old")]))
            await gateway.metrics_when(lambda metrics: metrics.value("ridgeline_key_in_flight_requests", key="limited") == 2)
            refused = await ask(gateway, max_tokens=1)
            assert refused.status == 429
            assert "2 requests at a time" in refused.json()["error"]["message"]
        await gateway.metrics_when(lambda metrics: metrics.value("ridgeline_key_in_flight_requests", key="limited") == 0)
        worker.script = lambda _: PLAIN
        assert (await ask(gateway, max_tokens=1)).status == 200


async def test_a_reload_changes_limits_and_keys() -> None:
    """Without a restart, and without forgetting what was used."""
    async with a_worker() as worker, running_gateway({"keys": keys(requests_per_minute=2)}, workers=[worker.url]) as gateway:
        assert await ask_many([gateway], 3) == {200: 2, 429: 1}
        changed = keys(requests_per_minute=3)
        changed[0]["sha256"] = digest("sk-new")
        gateway.config["keys"] = changed
        gateway.config_path.write_text(yaml.safe_dump(gateway.config))
        gateway.supervisor.send_signal(signal.SIGHUP)
        await gateway.metrics_when(lambda metrics: metrics.value("ridgeline_reloads_total", result="ok") == 1)
        await asyncio.sleep(0.7)

        assert (await ask(gateway, "sk-old")).status == 401
        assert [(await ask(gateway, "sk-new")).status for _ in range(2)] == [200, 429]


class Redis:
    """A real redis-server on a free port."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._folder = folder
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)),
            stdout=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(10):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", self.port), 1).close()
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    return

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[Redis]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is missing; Debian package: redis-server")  # a failure under REQUIRE_REAL=1
    server = Redis(tmp_path)
    await server.start()
    yield server
    await server.kill()


@asynccontextmanager
async def two_gateways(redis: Redis, what: str, **quota: Any) -> AsyncIterator[list[Gateway]]:
    settings = {"keys": keys(**quota), "quotas": {"store": redis.url, "on_store_failure": what}}
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(a_worker())
        yield [await stack.enter_async_context(running_gateway(settings, workers=[worker.url])) for _ in range(2)]


async def store_is(gateway: Gateway, up: float) -> None:
    await gateway.metrics_when(lambda metrics: metrics.value("ridgeline_quota_store_up") == up, 10.0)


async def leased(gateways: list[Gateway], of: str) -> float:
    return sum([(await each.metrics()).value("ridgeline_quota_leased_total", key="limited", of=of) for each in gateways])


async def test_gateways_share_a_limit(redis: Redis) -> None:
    """All together let in what one would, a burst too; what one has leased and not used is the most that is lost."""
    async with two_gateways(redis, "closed", requests_per_minute=100) as gateways:
        statuses = await ask_many(gateways, 160)

        assert statuses.keys() <= {200, 429}
        assert 96 <= statuses[200] <= 100  # a lease is 2
        refused = await ask(gateways[0])
        assert refused.status == 429
        assert refused.head is not None
        assert 0 < int(refused.head.get("retry-after") or 0) <= 60
        assert refused.head.get("x-ratelimit-remaining-requests") == "0"
        assert await leased(gateways, "requests") <= 100


async def test_tokens_are_shared(redis: Redis) -> None:
    """By what requests are estimated at, which is more than a lease here."""
    async with two_gateways(redis, "closed", tokens_per_minute=10_000) as gateways:
        answers = [await ask(gateways[at % 2], max_tokens=900) for at in range(14)]

        # What is given back after an answer is this gateway's to use again.
        assert Counter(answer.status for answer in answers)[200] >= 10
        assert await leased(gateways, "tokens") <= 10_000


@pytest.mark.parametrize("how", ["killed", "black hole"])
@pytest.mark.parametrize("what", ["closed", "open"])
async def test_without_redis(redis: Redis, what: str, how: str) -> None:
    """Closed: 503 that says when to come again. Open: each goes by its own count. Both within a second, and back again."""
    async with two_gateways(redis, what, requests_per_minute=30) as (gateway, _):
        assert (await ask(gateway)).status == 200
        await store_is(gateway, 1)
        if how == "killed":
            await redis.kill()
        else:
            redis.send(signal.SIGSTOP)

        began = time.monotonic()
        statuses = await ask_many([gateway], 40)
        took = time.monotonic() - began

        assert took < 3.0
        if what == "closed":
            assert statuses[503] >= 37  # but for what was leased before
            refused = await ask(gateway)
            assert (refused.status, refused.json()["error"]["code"]) == (503, "quota_unavailable")
            assert refused.head is not None
            assert refused.head.get("retry-after")
        else:
            assert statuses == {200: 29, 429: 11}
        await store_is(gateway, 0)
        assert "the store of shared quotas is away: " in gateway.stderr
        assert str(redis.port) not in gateway.stderr

        if how == "killed":
            await redis.start()
        else:
            redis.send(signal.SIGCONT)
        await store_is(gateway, 1)
        await eventually(lambda: "the store of shared quotas answers again" in gateway.stderr)
        if what == "closed":
            assert (await ask(gateway)).status == 200
