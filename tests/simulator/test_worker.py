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

from simulator.hardware import Hardware, place
from simulator.server import RunningWorker, WorkerSettings, start_worker
from tests.captures import load

pytestmark = pytest.mark.integration

HELLO = [{"role": "user", "content": "hello"}]


@dataclass
class Running:
    """A worker that runs in this process, and a client."""

    url: str
    http: aiohttp.ClientSession
    running: RunningWorker

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
    given = {"model": "m", "shape": "llama-3.1-8b", "gpu": "h100-sxm", "port": 0, "speed": 20.0, **settings}
    running, url = await start_worker(WorkerSettings(**given))
    try:
        async with aiohttp.ClientSession() as http:
            yield Running(url, http, running)
    finally:
        await running.cleanup()


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
    async with a_worker(prompt_tokens_details=True) as worker:
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
        async with worker.http.post(worker.url + "/detokenize", json={"tokens": tokenized["tokens"]}) as response:
            assert await response.json() == {"prompt": "hello"}

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


async def test_load_counts_open_requests_with_its_flag():
    """``/load`` tells how many requests are being answered, if that is tracked, and 0 otherwise."""
    for tracks, expected in ((True, 1), (False, 0)):
        async with a_worker(speed=1.0, load_tracking=tracks) as worker:
            stream = await worker.chat(stream=True, max_tokens=10_000, ignore_eos=True)
            async with worker.http.get(worker.url + "/load") as response:
                assert await response.json() == {"server_load": expected}
            stream.close()


async def test_choices_come_side_by_side():
    """Several choices are told in turn, each with its finish reason, and usage is their sum."""
    options = {"include_usage": True}
    async with a_worker() as worker:
        *chunks, usage, _ = await events_of(
            await worker.chat(stream=True, n=3, max_tokens=4, ignore_eos=True, stream_options=options)
        )
        plain = await (await worker.chat(n=3, max_tokens=4, ignore_eos=True)).json()

    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
    assert texts == [choice["message"]["content"] for choice in plain["choices"]]
    assert len(set(texts)) == 3
    assert usage["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"] == 12


async def test_silence_is_broken_by_comments():
    """With the flag a comment comes after each such silence, before the first token too, and no comment between tokens."""
    async with a_worker(sse_keep_alive_seconds=0.05, speed=1.0) as worker:
        response = await worker.chat(stream=True, max_tokens=3, messages=[{"role": "user", "content": "x" * 40_000}])
        text = await response.text()

    first, _, rest = text.partition("data: ")
    assert first.count(": keep-alive\n\n") >= 4
    assert ": keep-alive" not in rest


async def test_a_rank_can_be_asked_for():
    """A header picks the data-parallel engine, whose cache is its own; each engine has its own series."""
    messages = [{"role": "user", "content": "water " * 200}]
    url = "/v1/chat/completions"
    async with a_worker(data_parallel_size=2, prompt_tokens_details=True) as worker:
        cached = []
        for rank in ("0", "0", "1"):
            body = {"messages": messages, "max_tokens": 1}
            async with worker.http.post(worker.url + url, json=body, headers={"X-data-parallel-rank": rank}) as response:
                cached.append((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])
        generated = [rank.totals.generation_tokens for rank in worker.running.worker.driver.engine.ranks]

    assert cached[0] == cached[2] == 0 < cached[1]
    assert generated == [2, 1]


