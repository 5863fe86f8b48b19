"""Secrets are planted wherever requests, workers, operators and files can have them, and looked for wherever text comes out."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.integration.answers import chat_answer, chat_events, plain, sse_head, stream_of, usage_of
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.load import eventually
from tests.integration.otlp_receiver import OtlpReceiver
from tests.integration.raw_client import RawClient, request_bytes
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.steps import Close, Hang, Reset, Script, Send, Wait

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

CHAT = "/v1/chat/completions"
MARK = "PLANTED"  # in every secret, so that one search finds any of them
CLIENT_KEY, BAD_KEY = f"sk-{MARK}-client", f"sk-{MARK}-wrong"
WORKER_KEY, ADMIN_TOKEN, RECEIVER_KEY = f"{MARK}-worker-key", f"{MARK}-admin-token-0123", f"{MARK}-receiver-key"
PROMPT, ANSWER, WORD = f"{MARK}-prompt", f"{MARK}-answer", f"{MARK}-word"
PAGES = ("state", "records", "workers", "chains", "calibrations", "drifts", "advice", "fleet", "hour")


def error(text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": "x", "param": text, "code": 400}}


SCRIPTS: dict[str, Script] = {
    "stream": stream_of(chat_events([ANSWER, ANSWER], usage=usage_of(5, 2))),
    "plain": [Send(chat_answer(ANSWER, usage=usage_of(5, 3)))],
    "refusal": [Send(plain(400, error(WORD), [("x-worker", WORD), ("set-cookie", WORD)]))],
    "refuses the gateway's key": [Send(plain(401, error(f"bad key {WORKER_KEY}")))],
    "breaks": [Send(plain(500, error(WORD)))],
    "error event": stream_of([*chat_events([ANSWER])[:2], error(WORD)]),
    "odd usage": stream_of([*chat_events([ANSWER]), {"choices": [], "usage": {"prompt_tokens": WORD}}]),
    "no JSON": [Send(sse_head()), Send(b"40\r\n" + f"data: {{{WORD}".encode().ljust(0x40) + b"\r\n"), Close()],
    "redirects": [Send(plain(307, {}, [("location", f"http://user:{WORD}@127.0.0.1/{WORD}")]))],
    "no HTTP": [Send(f"{WORD}\r\n\r\n".encode()), Hang()],
    "odd head": [Send(f"HTTP/1.1 200 {WORD}\r\n{WORD} : x\r\n\r\n".encode()), Hang()],
    "odd chunk": [Send(sse_head()), Send(f"{WORD}\r\n".encode()), Hang()],
    "cut": [Send(sse_head()), Send(b"20\r\n" + f"data: {ANSWER}".encode().ljust(30) + b"\n\n\r\n"), Wait(0.05), Reset()],
}


@dataclass
class House:
    """A gateway with a secret in every place of its configuration, and all that clients got from it."""

    gateway: Gateway
    worker: ScriptedWorker
    receiver: OtlpReceiver
    own_words: list[str] = field(default_factory=list)  # what the gateway itself said to clients and operators
    requests: int = 0

    async def send(self, data: bytes, script: Script = ()) -> str:
        """One request on a connection of its own; what came back."""
        self.worker.script = script
        self.requests += 1
        async with await RawClient.connect(self.gateway.base_url) as client:
            await client.send(data)
            return (await client.read_answer()).raw.decode(errors="replace")

    async def administer(self, method: str, path: str, **options: Any) -> str:
        """One call of the admin listener: its answer, headers and all."""
        url = self.gateway.admin_url + path
        async with aiohttp.ClientSession() as session, session.request(method, url, allow_redirects=False, **options) as answer:
            return f"{answer.status} {list(answer.headers.items())}\n{await answer.text()}"


def body_of(**fields: Any) -> dict[str, Any]:
    """A request that is full of secrets."""
    message = {"role": "user", "content": PROMPT, "name": PROMPT}
    tool = {"type": "function", "function": {"name": PROMPT, "description": PROMPT, "parameters": {PROMPT: PROMPT}}}
    return {
        "model": "tiny",
        "messages": [message],
        "tools": [tool],
        "user": WORD,
        "metadata": {WORD: WORD},
        WORD: WORD,
        **fields,
    }


def chat(path: str = CHAT, *, key: str = CLIENT_KEY, body: Any = None, **fields: Any) -> bytes:
    headers = [
        ("Authorization", f"Bearer {key}"),
        *[(name, WORD) for name in ("User-Agent", "Cookie", "X-Own", "X-Session", "Referer", "Origin", "X-Forwarded-For")],
        ("X-Request-Id", f"{WORD} with blanks"),
        ("traceparent", f"00-{WORD}"),
        ("tracestate", f"a={WORD}"),
    ]
    return request_bytes("POST", path, body_of(**fields) if body is None else body, headers)


REFUSED: dict[str, bytes] = {
    "a wrong key": chat(key=BAD_KEY),
    "a key in the query": chat(f"{CHAT}?api_key={CLIENT_KEY}", key=BAD_KEY),
    "another scheme": request_bytes("POST", CHAT, body_of(), [("Authorization", f"Basic {BAD_KEY}"), ("api-key", BAD_KEY)]),
    "an unknown path": chat(f"/v1/{WORD}"),
    "an unknown model": chat(model=WORD),
    "no JSON": chat(body=f'{{"{PROMPT}'.encode()),
    "a large body": chat(body=(WORD * 10_000).encode()),
    "an odd head": f"POST {CHAT} HTTP/1.1\r\nHost: {WORD}\r\n{WORD} : {WORD}\r\n\r\n".encode(),
    "no HTTP": f"{WORD} {WORD}\r\n\r\n".encode(),
    "two lengths": f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nX: {WORD}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".encode(),
}


def command_line(pid: int | None) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house() -> AsyncIterator[House]:
    """After every kind of request, fault and mistake."""
    async with OtlpReceiver() as receiver, ScriptedWorker() as worker:
        config = {
            "models": [{"name": "tiny", "workers": [{"name": "one", "url": worker.url}]}],
            "keys": [{"name": "app", "sha256": hashlib.sha256(CLIENT_KEY.encode()).hexdigest()}],
            "worker_key": WORKER_KEY,
            "admin_token": ADMIN_TOKEN,
            "limits": {"body_bytes": 50_000},
            "chains": {"header": "x-session"},
            "tracing": {"otlp_endpoint": receiver.url, "sample_ratio": 1, "headers": {"x-receiver-key": RECEIVER_KEY}},
        }
        async with running_gateway(config) as gateway:
            await gateway.ready(gateway.observe_url)
            one = House(gateway, worker, receiver)
            await all_of_it(one)
            yield one


async def all_of_it(house: House) -> None:
    for name, script in SCRIPTS.items():
        answer = await house.send(chat(stream=name not in ("plain", "refusal", "breaks")), script)
        if name in ("refuses the gateway's key", "redirects", "no HTTP", "odd head", "odd chunk"):
            house.own_words.append(answer)
    house.own_words += [await house.send(data) for data in REFUSED.values()]
    async with await RawClient.connect(house.gateway.base_url) as leaver:
        house.worker.script = [Hang()]
        house.requests += 1
        await leaver.send(chat())
        await house.worker.received(len(house.worker.requests) + 1)
    await house.worker.stop_listening()
    house.own_words.append(await house.send(chat()))
    await house.worker.start()

    wrong, right = ({"Authorization": f"Bearer {token}"} for token in (f"{MARK}-no-token-0123456", ADMIN_TOKEN))
    added = {"model": "tiny", "name": "two", "url": f"http://user:{WORD}@10.0.0.1:8000/?{WORD}"}
    house.own_words += [
        await house.administer("GET", "/api/state", headers=wrong),
        await house.administer("POST", "/login", data={"token": f"{MARK}-no-token-0123456"}),
        await house.administer("POST", "/login", data={"token": ADMIN_TOKEN}),
        await house.administer("POST", "/api/workers", json=added, headers=right),
        await house.administer(
            "POST", "/api/workers", data=f'{{"{WORD}', headers={**right, "Content-Type": "application/json"}
        ),
        *[await house.administer("GET", f"/api/{page}", headers=right) for page in PAGES],
        *[await house.administer("GET", page, headers=right) for page in ("/", "/metrics")],
    ]
    await house.gateway.records(house.requests)
    for bad in (f'worker_key: ["{WORD}"]\n', f'worker_key: "{WORD}\n'):
        told = house.gateway.stderr.count("\n")
        house.gateway.config_path.write_text(bad)
        house.gateway.supervisor.send_signal(signal.SIGHUP)
        await eventually(lambda told=told: house.gateway.stderr.count("\n") > told)
    await house.receiver.spans_when(lambda spans: len(spans) >= house.requests)


async def test_the_secrets_were_used(house: House) -> None:
    """The worker got its key and the prompt, the receiver its header: what is looked for could have come out."""
    requests = [request for request in house.worker.requests if request.path == CHAT]

    assert len(requests) >= len(SCRIPTS)
    assert {request.headers.get("authorization") for request in requests} == {f"Bearer {WORKER_KEY}"}
    assert all(PROMPT.encode() in request.body for request in requests)
    assert house.receiver.headers[-1]["x-receiver-key"] == RECEIVER_KEY


async def test_no_secret_is_in_the_log_or_on_standard_error(house: House) -> None:
    """Neither in the records of requests nor in what the processes tell an operator, bad files and bad tokens included."""
    assert MARK not in house.gateway.log_path.read_text()
    assert MARK not in house.gateway.stderr
    assert "bad" in house.gateway.stderr or "problem" in house.gateway.stderr


async def test_no_secret_is_in_a_span(house: House) -> None:
    """Nor in what spans say of the gateway as a whole."""
    assert MARK not in repr(house.receiver.spans)
    assert len(house.receiver.spans) >= house.requests


async def test_no_secret_is_in_the_metrics(house: House) -> None:
    """In neither format, on neither listener."""
    for accept in ("text/plain", "application/openmetrics-text"):
        async with (
            aiohttp.ClientSession(headers={"Accept": accept}) as session,
            session.get(house.gateway.observe_url + "/metrics") as answer,
        ):
            assert MARK not in await answer.text()
    assert MARK not in json.dumps(house.receiver.metrics, default=repr)


async def test_no_secret_is_in_an_error_or_on_a_page(house: House) -> None:
    """Errors of the gateway quote nothing, pages for administrators show no key, and clients learn no address of a worker."""
    assert len(house.own_words) > 25
    assert [words for words in house.own_words if MARK in words] == []
    to_clients = [words for words in house.own_words if words.startswith("HTTP/1.1")]
    assert [words for words in to_clients if str(house.worker.port) in words] == []


async def test_no_secret_is_in_a_command_line(house: House) -> None:
    """Everyone on a machine can read those."""
    processes = house.gateway.processes
    lines = [command_line(pid) for pid in (processes.supervisor, processes.control, *processes.serving)]

    assert [line for line in lines if MARK in line] == []
    assert all("python" in line for line in lines)
