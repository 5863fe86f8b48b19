"""`ridgeline probe` as a user runs it, on simulated workers and on endpoints that refuse things."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from simulator.children import child
from simulator.server import WorkerSettings, start_worker
from tests.integration.gateway import ROOT

pytestmark = pytest.mark.integration

MODEL = "llama-3.1-8b"
END_SECONDS = 60.0
QUICK = ("--outputs", "16,32,64", "--prompts", "", "--contexts", "")


@asynccontextmanager
async def a_worker(**settings: Any) -> AsyncIterator[str]:
    worker, url = await start_worker(
        WorkerSettings(model=MODEL, gpu="h100-sxm", port=0, prompt_tokens_details=True, **settings)
    )
    try:
        yield url
    finally:
        await worker.cleanup()


@asynccontextmanager
async def an_endpoint(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """An endpoint that is no vLLM: one handler for every path."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def started(*arguments: str, environ: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy.cli", "probe", *arguments),
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def probed(*arguments: str, environ: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    process = await started(*arguments, environ=environ)
    out, err = await asyncio.wait_for(process.communicate(), END_SECONDS)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.alone
@pytest.mark.flaky(reruns=2)
async def test_a_probe_recovers_what_the_worker_is_made_of(tmp_path: Path) -> None:
    """Slope and knee of a worker process within 5 % of what it was given, TTFT within 10 %; longer contexts, an earlier knee.

    Client and sockets add one to three milliseconds to each TTFT, and nine on a machine whose cores are all wanted by others;
    100 ms before the queue make them few. Fits are of medians, which one late request in three does not move.
    """
    worker = ("-m", "simulator.worker", "--model", MODEL, "--gpu", "h100-sxm", "--port", "0", "--request-overhead", "0.1")
    async with child("worker", worker, folder=tmp_path, grace_seconds=2.0, reads_output=True) as process:
        url = (await asyncio.wait_for(process.first_line(), END_SECONDS)).split()[-1]
        status, out, err = await probed(
            url,
            *("--gpu", "h100-sxm", "--shape", MODEL, "--json", "--prompt-output", "8"),
            *("--outputs", "16,48,96", "--prompts", "256,512,1024,2048"),
            *("--concurrency", "1,4,12,24", "--contexts", "2048,8192", "--concurrency-output", "48"),
        )

    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["ended"], found["failed"]) == ("complete", 0)
    fit, points = found["output"][0]["fit"], found["output"][0]["points"]
    per_token = (points[-1]["expected_seconds"] - points[0]["expected_seconds"]) / 80
    assert fit["tpot_seconds"]["value"] == pytest.approx(per_token, rel=0.05)
    assert fit["ttft_seconds"]["value"] == pytest.approx(0.1 + points[0]["expected_seconds"] - 15 * per_token, rel=0.1)
    for one in found["prompt"][0]["points"]:
        assert one["ttft_seconds"] == pytest.approx(0.1 + one["expected_seconds"], rel=0.1)
    knees = {}
    for series in found["concurrency"]:
        if series["warm"]:
            few, many = (series["points"][place]["tpot_expected_seconds"] for place in (0, 3))
            own = (many - few) / 23
            knees[series["context_tokens"]] = series["knee"]["requests"]["value"]
            # At 2,048 tokens the knee lies at three times the 24 requests that are sent: the line reaches so far.
            assert knees[series["context_tokens"]] == pytest.approx((few - own) / own, rel=0.05)
    assert knees[8192] < knees[2048] / 3
    assert {"decode_bound", "prefix_cache", "knee", "knee_moves"} <= {remark["code"] for remark in found["remarks"]}
    assert found["kv"]["peak_ratio"] > 0


async def test_a_cancelled_probe_keeps_what_was_measured() -> None:
    """Ctrl-C ends the requests, and the table says what is there and what is not."""
    async with a_worker() as url:
        process = await started(url, *QUICK, "--repeats", "50", "--json")
        await asyncio.sleep(3.0)
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), END_SECONDS)

    assert (process.returncode, err.decode()) == (130, "")
    found = json.loads(out)
    assert found["ended"] == "cancelled"
    assert 1 < found["requests"] < 300
    assert found["output"][0]["points"]


async def test_a_probe_stays_within_its_bounds() -> None:
    """No more requests than allowed, and the rest is named."""
    async with a_worker(speed=20.0) as url:
        status, out, _ = await probed(url, *QUICK, "--max-requests", "4")

    assert status == 0
    assert "stopped at --max-requests; not measured: 512 + 64 tokens" in out


async def test_a_key_is_asked_for_and_taken() -> None:
    """Without one the way to give it is told, a wrong one is named by its variable, the right one is taken."""
    async with a_worker(api_key="right", speed=20.0) as url:
        none = await probed(url, *QUICK)
        wrong = await probed(url, *QUICK, "--api-key-env", "KEY", environ={"KEY": "wrong"})
        right = await probed(url, *QUICK, "--api-key-env", "KEY", environ={"KEY": "right"})

    assert (none[0], wrong[0], right[0]) == (2, 2, 0)
    assert "--api-key-env" in none[2]
    assert "refuses the key in KEY" in wrong[2]
    assert "right" not in wrong[2]


async def test_what_cannot_be_probed_is_told_in_a_line() -> None:
    """A wrong model names those that are there; where nobody listens is said as it is."""
    async with a_worker() as url:
        other = await probed(url, "--model", "llama-3.1-70b")
    gone = await probed(url)

    assert other[0] == gone[0] == 2
    assert f"there is no model 'llama-3.1-70b'; the endpoint lists {MODEL}" in other[2]
    assert "nothing can be reached at http://127.0.0.1:" in gone[2]
    assert other[2].count("\n") == gone[2].count("\n") == 1


async def test_fields_that_an_endpoint_refuses_are_left_out() -> None:
    """Chat only, no vLLM extras, another name for the limit, no metrics: it is probed all the same, and all of it is told."""
    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != "/v1/chat/completions":
            return web.json_response({"error": {"message": "Not Found"}}, status=404)
        body = await request.json()
        for name in ("ignore_eos", "min_tokens"):
            if name in body:
                return web.json_response({"error": {"message": f"Unrecognized request argument supplied: {name}"}}, status=400)
        if "max_tokens" in body:
            said = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return web.json_response({"error": {"message": said}}, status=400)
        bodies.append(body)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        count = body["max_completion_tokens"] // 2
        for place in range(count):
            choice = {"index": 0, "delta": {"content": "a "}, "finish_reason": "stop" if place == count - 1 else None}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            await asyncio.sleep(0.002)
        usage = {"prompt_tokens": len(body["messages"][0]["content"].split()), "completion_tokens": count}
        await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    async with an_endpoint(answer) as url:
        unnamed = await probed(url, *QUICK)
        status, out, err = await probed(url, *QUICK, "--model", "some-model", "--json")

    assert unnamed[0] == 2
    assert "name one with --model" in unnamed[2]
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["endpoint"] == "/v1/chat/completions"
    assert set(found["sampling"]["refused"]) == {"ignore_eos", "min_tokens"}
    assert found["has_exact_outputs"] is False
    assert [point["output_tokens"] for point in found["output"][0]["points"]] == [8, 16, 32]
    assert "metrics_untold" in {remark["code"] for remark in found["remarks"]}
    assert all(body["temperature"] == 0 and body["stream"] for body in bodies)