async def test_a_prompt_is_prefilled_here_and_continued_there():
    """What a prefill worker says of its blocks lets a decode worker begin almost at once, and count them as cached."""
    messages = [{"role": "user", "content": "water " * 2000}]
    flags = {"kv_connector": True, "prompt_tokens_details": True, "speed": 1.0}
    async with a_worker(**flags) as prefill, a_worker(**flags) as decode:
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        first = await (await prefill.chat(messages=messages, max_tokens=1, kv_transfer_params=asked)).json()
        params = first["kv_transfer_params"]
        second = await (await decode.chat(messages=messages, max_tokens=2, kv_transfer_params=params)).json()
        spoiled = {**params, "remote_engine_id": None}
        others = [{"role": "user", "content": "wafer " * 2000}]
        third = await (await decode.chat(messages=others, max_tokens=2, kv_transfer_params=spoiled)).json()
        external = await decode.metric("vllm:external_prefix_cache_hits_total")
        prompts = await decode.metric("vllm:prompt_tokens_total")

    tokens = first["usage"]["prompt_tokens"]
    assert (params["do_remote_prefill"], params["remote_num_tokens"]) == (True, tokens)
    assert params["remote_port"] == int(prefill.url.rpartition(":")[2])
    assert len(params["remote_block_ids"][0]) == -(-tokens // 16)
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (second, third)]
    assert cached == [tokens - 1, 0]  # the last token is computed: the next one comes from it
    assert (second["kv_transfer_params"], external, prompts) == (None, cached[0], 2 * tokens)


async def test_memory_is_told_as_it_was_set():
    """The size of the cache is what the GPU's memory leaves, and the labels have format and share of the memory."""
    hardware = Hardware(kv_cache_dtype="fp8", memory_utilization_ratio=0.8)
    expected = place("llama-3.1-8b", None, "h100-sxm", hardware).kv_tokens
    async with a_worker(hardware=hardware) as worker, worker.http.get(worker.url + "/metrics") as response:
        families = {family.name: family for family in text_string_to_metric_families(await response.text())}
    labels = families["vllm:cache_config_info"].samples[0].labels

    assert (labels["cache_dtype"], labels["gpu_memory_utilization"]) == ("fp8", "0.8")
    assert int(labels["num_gpu_blocks"]) * 16 == expected // 16 * 16


async def test_an_old_version_is_imitated():
    """Version, error form, reasoning field and metric names are those of the version asked for."""
    async with a_worker(imitate="0.9.2", thinks=True) as worker:
        async with worker.http.get(worker.url + "/version") as response:
            assert await response.json() == {"version": "0.9.2"}
        message = (await (await worker.chat(max_tokens=60)).json())["choices"][0]["message"]
        error = await (await worker.chat(model="other")).json()
        old = await worker.metric("vllm:time_per_output_token_seconds_count")

    assert message["reasoning_content"]
    assert "reasoning" not in message
    assert (error["object"], error["code"]) == ("error", 404)
    assert old == 59


async def test_development_mode_has_more_endpoints():
    """Requests can be aborted and the engine paused; without the mode those paths do not exist."""
    async with a_worker(speed=1.0, dev_mode=True) as worker:
        body = {"messages": HELLO, "max_tokens": 10_000, "ignore_eos": True, "stream": True}
        url = worker.url + "/v1/chat/completions"
        stream = await worker.http.post(url, json=body, headers={"X-Request-Id": "to-abort"})
        await worker.metric_becomes("vllm:num_requests_running", 1, 5)
        plain = asyncio.create_task(worker.http.post(url, json={**body, "stream": False}, headers={"X-Request-Id": "to-abort"}))
        await worker.metric_becomes("vllm:num_requests_running", 2, 5)
        ids = {"request_ids": ["chatcmpl-to-abort", "chatcmpl-to-abort'"]}
        async with worker.http.post(worker.url + "/abort_requests", json=ids) as response:
            assert await response.json() == {"status": "aborted", "aborted": 2}
        chunks = await events_of(stream)
        answer = await (await plain).json()
        async with worker.http.post(worker.url + "/pause") as response:
            assert await response.json() == {"status": "paused"}
        waiting = asyncio.create_task(worker.chat(max_tokens=2))
        await worker.metric_becomes("vllm:num_requests_waiting", 1, 5)
        async with worker.http.post(worker.url + "/resume") as response:
            assert response.status == 200
        assert (await waiting).status == 200
    async with a_worker() as worker, worker.http.post(worker.url + "/pause") as response:
        assert response.status == 404

    assert (chunks[-2]["choices"][0]["finish_reason"], chunks[-1]) == ("abort", "[DONE]")
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert answer["usage"]["completion_tokens"] == len(answer["choices"][0]["message"]["content"].split())


