"""The commands of the README and of the how-to pages are run as they stand there, only on other addresses."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from simulator.server import WorkerSettings, start_worker
from tests.certificates import Authority
from tests.integration.gateway import Gateway, free_ports, running_gateway
from tests.pages import ROOT, Block, Shell, block, relocated

MODEL = "llama-3.1-8b"


def run_here(page: str, first: str) -> Block:
    """The block of this page that begins so, which the calling test runs."""
    return block(page, first)


@asynccontextmanager
async def a_gateway(name: str = MODEL, *, extra: dict[str, Any] | None = None) -> AsyncIterator[Gateway]:
    """A gateway with two simulated workers of a model."""
    async with AsyncExitStack() as stack:
        urls = []
        for _ in range(2):
            settings = WorkerSettings(model=name, shape=MODEL, gpu="h100-sxm", port=0, prompt_tokens_details=True)
            worker, url = await start_worker(settings)
            stack.push_async_callback(worker.cleanup)
            urls.append(url)
        models = [{"name": name, "shape": MODEL, "pools": [{"name": "default", "gpu": "h100-sxm", "workers": urls}]}]
        yield await stack.enter_async_context(running_gateway({"models": models, **(extra or {})}))


async def ask(url: str, prompt: str, model: str = MODEL, **more: Any) -> int:
    """The status of one chat completion."""
    body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": prompt}], **more}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=body) as answer:
        await answer.read()
        return answer.status


async def end(process: asyncio.subprocess.Process) -> str:
    """End a shell and all that it started; what was written on standard error."""
    os.killpg(process.pid, signal.SIGTERM)
    _, err = await asyncio.wait_for(process.communicate(), 20)
    return err.decode()


async def until_ready(url: str, process: asyncio.subprocess.Process, path: str = "/readyz") -> None:
    """Until this path is 200. AssertionError when the process has ended, TimeoutError after 20 s."""
    async with asyncio.timeout(20), aiohttp.ClientSession() as http:
        while True:
            assert process.returncode is None
            try:
                async with http.get(f"{url}{path}") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "one",
    [
        run_here("plan-capacity", "ridgeline plan --model llama-3.1-8b --gpu h100-sxm"),
        run_here("plan-capacity", "ridgeline plan --model llama-3.1-70b"),
        run_here("plan-capacity", "ridgeline plan --model llama-3.1-8b --gpu h100-sxm --rate 12"),
        run_here("plan-capacity", "ridgeline plan … --json"),
    ],
    ids=["one", "several", "a figure", "checked"],
)
async def test_plans_are_made(one: Block, tmp_path: Path):
    """Each with a sheet, or with what `jq` takes out of it."""
    (tmp_path / "ridgeline.yaml").write_text(block("separate-long-contexts", "# ridgeline.yaml").text)
    text = one.text.replace("…", "--model llama-3.1-8b --gpu h100-sxm")

    done = await Shell(tmp_path).run(text)

    assert (done.status, done.err) == (0, "")
    assert done.out.strip()


async def test_the_alert_examples_are_valid(tmp_path: Path):
    """For the tools of the page."""
    done = await Shell(tmp_path).run(run_here("alerts", "promtool check config").text, folder=ROOT)

    assert done.status == 0, done.err


async def test_without_a_token_nobody_else_reaches_admin(tmp_path: Path):
    """The gateway refuses to start with the words of the page, and with the page's setting a token opens it."""
    refused = run_here("admin-access", "$ ridgeline serve")
    (tmp_path / "gateway.yaml").write_text(
        "models:\n  - {name: m, workers: [http://127.0.0.1:1]}\nadmin_listen: 0.0.0.0:8081\n"
    )

    done = await Shell(tmp_path).run(refused.commands[0])

    assert done.status == 2
    assert done.err.strip() == refused.answers[0]

    asked = run_here("admin-access", "$ curl -s http://10.0.0.5:8081/api/workers")
    settings = yaml.safe_load(block("admin-access", "admin_listen:").text)
    token = {"ADMIN_TOKEN": "0123456789abcdef0123456789abcdef"}
    extra = {name: value for name, value in settings.items() if name != "admin_listen"}
    models = [{"name": "m", "workers": ["http://127.0.0.1:1"]}]
    shell = Shell(tmp_path / "asking", token)
    async with running_gateway({"models": models, **extra}, environ=token, wait_ready=False) as gateway:
        await gateway.ready(gateway.observe_url)
        for command, answer in zip(asked.commands, asked.answers, strict=True):
            said = await shell.run(command.replace("http://10.0.0.5:8081", gateway.admin_url))
            shown = json.loads(answer) if "…" not in answer else None
            assert json.loads(said.out) == shown or set(json.loads(said.out)[0]) >= set(re.findall(r'"(\w+)":', answer))


