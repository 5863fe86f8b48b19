"""No byte of one answer is ever in another: many clients with words of their own, who leave, stay, and are left by workers."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path

import pytest

from tests.http1 import chunk, last_chunk
from tests.integration.answers import DONE, chat_answer, chat_events, event, plain, sse_head, usage_of
from tests.integration.raw_client import Answer, End
from tests.integration.scene import Scene, chat_body, running_scene
from tests.integration.scripted_worker import Received
from tests.integration.steps import ByteByByte, Close, Reset, Script, Send, Step, Wait

pytestmark = [pytest.mark.asyncio, pytest.mark.flaky(reruns=2)]

CLIENTS, REQUESTS, PIECES = 40, 20, 8
WORD = re.compile(rb"<\d+-\d+>")
KINDS = ("whole", "whole", "whole", "in one write", "byte by byte", "more behind it", "cut", "reset", "error", "error event")


def answer_of(request: Received) -> Script:
    """An answer that says the request's word again and again, in the way that it asks for."""
    body = json.loads(request.body)
    word, kind = body["messages"][0]["content"], body["metadata"]["kind"]
    if kind == "error":
        return [Send(plain(400, {"error": {"message": word * PIECES}}))]
    if not body.get("stream"):
        data = chat_answer(word * PIECES, usage=usage_of(5, PIECES))
        return (
            [ByteByByte(data)]
            if kind == "byte by byte"
            else [Send(data[: len(data) // 2]), Wait(0.002), Send(data[len(data) // 2 :])]
        )
    events = chat_events([word] * PIECES, usage=usage_of(5, PIECES))
    pieces = [chunk(event(each)) for each in events]
    end = chunk(DONE) + last_chunk()
    whole: list[Step] = [Send(sse_head()), *[step for piece in pieces for step in (Send(piece), Wait(0.001))], Send(end)]
    behind = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n<999-999>"
    scripts: dict[str, Script] = {
        "in one write": [Send(sse_head() + b"".join(pieces) + end)],
        "byte by byte": [ByteByByte(sse_head() + b"".join(pieces) + end)],
        "more behind it": [*whole[:-1], Send(end + behind)],
        "cut": [*whole[: len(whole) // 2], Close()],
        "reset": [*whole[: len(whole) // 2], Reset()],
        "error event": [*whole[: len(whole) // 2], Send(chunk(event({"error": {"message": word, "code": 500}}))), Send(end)],
    }
    return scripts.get(kind, whole)


def maps_of(pid: int) -> str:
    """What a process has mapped, its libraries among it."""
    return Path(f"/proc/{pid}/maps").read_text()


async def ask_for(scene: Scene, number: int) -> tuple[int, int]:
    """One client's requests, on one connection as long as that lives: how many whole answers, and how often it left."""
    chance = random.Random(number)
    client, whole, left = None, 0, 0
    for turn in range(REQUESTS):
        word, kind, stream = f"<{number}-{turn}>", chance.choice(KINDS), chance.random() < 0.7
        message = {"role": "user", "content": word}
        body = chat_body(stream=stream, messages=[message], metadata={"kind": kind})
        client = client or await scene.connect()
        await client.send(scene.request(f"c{number}-{turn}", body))
        if chance.random() < 0.25:
            await asyncio.sleep(chance.random() * 0.02)
            client.reset() if chance.random() < 0.5 else client.close()
            client, left = None, left + 1
            continue
        answer: Answer = await client.read_answer()
        found = WORD.findall(answer.body)
        assert {*found, *WORD.findall(answer.raw)} <= {word.encode()}, (word, kind, answer.raw)
        if kind in KINDS[:6]:
            assert (answer.status, answer.end, len(found)) == (200, End.COMPLETE, PIECES), (kind, answer.raw)
            whole += 1
        if answer.end is not End.COMPLETE or (answer.head is not None and not answer.head.keeps_alive):
            client.close()
            client = None
    if client is not None:
        client.close()
    return whole, left


@pytest.mark.parametrize("event_loop", ["uvloop", "asyncio"])
async def test_no_byte_of_one_answer_is_in_another(event_loop: str) -> None:
    """800 requests of 40 clients at two workers: a quarter of them are left, some break, and each hears its own word only."""
    config = {"health": {"max_ejected_ratio": 0}, "retries": {"max_attempts": 1}}
    async with running_scene(workers=2, config=config, environ={"RIDGELINE_EVENT_LOOP": event_loop}) as scene:
        (serving,) = scene.gateway.processes.serving
        assert ("/uvloop/" in maps_of(serving)) is (event_loop == "uvloop")
        for worker in scene.workers["tiny"]:
            worker.script = answer_of
        results = await asyncio.gather(*(ask_for(scene, number) for number in range(CLIENTS)))
        await scene.quiet()
        connections = sum(worker.connections for worker in scene.workers["tiny"])
        asked = sum(len(worker.requests) for worker in scene.workers["tiny"])

    assert sum(left for _, left in results) > 100
    assert sum(whole for whole, _ in results) > 300
    assert connections < asked  # they were used again
