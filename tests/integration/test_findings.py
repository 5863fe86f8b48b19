"""What a real gateway says is wrong with itself, as the live page and `ridgeline top` get it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import aiohttp

from tests.integration.gateway import Gateway, running_gateway
from tests.integration.load import all_up, paced
from tests.integration.raw_client import RawClient, request_bytes
from tests.integration.scene import CHAT, chat_body
from tests.integration.scripted_worker import ScriptedWorker


async def told(gateway: Gateway, kind: str) -> dict[str, Any]:
    """The answer of `/api/fleet` as soon as it has a finding of this kind."""
    seen: dict[str, Any] = {}
    for _ in range(40):
        _, text = await gateway.get(gateway.admin_url + "/api/fleet")
        seen = json.loads(text)
        if any(finding["kind"] == kind for finding in seen["findings"]):
            return seen
        await asyncio.sleep(0.25)
    raise AssertionError(f"no {kind} in {seen['headline']} {seen['findings']}")


async def test_what_an_operator_did_is_not_called_healthy(worker: ScriptedWorker) -> None:
    """A bad configuration, a serving process that was killed, workers drained by hand, and a gateway that is being stopped."""
    worker.script = paced(200, 0.1)
    pool = {"name": "default", "workers": [worker.url]}
    async with running_gateway({"models": [{"name": "tiny", "pools": [pool]}]}, processes=2) as gateway:
        await all_up(gateway, 2)
        assert (await told_nothing(gateway))["headline"]["severity"] == "ok"

        gateway.config_path.write_text(gateway.config_path.read_text() + "\nlisten_: 1\n")
        await told(gateway, "configuration")

        os.kill(gateway.processes.serving[0], signal.SIGKILL)
        await told(gateway, "process_restarts")

        async with await RawClient.connect(gateway.base_url) as client, aiohttp.ClientSession() as session:
            await client.send(request_bytes("POST", CHAT, chat_body()))
            await client.read_until(b"data:")
            name = worker.url.removeprefix("http://")
            await session.post(f"{gateway.admin_url}/api/workers/{name}/drain")
            seen = await told(gateway, "pool_down")
            assert seen["headline"]["severity"] == "critical"

            gateway.supervisor.send_signal(signal.SIGTERM)
            await told(gateway, "stopping")


async def told_nothing(gateway: Gateway) -> dict[str, Any]:
    """The answer of `/api/fleet` at the first look."""
    _, text = await gateway.get(gateway.admin_url + "/api/fleet")
    seen: dict[str, Any] = json.loads(text)
    return seen