async def test_a_key_of_another_certificate_is_named(tmp_path: Path):
    """In the words of the page."""
    one = run_here("tls", "$ ridgeline check gateway.yaml")
    authority = Authority(tmp_path)
    (certificate, _), (_, key) = authority.issue("tls"), authority.issue("other")
    key.replace(tmp_path / "tls.key")
    assert certificate.name == "tls.crt"
    lines = ["models:", "  - name: m", "    workers: [http://127.0.0.1:1]", "", "tls: {certificate: tls.crt, key: tls.key}"]
    (tmp_path / "gateway.yaml").write_text("\n".join(lines))

    done = await Shell(tmp_path).run(one.commands[0])

    assert (done.status, (done.out + done.err).strip()) == (2, one.answers[0])


async def test_a_script_of_a_vllm_router_is_converted(tmp_path: Path):
    """Into what the page shows, as far as it shows it."""
    one = run_here("move-in", "$ ridgeline import vllm-router tests")

    done = await Shell(tmp_path).run(one.commands[0], folder=ROOT)

    assert done.status == 1  # for something was not carried over
    assert done.out.startswith(one.answers[0].removesuffix("…").rstrip())


async def test_a_running_gateway_is_changed(tmp_path: Path):
    """Every call is answered with the fleet, and told on standard error with what came of it."""
    one = run_here("change-a-running-gateway", "curl -s http://127.0.0.1:8081/api/state")
    workers = ["http://10.0.0.11:8000", "http://10.0.0.12:8000"]  # named by their addresses, never asked
    models = [{"name": "my-model", "workers": workers}]
    async with running_gateway({"models": models}, wait_ready=False) as gateway:
        await gateway.ready(gateway.observe_url)
        here = gateway.admin_url.removeprefix("http://")
        text = one.text.replace("127.0.0.1:8081", here).replace("curl -s", "curl -sS --fail-with-body -o /dev/null")
        done = await Shell(tmp_path).run(text)
        told = gateway.stderr

    assert (done.status, done.err) == (0, "")
    assert len(re.findall(r"INFO (?:POST|DELETE) /api/workers\S* .*by 127.0.0.1 without a token: done", told)) == 4


async def test_a_set_up_is_examined(tmp_path: Path):
    """Findings for people, and their codes for programs; with the default addresses only where nobody has them."""
    people = run_here("doctor", "ridgeline doctor --config ridgeline.yaml  ")
    programs = run_here("doctor", "ridgeline doctor --config ridgeline.yaml --json")
    async with a_gateway() as gateway:
        (tmp_path / "ridgeline.yaml").write_text(gateway.config_path.read_text())
        shell = Shell(tmp_path)
        done = [await shell.run(command) for command in people.commands if "--config" in command]
        codes = await shell.run(programs.text)

    assert {each.status for each in done} <= {0, 1}, done
    assert all("Traceback" not in each.err and each.out for each in done)
    assert (codes.status, codes.out) == (0, "")


