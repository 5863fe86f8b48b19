"""Clients that leave without having read anything: in the middle of their upload, or while they wait for an answer."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from enum import StrEnum
from random import Random

from tests.chaos.client import Question, Result, Verdict
from tests.integration.gateway import Gateway
from tests.integration.raw_client import request_bytes

_WAITS_SECONDS = (0.05, 0.6)  # not sooner: who resets at once may never have been let in
_RESET = struct.pack("ii", 1, 0)  # linger for no time: what is not sent is dropped, and the other side is told


class Leaving(StrEnum):
    """When a client leaves that has read nothing."""

    UPLOAD = "upload"  # half of the body has been sent
    WAITING = "waiting"  # all of it has


async def leave_early(
    gateway: Gateway, question: Question, request_id: str, key: str, when: Leaving, dice: Random, *, streams: bool
) -> Result:
    """Send, wait a little, and close or reset the connection. AssertionError if nobody listens."""
    body = json.dumps(question.body | ({"stream": True} if streams else {})).encode()
    headers = [("authorization", f"Bearer {key}"), ("x-request-id", request_id), ("content-type", "application/json")]
    data = request_bytes("POST", question.dialect.path, body, headers)
    if when is Leaving.UPLOAD:
        data = data[: len(data) - len(body) // 2]
    host, _, port = gateway.config["listen"].rpartition(":")
    started_at = time.monotonic()
    _, writer = await asyncio.open_connection(host, int(port))
    if dice.random() < 0.5:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.write(data)
    await writer.drain()
    await asyncio.sleep(dice.uniform(*_WAITS_SECONDS))
    writer.transport.abort()
    return Result(verdict=Verdict.LEFT, started_at=started_at, ended_at=time.monotonic(), worker=None, detail="unread")
