"""A worker that ends idle connections at the very instant at which the gateway takes one up again: nobody notices."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.integration.gateway import running_gateway

pytestmark = pytest.mark.asyncio

IDLE_SECONDS = 0.15
REQUESTS = 100
ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}


class _Impatient:
    """An HTTP server that ends a connection which has been idle for so long, as uvicorn does after five seconds."""

    def __init__(self) -> None:
        self.generated: Counter[str] = Counter()  # by request id
        self.ended_idle = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        body = json.dumps(ANSWER).encode()
        try:
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                lines = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
                await reader.readexactly(int(lines.get("content-length", 0)))
                if "chat" in head.decode().split("\r\n")[0]:
                    self.generated[lines["x-request-id"]] += 1
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
                )
                await writer.drain()
        except TimeoutError:
            self.ended_idle += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def impatient() -> AsyncIterator[tuple[_Impatient, str]]:
    worker = _Impatient()
    server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
    async with server:
        yield worker, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_no_request_is_lost_to_an_idle_connection_that_ends() -> None:
    """Requests that come just when the worker ends the kept connection, a little sooner and a little later: each is answered,
    and none is generated twice. The gateway is told to keep connections for as long as the worker does, so that they race."""
    dice = random.Random(5)
    async with (
        impatient() as (worker, url),
        running_gateway({"limits": {"worker_idle_seconds": 10}}, workers=[url]) as gateway,
        aiohttp.ClientSession(trust_env=False) as session,
    ):
        statuses = Counter[int]()
        for number in range(REQUESTS):
            await asyncio.sleep(IDLE_SECONDS + dice.uniform(-0.015, 0.01))
            body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
            headers = {"x-request-id": f"request-{number}"}
            async with session.post(gateway.base_url + "/v1/chat/completions", json=body, headers=headers) as answer:
                statuses[answer.status] += 1
                await answer.read()

    assert statuses == {200: REQUESTS}
    assert len(worker.generated) == REQUESTS
    assert set(worker.generated.values()) == {1}
    assert 10 < worker.ended_idle < REQUESTS  # some were in time, and others were not