async def test_the_fleet_is_shown_in_a_terminal(tmp_path: Path):
    """With the columns of the page."""
    one = run_here("top", "$ ridgeline top --once")
    async with a_gateway() as gateway:
        assert await ask(gateway.base_url, "water") == 200
        await gateway.records()
        done = await Shell(tmp_path).run(f"{one.commands[0]} --url {gateway.admin_url}")

    (header,) = [line for line in one.answers[0].splitlines() if line.startswith("pool / worker")]
    assert done.status == 0
    assert header.split() in [line.split() for line in done.out.splitlines()]


async def test_whether_something_holds_a_stream_back_is_seen(tmp_path: Path):
    """Each line with its time, one event after another and not all at the end."""
    one = run_here("behind-a-proxy", "curl -sN")
    async with a_gateway("my-model") as gateway:
        done = await Shell(tmp_path).run(one.text.replace("http://127.0.0.1:8080", gateway.base_url))

    times = [float(line[:6]) % 60 for line in done.out.splitlines() if "data: {" in line]
    assert len(times) > 20
    assert len(set(times)) > 20


async def test_recorded_requests_are_replayed(tmp_path: Path):
    """The log of a gateway, by every command of the page; the table has its columns, and the report is a page."""
    commands = run_here("replay", "ridgeline replay requests.jsonl").commands
    shown = run_here("replay", "$ ridgeline replay requests.jsonl")
    async with a_gateway() as gateway:
        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(ask(gateway.base_url, f"{number} " * (40 + number % 7 * 200), stream=True))
        await gateway.records(60)
        (tmp_path / "requests.jsonl").write_bytes(gateway.log_path.read_bytes())
    shell = Shell(tmp_path)

    done = [await shell.run(command) for command in [*commands, *shown.commands]]

    assert [each.status for each in done] == [0] * len(done), done
    (header,) = [line for line in shown.answers[0].splitlines() if line.startswith("layout")]
    assert header.split() in [line.split() for line in done[-1].out.splitlines()]
    assert "<svg" in (tmp_path / "replay.html").read_text()


async def test_long_contexts_are_served_apart(tmp_path: Path):
    """Four workers, `check` and the gateway as the page starts them; a long prompt goes to the pool for long ones."""
    named = [f"127.0.0.1:{port}" for port in (8001, 8002, 8003, 8004, 8080, 8081, 8082)]
    addresses = dict(zip(named, (f"127.0.0.1:{port}" for port in free_ports(len(named))), strict=True))
    log = {"log": {"path": str(tmp_path / "records.jsonl")}, "limits": {"drain_grace_seconds": 0}}
    text = relocated(block("separate-long-contexts", "# ridgeline.yaml").text, addresses)
    (tmp_path / "ridgeline.yaml").write_text(text + yaml.safe_dump(log))
    url = f"http://{addresses['127.0.0.1:8080']}"

    process = await Shell(tmp_path).start(
        relocated(run_here("separate-long-contexts", "for port in 8001 8002").text, addresses)
    )
    try:
        await until_ready(url, process)
        assert [await ask(url, "water " * count) for count in (100, 20_000)] == [200, 200]
    finally:
        err = await end(process)

    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [each["pool"] for each in records if "outcome" in each] == ["short", "long"], err


async def test_prompts_are_computed_apart(tmp_path: Path):
    """By the workers and the configuration of the page: a prompt that is long enough takes both legs."""
    named = [f"127.0.0.1:{port}" for port in (8001, 8002, 8080)]
    addresses = dict(zip(named, (f"127.0.0.1:{port}" for port in free_ports(len(named))), strict=True))
    one = run_here("prefill-apart", "ridgeline simulate")
    config = yaml.safe_load(relocated(block("prefill-apart", "listen:").text, addresses))
    started = " & ".join(relocated(command, addresses) for command in one.commands)

    process = await Shell(tmp_path).start(f"{started} & wait")
    try:
        async with running_gateway(config) as gateway:
            assert await ask(gateway.base_url, "water " * 800) == 200
            (record,) = await gateway.records()
    finally:
        await end(process)

    assert record["prefill_result"] == "computed"


