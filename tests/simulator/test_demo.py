"""The demo: its parts, and the whole of it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
import yaml

from proxy.config.settings import parse_config
from simulator.children import child
from simulator.demo import WORKERS, Addresses, choose_addresses, gateway_config, welcome

ADDRESSES = Addresses(client="127.0.0.1:8080", observe="127.0.0.1:8082", admin="127.0.0.1:8081")


def test_the_default_ports_are_taken_when_they_are_free():
    """Nothing is said when all three are free."""
    said: list[str] = []

    assert choose_addresses(said.append, lambda _: True, lambda: 1) == ADDRESSES
    assert said == []


def test_a_taken_port_is_replaced_and_said():
    """Only the taken one is replaced, and a line tells where to find it."""
    said: list[str] = []
    chosen = choose_addresses(said.append, lambda port: port != 8081, lambda: 4711)

    assert (chosen.client, chosen.admin) == ("127.0.0.1:8080", "127.0.0.1:4711")
    assert said == ["Port 8081 is taken; admin will find the gateway on 4711."]


def test_the_configuration_is_accepted_by_the_gateway():
    """The gateway reads the demo's configuration, with both pools and every worker in its own."""
    urls = {worker.name: f"http://127.0.0.1:{9000 + number}" for number, worker in enumerate(WORKERS)}
    text = yaml.safe_dump(gateway_config(ADDRESSES, urls, Path("/tmp/x.jsonl")))
    config = parse_config(text, {}, "demo")

    assert [(pool.name, pool.max_total_tokens, pool.gpu) for pool in config.models[0].pools] == [
        ("short", 16384, "h100-sxm"),
        ("long", 131072, "h200-sxm"),
    ]
    assert [worker.label for pool in config.models[0].pools for worker in pool.workers] == ["short-1", "short-2", "long-1"]


def test_the_welcome_has_every_address():
    """All that a person may open is printed, with a curl line that streams, and it is said where the timing is from."""
    text = welcome(ADDRESSES, Path("/tmp/x.jsonl"))

    for part in ("http://127.0.0.1:8080/v1", ":8082/metrics", "http://127.0.0.1:8081/\n", ":8081/api/\n", "/tmp/x.jsonl"):
        assert part in text
    assert "curl -N http://127.0.0.1:8080/v1/chat/completions" in text
    assert "losses fitted to published measurements" in text


@pytest.mark.integration
async def test_a_child_that_does_not_end_is_made_to(tmp_path):
    """A child that ignores SIGTERM is killed when its grace is over, and what it wrote is kept."""
    program = "import signal,sys,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    async with child("stubborn", ["-c", program], folder=tmp_path, grace_seconds=0.2, reads_output=True) as started:
        assert await started.first_line() == "up"

    assert started.process.returncode == -signal.SIGKILL


@pytest.mark.integration
async def test_last_words_are_what_it_wrote_at_the_end(tmp_path):
    """The end of a child's standard error can be shown."""
    async with child("brief", ["-c", "raise SystemExit('no luck')"], folder=tmp_path, grace_seconds=5) as started:
        await started.process.wait()

    assert started.last_words() == "no luck"


@pytest.mark.integration
async def test_the_whole_demo(tmp_path):
    """It says its URLs, a client is answered through the gateway, traffic shows up in its line, and SIGTERM ends all of it."""
    log = tmp_path / "requests.jsonl"
    command = ["-m", "simulator.demo", "--log", str(log)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    said: list[str] = []

    async def until(start: str) -> str:
        while line := (await process.stdout.readline()).decode():
            said.append(line)
            if line.strip().startswith(start):
                return line.strip()
        raise AssertionError("".join(said))

    try:
        async with asyncio.timeout(60):
            base = (await until("client base URL")).split()[-1]
            body = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 3}
            async with aiohttp.ClientSession() as http, http.post(f"{base}/chat/completions", json=body) as response:
                assert response.status == 200
                assert (await response.text()).endswith("data: [DONE]\n\n")
            line = await until("requests")
            process.terminate()
            await until("All processes have ended.")
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()

    assert "mean ttft" in line
    assert "mean ttft -" not in line
    records = [json.loads(text) for text in log.read_text().splitlines()]
    assert {"short"} <= {record["pool"] for record in records}
