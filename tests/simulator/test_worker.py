"""A simulated worker over HTTP."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from simulator.server import WorkerSettings, start_worker
from tests.captures import load

pytestmark = pytest.mark.integration

HELLO = [{"role": "user", "content": "hello"}]


@dataclass
class Running:
    """A worker that runs in this process, and a client."""

    url: str
    http: aiohttp.ClientSession

    async def chat(self, **fields: Any) -> aiohttp.ClientResponse:
        return await self.http.post(self.url + "/v1/chat/completions", json={"model": "m", "messages": HELLO, **fields})

    async def metric(self, name: str) -> float:
        """The sum of a metric's samples, of whatever labels."""
        async with self.http.get(self.url + "/metrics") as response:
            assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
            families = text_string_to_metric_families(await response.text())
            return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    async def metric_becomes(self, name: str, value: float, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while await self.metric(name) != value:  # each look is a request of its own; the worker is not starved by it
                pass


@asynccontextmanager
async def a_worker(**settings: Any) -> AsyncIterator[Running]:
    given = {"model": "m", "gpu": "h100-sxm", "port": 0, "speed": 20.0, **settings}
    runner, url = await start_worker(WorkerSettings(**given))
    try:
        async with aiohttp.ClientSession() as http:
            yield Running(url, http)
    finally:
        await runner.cleanup()


async def events_of(response: aiohttp.ClientResponse) -> list[Any]:
    """The events of a stream as values, its end mark as text."""
    assert response.status == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    blocks = (await response.text()).removesuffix("\n\n").split("\n\n")
    texts = [block.removeprefix("data: ") for block in blocks]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


async def test_a_streamed_chat():
    """A stream has the role event, all tokens, the finish reason with the last, usage as asked for, and the end mark."""
    async with a_worker() as worker:
        *chunks, usage, done = await events_of(
            await worker.chat(stream=True, max_tokens=6, ignore_eos=True, stream_options={"include_usage": True})
        )

    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[1:]][-1] == "length"
    assert len("".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks).split()) == 6
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 6, "[DONE]")


async def test_streamed_and_plain_say_the_same():
    """The same prompt and seed give the same text, streamed or not, chat after chat."""
    async with a_worker(seed=3) as worker:
        plain = await (await worker.chat(max_tokens=40)).json()
        chunks = (await events_of(await worker.chat(max_tokens=40, stream=True)))[:-1]

    assert (
        "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        == (plain["choices"][0]["message"]["content"])
    )