async def test_the_cache_can_be_emptied():
    """After that a warm prompt is cold."""
    messages = [{"role": "user", "content": "water " * 200}]
    async with a_worker(dev_mode=True, prompt_tokens_details=True) as worker:
        cached = []
        for resets in (False, False, True):
            if resets:
                await worker.http.post(worker.url + "/reset_prefix_cache")
            answer = await (await worker.chat(messages=messages, max_tokens=1)).json()
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert (cached[0], cached[1] > 0, cached[2]) == (0, True, 0)


async def test_a_worker_that_is_told_to_end_lets_requests_end_first():
    """While it waits new requests get a 500; what has not ended in time fails, and then the port is closed."""
    async with a_worker(speed=1.0) as worker:
        short = asyncio.create_task(worker.chat(max_tokens=20, ignore_eos=True))
        long = await worker.chat(stream=True, max_tokens=10_000, ignore_eos=True)
        await worker.metric_becomes("vllm:num_requests_running", 2, 5)
        ending = asyncio.create_task(worker.running.shutdown(0.5))
        await asyncio.sleep(0)
        refused = await worker.chat(max_tokens=1)
        assert (refused.status, (await refused.json())["error"]["message"]) == (
            500,
            "cannot schedule new futures after shutdown",
        )
        assert (await short).status == 200
        text = await long.text()
        await ending
        with pytest.raises(aiohttp.ClientConnectorError):
            await worker.chat(max_tokens=1)

    assert text.endswith("data: [DONE]\n\n")
    assert '"code": 500' in text


async def test_a_driver_that_fails_is_told(caplog):
    """A fault in the engine does not go unnoticed: it is logged at once, and raised at the end."""
    running, _ = await start_worker(WorkerSettings(model="m", shape="llama-3.1-8b", gpu="h100-sxm", port=0))
    await asyncio.sleep(0)
    running.worker.driver.engine.schedule = None  # type: ignore[method-assign,assignment]  # any fault will do
    running.worker.driver.wake()
    await asyncio.wait({running.driving}, timeout=5)

    with pytest.raises(ExceptionGroup):
        await running.cleanup()
    assert "the engine's driver failed" in caplog.text


async def test_the_command_serves_until_it_is_told_to_end():
    """``python -m simulator.worker`` says its URL on its first line, answers there, and ends with status 0 on SIGTERM."""
    command = ["-m", "simulator.worker", "--model", "m", "--shape", "llama-3.1-8b", "--gpu", "h200-sxm", "--port", "0"]
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
        (["--gpu", "abacus"], b"unknown GPU 'abacus'. To use it, give its figures"),
        (["--gpu", "l40s", "--shape", "no-such-model"], b"no model is known by the name 'no-such-model'"),
        (
            ["--gpu", "l40s", "--shape", "llama-3.1-70b"],
            b"meta-llama/Llama-3.1-70B in bf16 on 1 x l40s leaves no room for a KV cache",
        ),
        (
            ["--gpu", "l40s", "--max-model-len", "1000000"],
            b"max_model_len 1000000 is more than the 201936 tokens of KV cache",
        ),
        (["--gpu", "l40s", "--speed", "0"], b"speed must be above 0"),
    ],
)
async def test_settings_that_cannot_be_are_one_line(more, why):
    """A wrong setting ends the command with status 2 and a line that says what is wrong."""
    command = ["-m", "simulator.worker", "--model", "m", "--shape", "llama-3.1-8b", "--port", "0", *more]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
    _, complaint = await process.communicate()

    assert process.returncode == 2
    assert complaint.startswith(b"error: " + why)
    assert complaint.count(b"\n") == 1
