"""What is kept of workers between processes comes back to nothing when nothing is under way, however requests ended."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.integration.answers import chat_answer, chat_events, plain, stream_of, usage_of
from tests.integration.gateway import running_gateway
from tests.integration.raw_client import RawClient, request_bytes
from tests.integration.scene import CHAT, chat_body
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.shared_cells import figures
from tests.integration.steps import Hang, Reset, Send, Step, Until

pytestmark = [pytest.mark.asyncio, pytest.mark.flaky(reruns=2)]

GAUGES = (
    "ridgeline_in_flight_requests",
    "ridgeline_in_flight_tokens",
    "ridgeline_ledger_prompt_tokens",
    "ridgeline_ledger_pending_prompt_tokens",
)
PROCESSES = 2


class _Fickle:
    """A worker that does something else each time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, request: Received) -> list[Step]:
        if request.path != CHAT:
            return [Send(plain(404, b"{}"))]
        self.count += 1
        scripts: list[list[Step]] = [
            stream_of(chat_events(["a", "b"], usage=usage_of(9, 2))),
            [Send(plain(500, b'{"error": {"message": "broken"}}'))],
            [Send(chat_answer("ok", usage=usage_of(9, 1)))],
            [Reset()],
            [Send(plain(429, b'{"error": {"message": "busy"}}'))],
            [Hang()],
            stream_of([*chat_events(["a"])[:2], {"error": {"message": "lost", "code": 500}}]),
        ]
        return scripts[self.count % len(scripts)]


async def test_nothing_stays_behind_however_requests_end() -> None:
    """Failures, retries, refusals, hung answers and clients that leave, at three workers by two processes: all gauges are 0."""
    async with ScriptedWorker(_Fickle()) as one, ScriptedWorker(_Fickle()) as two, ScriptedWorker(_Fickle()) as three:
        pool = {"name": "default", "policy": "round-robin", "workers": [each.url for each in (one, two, three)]}
        config = {
            "models": [{"name": "tiny", "pools": [pool]}],
            "limits": {"first_byte_seconds": 0.7, "token_gap_seconds": 0.7},
        }
        async with running_gateway(config, processes=PROCESSES) as gateway:

            async def ask(number: int) -> None:
                body = chat_body(stream=number % 3 != 0)
                async with await RawClient.connect(gateway.base_url) as client:
                    await client.send(request_bytes("POST", CHAT, body))
                    if number % 5 == 0:
                        await asyncio.sleep(0.02 * (number % 7))
                        client.reset()
                    else:
                        await client.read_answer(timeout_seconds=15)

            for wave in range(6):
                await asyncio.gather(*(ask(wave * 20 + number) for number in range(20)))
            await gateway.metrics_when(lambda page: page.total("ridgeline_in_flight_requests") == 0)
            await asyncio.sleep(0.2)
            found = figures(gateway, GAUGES, PROCESSES)
            records = await gateway.records(120)

    assert len(records) == 120
    assert {name: set(values) for name, values in found.items()} == {name: {0.0} for name in GAUGES}


@pytest.mark.parametrize("number", [10**30, 10**400], ids=["not exact as a float", "no float at all"])
async def test_a_request_for_absurdly_many_answers_leaves_others_alone(number: int) -> None:
    """It goes to the worker as it is; what ran beside it is taken off again to the last token, and all have their records."""
    may_end = asyncio.Event()

    def held(request: Received) -> list[Step]:
        if request.path != CHAT:
            return [Send(plain(404, b"{}"))]
        if request.headers["x-request-id"] == "absurd":
            return [Send(plain(400, b'{"error": {"message": "n is too large"}}'))]
        return [Until(may_end), Send(chat_answer("ok", usage=usage_of(9, 1)))]

    async with ScriptedWorker(held) as worker, running_gateway(workers=[worker.url], processes=PROCESSES) as gateway:
        clients = [await RawClient.connect(gateway.base_url) for _ in range(2)]
        for client, name, more in zip(clients, ("usual", "absurd"), ({}, {"n": number, "max_tokens": number}), strict=True):
            body = json.dumps(chat_body(stream=False, **more)).encode()
            await client.send(request_bytes("POST", CHAT, body, [("X-Request-Id", name)]))
            if name == "usual":
                await worker.received()
        refused = await clients[1].read_answer(10)
        may_end.set()
        answered = await clients[0].read_answer(10)
        for client in clients:
            client.close()
        records = await gateway.records(2)
        found = figures(gateway, GAUGES, PROCESSES)

    assert (answered.status, refused.status) == (200, 400)
    assert {record["request_id"] for record in records} == {"usual", "absurd"}
    assert {name: set(values) for name, values in found.items()} == {name: {0.0} for name in GAUGES}