async def test_a_streamed_completion_with_usage_in_every_event():
    """Completion tokens count up from event to event to the sum at the end."""
    body = {"prompt": "hello", "max_tokens": 5, "ignore_eos": True, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with a_worker() as worker:
        response = await worker.http.post(worker.url + "/v1/completions", json={**body, "stream_options": options})
        events = await events_of(response)

    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert counts[-2:] == [5, 5]


async def test_a_plain_completion():
    """A completion that is not streamed comes as one object with its usage."""
    async with a_worker() as worker:
        response = await worker.http.post(worker.url + "/v1/completions", json={"prompt": "hello", "max_tokens": 5})
        answer = await response.json()

    assert (answer["object"], answer["usage"]["total_tokens"]) == ("text_completion", 7)


async def test_a_repeated_prompt_is_cached():
    """The second of two equal prompts is answered from the cache, in usage and on the metrics page."""
    messages = [{"role": "user", "content": "water " * 200}]
    async with a_worker() as worker:
        details = []
        for _ in range(2):
            answer = await (await worker.chat(messages=messages, max_tokens=1)).json()
            details.append(answer["usage"]["prompt_tokens_details"])
        hits = await worker.metric("vllm:prefix_cache_hits_total")

    assert details[0]["cached_tokens"] == 0
    assert details[1]["cached_tokens"] == details[0]["created_cache_tokens"] == hits == 304


async def test_the_head_comes_before_the_first_token():
    """Headers of a stream arrive at once, long before a long prompt has been computed."""
    async with a_worker(speed=1.0) as worker:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        response = await worker.chat(messages=[{"role": "user", "content": "x" * 40_000}], stream=True, max_tokens=1)
        head_after = loop.time() - started_at
        await response.read()
        body_after = loop.time() - started_at

    assert body_after > 0.3  # 10,000 tokens of prefill
    assert head_after < body_after / 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_its_request(stream):
    """When the client's connection closes the engine drops the request at once, streamed or not, and counts no success."""
    async with a_worker(speed=1.0) as worker:
        asking = asyncio.create_task(worker.chat(stream=stream, max_tokens=10_000, ignore_eos=True))
        await worker.metric_becomes("vllm:num_requests_running", 1, 5)
        if stream:
            (await asking).close()
        else:
            asking.cancel()
        await worker.metric_becomes("vllm:num_requests_running", 0, 1)
        finished = await worker.metric("vllm:request_success_total")
        used = await worker.metric("vllm:kv_cache_usage_perc")

    assert (finished, used) == (0, 0)


async def test_waiting_requests_are_counted():
    """What exceeds the number of sequences shows up as waiting."""
    async with a_worker(speed=1.0, max_num_seqs=1) as worker:
        streams = [await worker.chat(stream=True, max_tokens=10_000, ignore_eos=True) for _ in range(3)]
        await worker.metric_becomes("vllm:num_requests_waiting", 2, 5)
        for stream in streams:
            stream.close()
        await worker.metric_becomes("vllm:num_requests_waiting", 0, 1)


async def test_finished_requests_are_measured():
    """Each finished request is in the success counter and the three histograms, and its tokens are counted."""
    async with a_worker() as worker:
        for _ in range(3):
            await (await worker.chat(max_tokens=4, ignore_eos=True)).read()
        names = ("time_to_first_token_seconds_count", "inter_token_latency_seconds_count", "e2e_request_latency_seconds_count")
        counts = [await worker.metric(f"vllm:{name}") for name in (*names, "request_success_total", "generation_tokens_total")]

    assert counts == [3, 9, 3, 3, 12]


async def test_the_request_id_of_the_client_ends_the_id_of_the_answer():
    """``X-Request-Id`` becomes the suffix of the id; without it the suffix is random."""
    async with a_worker() as worker:
        body = {"model": "m", "messages": HELLO, "max_tokens": 1}
        url = worker.url + "/v1/chat/completions"
        ids = []
        for headers in ({"X-Request-Id": "my-1"}, {}, {}):
            async with worker.http.post(url, json=body, headers=headers) as response:
                ids.append((await response.json())["id"])

    assert ids[0] == "chatcmpl-my-1"
    assert len(set(ids)) == 3


async def test_headers_are_those_of_a_captured_worker():
    """A stream and a plain answer have the header names and fixed values of the capture, in its order.

    Left out: the request id that the captured server had a flag on for, and who frames the body.
    """
    async with a_worker() as worker:
        for name, stream in (("chat_stream", True), ("chat_nonstream", False)):
            ours = (await worker.chat(stream=stream, max_tokens=1)).headers
            lines = load(name).response_head.decode().split("\r\n")[1:-2]
            captured = dict(line.split(": ", 1) for line in lines if not line.startswith("x-request-id"))
            assert [key.lower() for key in ours] == list(captured)
            fixed = ("server", "content-type", "vary", "transfer-encoding")
            assert [ours.get(key) for key in fixed] == [captured.get(key) for key in fixed]


async def test_models_health_version_and_tokenize():
    """The small endpoints answer as vLLM's do."""
    async with a_worker(max_model_len=4096) as worker:
        async with worker.http.get(worker.url + "/v1/models") as response:
            card = (await response.json())["data"][0]
        async with worker.http.get(worker.url + "/health") as response:
            health = (response.status, await response.read())
        async with worker.http.get(worker.url + "/version") as response:
            version = await response.json()
        async with worker.http.post(worker.url + "/tokenize", json={"model": "m", "prompt": "hello"}) as response:
            tokenized = await response.json()

    assert (card["id"], card["max_model_len"]) == ("m", 4096)
    assert (health, version) == ((200, b""), {"version": "0.32.0"})
    assert (tokenized["count"], tokenized["max_model_len"]) == (2, 4096)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "/v1/chat/completions", b'{"model":"other","messages":[]}', 400, "empty conversation"),
        ("POST", "/v1/completions", b'{"model":"other","prompt":"x"}', 404, "The model `other` does not exist"),
        ("POST", "/v1/completions", b"{", 400, "json_invalid"),
        ("POST", "/v1/completions", b"", 400, "Field required"),
        ("POST", "/v1/completions", b'{"prompt":"x","n":2}', 400, "n must be 1"),
        ("POST", "/nothing", b"{}", 404, '{"detail":"Not Found"}'),
        ("GET", "/v1/completions", None, 405, '{"detail":"Method Not Allowed"}'),
        ("HEAD", "/health", None, 405, ""),
    ],
)
async def test_errors(method, path, body, status, text):
    """What is wrong is answered as vLLM does, as plain JSON."""
    async with a_worker() as worker:
        headers = {"content-type": "application/json"}
        async with worker.http.request(method, worker.url + path, data=body, headers=headers) as response:
            assert response.status == status
            assert text in await response.text()


