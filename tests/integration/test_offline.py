"""Without any way out the gateway starts, counts and routes as ever: nothing is looked up or fetched anywhere."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.integration.answers import chat_answer, usage_of
from tests.integration.gateway import ROOT, running_gateway
from tests.integration.raw_client import RawClient, request_bytes
from tests.integration.scene import CHAT
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Send, Step
from tests.tokenizers_made import a_tokenizer_file

pytestmark = [pytest.mark.asyncio, pytest.mark.flaky(reruns=2)]

# Loaded by every process of the gateway at its start: whatever goes beyond this machine is refused and written down.
NO_WAY_OUT = """
import os
import socket

_SEEN = os.environ["SEEN"]


def _inside(host):
    return host in (None, "", "localhost", "0.0.0.0", "::", "::1") or str(host).startswith("127.")


def _refuse(what):
    with open(_SEEN, "a") as file:
        file.write(f"{what}\\\\n")
    raise OSError(101, "no way out")


_connect, _look_up = socket.socket.connect, socket.getaddrinfo


def connect(self, address):
    if isinstance(address, tuple) and not _inside(address[0]):
        _refuse(address)
    return _connect(self, address)


def getaddrinfo(host, *rest, **named):
    if not _inside(host.decode() if isinstance(host, bytes) else host):
        _refuse(host)
    return _look_up(host, *rest, **named)


socket.socket.connect, socket.getaddrinfo = connect, getaddrinfo
"""


def answering(_request: Received) -> list[Step]:
    return [Send(chat_answer("ok", usage=usage_of(3000, 1, 0)))]


async def test_everything_works_without_a_way_out(tmp_path: Path) -> None:
    """A model with a tokenizer of its own, an empty cache, and no network: the prompt near the boundary is counted."""
    (tmp_path / "sitecustomize.py").write_text(NO_WAY_OUT)
    seen = tmp_path / "seen.txt"
    environ = {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "SEEN": str(seen),
        "HOME": str(tmp_path),
        "TIKTOKEN_CACHE_DIR": str(tmp_path / "empty"),
        "HF_HOME": str(tmp_path / "empty"),
    }
    async with ScriptedWorker(answering) as short, ScriptedWorker(answering) as long:
        pools = [
            {"name": "short", "max_total_tokens": 4000, "workers": [short.url]},
            {"name": "long", "max_total_tokens": 100_000, "workers": [long.url]},
        ]
        tokenizer = {"file": str(a_tokenizer_file(tmp_path)), "timeout_seconds": 5}
        began_at = time.monotonic()
        async with running_gateway(
            {"models": [{"name": "tiny", "tokenizer": tokenizer, "pools": pools}]}, environ=environ
        ) as gateway:
            assert time.monotonic() - began_at < 10
            for number in range(100):
                body = {"model": "tiny", "max_tokens": 10, "messages": [{"role": "user", "content": "hello " * 3500}]}
                async with await RawClient.connect(gateway.base_url) as client:
                    await client.send(request_bytes("POST", CHAT, body))
                    answer = await client.read_answer(20)
                assert answer.head is not None
                assert answer.head.status == 200
                records = await gateway.records(number + 1)
                if records[-1]["count_result"] == "counted":
                    break
            assert records[-1]["count_result"] == "counted"
            assert records[-1]["pool"] == "long"

    assert not seen.exists(), seen.read_text()