async def test_workers_are_simulated(tmp_path: Path):
    """By the page's three commands side by side; the first answers what the page asks."""
    commands = [
        run_here("simulate-a-worker", "ridgeline simulate --model llama-3.1-8b --gpu h100-sxm --port 8000"),
        run_here("simulate-a-worker", "ridgeline simulate --model llama-3.1-8b --gpu h100-sxm --port 8000 --control-port 9000"),
        run_here("simulate-a-worker", "ridgeline simulate --model llama-3.1-8b --gpu h100-sxm --port 8001 --kv-connector"),
    ]
    named = ("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:9000")
    places = [dict(zip(named, (f"127.0.0.1:{port}" for port in free_ports(3)), strict=True)) for _ in commands]
    asked = relocated(run_here("simulate-a-worker", "curl -N").text, places[0])
    started = " & ".join(relocated(one.text.strip(), place) for one, place in zip(commands, places, strict=True))
    shell = Shell(tmp_path)

    process = await shell.start(f"{started} & wait")
    try:
        for place, name in zip(places, ("127.0.0.1:8000", "127.0.0.1:8000", "127.0.0.1:8001"), strict=True):
            await until_ready(f"http://{place[name]}", process, "/health")
        await until_ready(f"http://{places[1]['127.0.0.1:9000']}", process, "/faults")
        done = await shell.run(asked)
    finally:
        await end(process)

    assert done.status == 0
    assert done.out.rstrip().endswith("data: [DONE]")


async def test_a_newcomers_worker_is_served(tmp_path: Path):
    """The README's configuration is checked, served and examined as it says, before a worker at the address that it names."""
    named = [f"127.0.0.1:{port}" for port in (8000, 8080, 8081, 8082)]
    addresses = dict(zip(named, (f"127.0.0.1:{port}" for port in free_ports(len(named))), strict=True))
    others = {"observe_listen": addresses["127.0.0.1:8082"], "admin_listen": addresses["127.0.0.1:8081"]}
    text = relocated(block("README", "# ridgeline.yaml").text, addresses)
    (tmp_path / "ridgeline.yaml").write_text(text + yaml.safe_dump({**others, "limits": {"drain_grace_seconds": 0}}))
    made, check, serve, doctor = run_here("README", "make runtime").commands
    assert made == "make runtime"  # which made the environment that this runs in
    settings = WorkerSettings(model="my-model", shape=MODEL, gpu="h100-sxm", port=int(addresses[named[0]].rpartition(":")[2]))
    worker, _ = await start_worker(settings)
    shell = Shell(tmp_path)
    try:
        checked = await shell.run(check)
        process = await shell.start(serve)
        await until_ready(f"http://{addresses['127.0.0.1:8080']}", process)
        assert await ask(f"http://{addresses['127.0.0.1:8080']}", "water", "my-model") == 200
        examined = await shell.run(doctor)
        await end(process)
    finally:
        await worker.cleanup()

    assert checked.status == 0
    assert examined.status in {0, 1}, examined
    assert process.returncode == 0


async def test_the_readme_plans_what_it_shows(tmp_path: Path):
    """The lines that it shows are lines of the sheet."""
    one = run_here("README", "$ .venv/bin/ridgeline plan")

    done = await Shell(tmp_path).run(one.commands[0])

    shown = [line for line in one.answers[0].splitlines() if line != "…"]
    assert shown
    assert [line for line in shown if line not in done.out.splitlines()] == []


async def test_the_headline_is_read_by_a_program(tmp_path: Path):
    """As the page on the live page does it."""
    one = run_here("live-page", "$ curl -s http://127.0.0.1:8081/api/fleet")
    async with a_gateway() as gateway:
        done = await Shell(tmp_path).run(one.commands[0].replace("http://127.0.0.1:8081", gateway.admin_url))

    assert (done.status, done.err) == (0, "")
    assert re.search(r"\d workers?", done.out)