async def test_a_body_must_be_announced_as_json():
    """Another content type is a 400, whatever the body is."""
    async with a_worker() as worker:
        headers = {"content-type": "text/plain"}
        async with worker.http.post(worker.url + "/v1/completions", data=b'{"prompt":"x"}', headers=headers) as response:
            assert (response.status, "Unsupported Media Type" in await response.text()) == (400, True)


async def test_the_key_guards_what_lies_below_v1():
    """Without the key everything below /v1 is a 401, unknown paths too; the rest is open."""
    async with a_worker(api_key="sk-test") as worker:
        found = {}
        for path in ("/v1/models", "/v1/nothing", "/health", "/metrics"):
            async with worker.http.get(worker.url + path) as response:
                found[path] = (response.status, await response.read() if response.status == 401 else b"")
        async with worker.http.get(worker.url + "/v1/models", headers={"Authorization": "Bearer sk-test"}) as response:
            with_key = response.status

    refused = (401, b'{"error":"Unauthorized"}')
    assert found == {"/v1/models": refused, "/v1/nothing": refused, "/health": (200, b""), "/metrics": (200, b"")}
    assert with_key == 200


async def test_large_bodies_are_read():
    """There is no limit on the size of a body but the context's."""
    async with a_worker() as worker:
        body = io.BytesIO(json.dumps({"prompt": "x" * 3_000_000}).encode())
        headers = {"content-type": "application/json"}
        async with worker.http.post(worker.url + "/v1/completions", data=body, headers=headers) as response:
            assert (response.status, "maximum context length" in await response.text()) == (400, True)


async def test_idle_connections_are_closed_after_five_seconds():
    """A kept connection without a request is closed by the worker, as uvicorn does."""
    async with a_worker() as worker:
        host, port = worker.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        started_at = asyncio.get_running_loop().time()
        async with asyncio.timeout(8):
            assert await reader.read() == b""
        idle_seconds = asyncio.get_running_loop().time() - started_at
        writer.close()

    assert 4.5 < idle_seconds < 6.5


async def test_the_command_serves_until_it_is_told_to_end():
    """``python -m simulator.worker`` says its URL on its first line, answers there, and ends with status 0 on SIGTERM."""
    command = ["-m", "simulator.worker", "--model", "m", "--gpu", "h200-sxm", "--port", "0"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            url = (await process.stdout.readline()).decode().split()[-1]
            async with aiohttp.ClientSession() as http, http.get(url + "/health") as response:
                assert response.status == 200
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--gpu", "abacus"], b"unknown GPU 'abacus'; the simulated worker knows a100-sxm4-80gb, h100-sxm"),
        (
            ["--gpu", "l40s", "--max-model-len", "1000000"],
            b"max_model_len 1000000 is more than the 190000 tokens of KV cache",
        ),
        (["--gpu", "l40s", "--speed", "0"], b"speed must be above 0"),
    ],
)
async def test_settings_that_cannot_be_are_one_line(more, why):
    """A wrong setting ends the command with status 2 and a line that says what is wrong."""
    command = ["-m", "simulator.worker", "--model", "m", "--port", "0", *more]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
    _, complaint = await process.communicate()

    assert process.returncode == 2
    assert complaint.startswith(b"error: " + why)
    assert complaint.count(b"\n") == 1
