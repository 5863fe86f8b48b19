"""A gateway with keys of its own and one for its workers, and the plain scripts that its worker plays."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.integration.answers import chat_answer, chat_events, stream_of, usage_of
from tests.integration.scene import Scene, chat_body, running_scene
from tests.integration.steps import Send

KEY, WORKER_KEY = "sk-client", "worker-s3cret"
ANSWER = [Send(chat_answer("x", usage=usage_of(5, 3)))]
STREAM = stream_of(chat_events(["a", "b"], usage=usage_of(5, 2)))
BODY = chat_body(stream=False)


@asynccontextmanager
async def running_keyed_scene() -> AsyncIterator[Scene]:
    """Keys on both sides, and short limits for what clients send. Proxies in the gateway's environment lead nowhere."""
    dead_end = "http://127.0.0.1:9"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    config = {
        "limits": {"request_head_seconds": 1, "request_body_seconds": 1.5, "client_idle_seconds": 30},
        "keys": [{"name": "app", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
        "worker_key": WORKER_KEY,
    }
    headers = [("Authorization", f"Bearer {KEY}")]
    async with running_scene(config=config, headers=headers, environ=dict.fromkeys(names, dead_end)) as one:
        yield one


async def ids_once_quiet(scene: Scene) -> list[str]:
    """The request ids of all records, one each, once every count of the gateway is back at zero."""
    await scene.quiet()
    return [record["request_id"] for record in await scene.gateway.records(0)]
