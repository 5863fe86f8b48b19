"""What a gateway does when the link to a worker swallows every packet, in both directions and without a word.

To be run by `unshare --map-root-user --net --mount` (it makes links and may do nothing to those of the machine):
``python -m tests.integration.partitioned`` prints what was seen as one JSON object.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.http1 import chunk
from tests.integration.answers import chat_answer, chat_events, event, sse_head, usage_of
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.raw_client import RawClient, request_bytes
from tests.integration.scene import CHAT, chat_body
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Hang, Script, Send

_FAR, _NEAR = "10.99.0.2", "10.99.0.1"
_NOBODY = "02:00:00:00:00:99"  # a frame to this address is taken by none
_CLONE_NEWNET = 0x40000000
_LIMITS = {"connect_seconds": 0.5, "first_byte_seconds": 1, "token_gap_seconds": 1}
_libc = ctypes.CDLL(None, use_errno=True)  # os.setns is of Python 3.12
_SET_UP = f"""
mount -t tmpfs none /run && mkdir /run/netns
ip link set lo up
ip netns add far
ip link add near type veth peer name there netns far
ip address add {_NEAR}/24 dev near && ip link set near up
ip -n far address add {_FAR}/24 dev there && ip -n far link set there up
"""


@contextmanager
def _far_away() -> Iterator[None]:
    """Sockets that this thread makes meanwhile are at the other end of the link."""
    with Path("/proc/thread-self/ns/net").open() as here, Path("/run/netns/far").open() as far:
        _enter(far.fileno())
        try:
            yield
        finally:
            _enter(here.fileno())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _link(*, is_dark: bool) -> None:
    """Let both ends send to nobody, or to each other again."""
    for place, peer, device in (((), _FAR, "near"), (("-n", "far"), _NEAR, "there")):
        entry = ("replace", peer, "lladdr", _NOBODY, "dev", device, "nud", "permanent")
        subprocess.run(["ip", *place, "neighbour", *(entry if is_dark else ("del", peer, "dev", device))], check=True)


def _answers(request: Received) -> Script:
    """The beginning of a stream that then is silent, or a whole plain answer."""
    if json.loads(request.body).get("stream"):
        role, first, *_ = (chunk(event(item)) for item in chat_events(["a", "b"]))
        return [Send(sse_head() + role + first), Hang()]
    return [Send(chat_answer("x", usage=usage_of(5, 3)))]


async def _ask(gateway: Gateway, model: str) -> dict[str, Any]:
    began = time.monotonic()
    async with await RawClient.connect(gateway.base_url) as client:
        await client.send(request_bytes("POST", CHAT, chat_body(model, stream=False)))
        answer = await client.read_answer()
    seen: dict[str, Any] = {"status": answer.status, "seconds": time.monotonic() - began}
    return seen if answer.status == 200 else seen | {"code": answer.json()["error"]["code"]}


async def _stream(gateway: Gateway, has_begun: asyncio.Event) -> dict[str, Any]:
    """Follow a stream to its end; the seconds are those since the link was cut, soon after it had begun."""
    async with await RawClient.connect(gateway.base_url) as client:
        await client.send(request_bytes("POST", CHAT, chat_body("alone")))
        start = await client.read_until(b'"a"')
        has_begun.set()
        began = time.monotonic()
        answer = await client.read_answer(start=start)
    return {"seconds": time.monotonic() - began, "is_told": b"worker_stalled" in answer.raw}


async def _play(*, waits_for_probes: bool) -> dict[str, Any]:
    with _far_away():
        alone, one = (ScriptedWorker(_answers, host=_FAR) for _ in range(2))
        await alone.start()
        await one.start()
    async with ScriptedWorker(_answers) as other:
        models = [
            {"name": "alone", "workers": [alone.url]},
            {"name": "pair", "pools": [{"name": "both", "policy": "round-robin", "workers": [one.url, other.url]}]},
        ]
        async with running_gateway({"models": models, "limits": _LIMITS}) as gateway:
            await gateway.metrics_when(lambda page: page.total("ridgeline_worker_up") == 3)
            found = await _cut(gateway, alone, one, waits_for_probes=waits_for_probes)
    await alone.stop()
    await one.stop()
    return found


async def _cut(gateway: Gateway, alone: ScriptedWorker, one: ScriptedWorker, *, waits_for_probes: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"before": [await _ask(gateway, "pair") for _ in range(2)], "reached_before": len(one.requests)}
    has_begun = asyncio.Event()
    streaming = asyncio.create_task(_stream(gateway, has_begun))
    await has_begun.wait()
    _link(is_dark=True)
    dark_since = time.monotonic()
    found["kept connection"] = await asyncio.gather(*(_ask(gateway, "pair") for _ in range(2)))
    found["stream"] = await streaming
    found["new connection"] = await _ask(gateway, "alone")
    found["others meanwhile"] = [await _ask(gateway, "pair") for _ in range(4)]
    found["reached_meanwhile"] = len(one.requests) - found["reached_before"]
    if waits_for_probes:
        await gateway.metrics_when(lambda page: page.total("ridgeline_worker_up") == 1, 30.0)
        found["probes_noticed_seconds"] = time.monotonic() - dark_since
    _link(is_dark=False)
    lit_at = time.monotonic()
    for _ in range(200):
        again = await _ask(gateway, "alone")
        if again["status"] == 200:
            break
        await asyncio.sleep(0.05)
    return found | {"again": again["status"], "again_seconds": time.monotonic() - lit_at}


def main() -> None:
    """Make the link, play, print. With ``--probes`` until the probes of control have noticed as well."""
    subprocess.run(["sh", "-e", "-c", _SET_UP], check=True)
    print(json.dumps(asyncio.run(_play(waits_for_probes="--probes" in sys.argv)), indent=1))


if __name__ == "__main__":
    main()
