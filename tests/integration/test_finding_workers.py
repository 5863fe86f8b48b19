"""Workers come, drain and go while requests run, however they are found: no request is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.certificates import Authority
from tests.integration.answers import DONE, chat_answer, usage_of
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.kubernetes_api import NAMESPACE, SERVICE, KubernetesApi, endpoint
from tests.integration.load import client_of, eventually, paced, requests_in_turn, stream, worker_of
from tests.integration.name_server import NameServer
from tests.integration.raw_client import End, RawClient
from tests.integration.scene import CHAT, chat_body
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Script, Send

PLAIN = [Send(chat_answer("x", usage=usage_of(5, 1)))]
FOUND_SECONDS = 6.0  # from a change to its effect in all processes


def some_streams(request: Received) -> Script:
    return paced(20, 0.05) if b'"stream": true' in request.body else PLAIN


class Load:
    """Requests and streams without a pause; every one must go well."""

    def __init__(self) -> None:
        self.done = 0
        self.by_worker: dict[str, int] = {}

    def count(self, worker: str) -> None:
        self.done += 1
        self.by_worker[worker] = self.by_worker.get(worker, 0) + 1


@asynccontextmanager
async def under_load(gateway: Gateway, clients: int = 4) -> AsyncIterator[Load]:
    """Load while the block runs. AssertionError for a request that did not go well."""
    load, is_over = Load(), asyncio.Event()

    async def ask() -> None:
        client, _ = await client_of(gateway)
        async with client:
            while not is_over.is_set():
                (plain,) = await requests_in_turn(client, 1)
                assert plain.status == 200, plain
                load.count(worker_of(plain))
                await asyncio.sleep(0.002)

    async def follow() -> None:
        while not is_over.is_set():
            streamed = await stream(gateway)
            assert (streamed.status, streamed.end) == (200, End.COMPLETE), streamed
            assert streamed.body.endswith(DONE)
            load.count(worker_of(streamed))

    tasks = [asyncio.create_task(one()) for _ in range(clients) for one in (ask, follow)]
    try:
        yield load
    finally:
        is_over.set()
        await asyncio.gather(*tasks)


async def asked(load: Load, *workers: str) -> None:
    """Wait until these workers get requests and no others do."""

    async def seen() -> set[str]:
        before = dict(load.by_worker)
        await asyncio.sleep(0.3)
        return {name for name, count in load.by_worker.items() if count > before.get(name, 0)}

    async with asyncio.timeout(FOUND_SECONDS):
        while await seen() != set(workers):
            pass


async def state(gateway: Gateway) -> dict[str, dict[str, Any]]:
    """The workers by name, as the admin listener shows them."""
    status, text = await gateway.get(gateway.admin_url + "/api/workers")
    assert status == 200
    return {worker["worker"]: worker for worker in json.loads(text)}


async def nothing_is_in_flight(gateway: Gateway, load: Load) -> None:
    """All requests have ended well and are counted; nothing is left."""
    metrics = await gateway.metrics_when(lambda metrics: metrics.total("ridgeline_in_flight_requests") == 0)
    assert metrics.total("ridgeline_in_flight_tokens") == 0
    assert metrics.total("ridgeline_requests_total", endpoint="chat", outcome="ok") == load.done
    assert metrics.total("ridgeline_requests_total", endpoint="chat") == load.done


def by_load(workers: object) -> dict[str, Any]:
    """A model whose pool spreads equal requests, which by default would all have one home."""
    return {"name": "tiny", "pools": [{"name": "default", "policy": "least-load", "workers": workers}]}


def name_of(worker: ScriptedWorker) -> str:
    return worker.url.removeprefix("http://")


@pytest.fixture
async def workers() -> AsyncIterator[list[ScriptedWorker]]:
    """Three workers that answer and stream."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedWorker(some_streams)) for _ in range(3)]


def put(path: Path, workers: Sequence[ScriptedWorker]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump([worker.url for worker in workers]))
    fresh.replace(path)


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_file_changes_under_load(workers: list[ScriptedWorker], tmp_path: Path, processes: int) -> None:
    """Workers are added and taken out by the file that lists them: streams at those that go run to their end."""
    path = tmp_path / "workers.yaml"
    first, second, third = workers
    put(path, [first])
    config = {"models": [by_load({"file": str(path)})]}
    async with running_gateway(config, processes=processes) as gateway:
        async with under_load(gateway) as load:
            await asked(load, name_of(first))
            put(path, [first, second])
            await asked(load, name_of(first), name_of(second))
            put(path, [third])
            await asked(load, name_of(third))
            shown = await state(gateway)
            assert {name: worker["is_draining"] for name, worker in shown.items()} == {
                name_of(first): True,
                name_of(second): True,
                name_of(third): False,
            }
            assert {worker["source"] for worker in shown.values()} == {"file"}
            path.write_text("- [")
            await eventually(lambda: "no YAML" in gateway.stderr)
            await asked(load, name_of(third))
        await nothing_is_in_flight(gateway, load)
        metrics = await gateway.metrics()
        assert metrics.value("ridgeline_discovered_workers") == 1
        assert metrics.value("ridgeline_discovery_changes_total", source="file") == 2
        assert metrics.value("ridgeline_discovery_failures_total", source="file") == 1
        assert gateway.stderr.count("no YAML") == 1


async def test_a_name_changes_under_load(workers: list[ScriptedWorker]) -> None:
    """Addresses come and go with the records; a name server that fails takes nobody away."""
    name, first = "vllm.example", workers[0]
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(NameServer())
        second, third = [
            await stack.enter_async_context(ScriptedWorker(some_streams, host=f"127.0.0.{number}", port=first.port))
            for number in (2, 3)
        ]
        server.says(name, "127.0.0.1")
        found = {"dns": name, "port": first.port, "nameserver": server.address}
        gateway = await stack.enter_async_context(running_gateway({"models": [by_load(found)]}))
        async with under_load(gateway) as load:
            await asked(load, name_of(first))
            server.says(name, "127.0.0.1", "127.0.0.2")
            await asked(load, name_of(first), name_of(second))
            server.says(name, "127.0.0.3")
            await asked(load, name_of(third))
            server.failing.add("A")
            await eventually(lambda: "no name server could say" in gateway.stderr)
            await asked(load, name_of(third))
        await nothing_is_in_flight(gateway, load)


async def test_a_service_changes_under_load(workers: list[ScriptedWorker]) -> None:
    """Pods come, drain and go by their EndpointSlices; control that is killed while the API server is away keeps the fleet."""

    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(KubernetesApi())

        def put(name: str, worker: ScriptedWorker, **conditions: bool) -> None:
            ports = [{"name": "http", "port": worker.port, "protocol": "TCP"}]
            api.put(f"slice-{name}", endpoint("127.0.0.1", name, **conditions), ports=ports)

        put("a", workers[0])
        found = {"kubernetes": {"service": SERVICE, "namespace": NAMESPACE, "port": "http", "api": api.url}}
        gateway = await stack.enter_async_context(running_gateway({"models": [by_load(found)]}, processes=2))
        async with under_load(gateway) as load:
            await asked(load, "a")
            put("b", workers[1])
            put("c", workers[2], ready=False)
            await asked(load, "a", "b")
            put("a", workers[0], ready=False, serving=True, terminating=True)
            put("c", workers[2])
            await asked(load, "b", "c")
            assert (await state(gateway))["a"]["is_draining"]
            api.delete("slice-a")
            api.cut()
            api.delete("slice-b")
            await asked(load, "c")
            await api.__aexit__()
            await control_killed(gateway)
            await asked(load, "c")
            assert {name for name, worker in (await state(gateway)).items() if not worker["is_draining"]} == {"c"}
            put("b", workers[1])
            await api.__aenter__()
            await asked(load, "b", "c")
        await nothing_is_in_flight(gateway, load)


async def test_changes_by_hand_lie_over_what_is_found(workers: list[ScriptedWorker], tmp_path: Path) -> None:
    """Found workers are drained and removed by hand, others added, and a reload turns a file into a list and back."""
    first, second, third = workers
    path = tmp_path / "workers.yaml"
    put(path, [first, second])
    async with running_gateway({"models": [by_load({"file": str(path)})]}, processes=2) as gateway:

        async def change(method: str, tail: str, **body: str) -> None:
            async with (
                aiohttp.ClientSession(trust_env=False) as session,
                session.request(method, f"{gateway.admin_url}/api/workers{tail}", json=body or None) as answer,
            ):
                assert answer.status == 200, await answer.text()

        def reload(**changes: Any) -> None:
            gateway.config.update(changes)
            gateway.config_path.write_text(yaml.safe_dump(gateway.config))
            gateway.supervisor.send_signal(signal.SIGHUP)

        async with under_load(gateway) as load:
            await asked(load, name_of(first), name_of(second))
            await change("POST", f"/{name_of(first)}/drain")
            await asked(load, name_of(second))
            await change("POST", "", model="tiny", url=third.url, name="by-hand")
            await asked(load, name_of(second), "by-hand")
            assert {name: worker["source"] for name, worker in (await state(gateway)).items()} == {
                name_of(first): "file",
                name_of(second): "file",
                "by-hand": "admin",
            }
            await change("POST", f"/{name_of(first)}/resume")
            await change("DELETE", f"/{name_of(second)}")
            await asked(load, name_of(first), "by-hand")
            await change("DELETE", "/by-hand")
            await asked(load, name_of(first))
            reload(models=[by_load([third.url])])
            await asked(load, name_of(third))
            await gateway.metrics_when(lambda metrics: "ridgeline_discovered_workers{" not in metrics.text)
            reload(models=[by_load({"file": str(tmp_path / "missing")})])
            await eventually(lambda: "No such file" in gateway.stderr)
            await asked(load, name_of(third))
            put(tmp_path / "missing", [first])
            await asked(load, name_of(first))
        await nothing_is_in_flight(gateway, load)


async def test_a_pool_without_workers_says_so(tmp_path: Path, worker: ScriptedWorker) -> None:
    """Requests get 503 with a time to come back, pages of figures are whole, and the first worker that is found serves."""
    path = tmp_path / "workers.yaml"
    path.write_text("[]")
    worker.script = PLAIN
    async with running_gateway({"models": [by_load({"file": str(path)})]}) as gateway:
        client, _ = await client_of(gateway)
        async with client:
            (answer,) = await requests_in_turn(client, 1)
            assert answer.status == 503
            assert answer.json()["error"]["code"] == "no_worker"
            assert answer.head is not None
            assert answer.head.get("retry-after") == "2"
        metrics = await gateway.metrics_when(
            lambda metrics: metrics.total("ridgeline_rejections_total", reason="no_worker") == 1
        )
        assert metrics.value("ridgeline_discovered_workers") == 0
        assert (await gateway.get(gateway.observe_url + "/readyz"))[0] == 200
        assert json.loads((await gateway.get(gateway.admin_url + "/api/state"))[1])["pools"][0]["workers"] == []
        assert "finds no workers for tiny/default" in gateway.stderr
        put(path, [worker])
        async with asyncio.timeout(FOUND_SECONDS):
            while True:
                client, _ = await client_of(gateway)
                async with client:
                    (answer,) = await requests_in_turn(client, 1)
                if answer.status == 200:
                    break


async def test_a_gateway_that_has_not_looked_yet_is_not_ready(worker: ScriptedWorker) -> None:
    """While nobody has said who the workers are, others are to get the requests; then it is ready for good."""
    worker.script = some_streams
    async with KubernetesApi() as api:
        api.failing = 503
        found = {"kubernetes": {"service": SERVICE, "namespace": NAMESPACE, "api": api.url}}
        async with running_gateway({"models": [by_load(found)]}, wait_ready=False) as gateway:
            await eventually(lambda: "ridgeline is up" in gateway.stderr)
            assert (await gateway.get(gateway.base_url + "/livez"))[0] == 200
            assert await gateway.get(gateway.base_url + "/readyz") == (503, "workers are being looked for\n")
            api.put("s", endpoint("127.0.0.1", "a"), ports=[{"port": worker.port}])
            api.failing = None
            await gateway.ready(timeout_seconds=15.0)
            async with under_load(gateway, clients=1) as load:
                await asked(load, "a")
            api.failing = 503
            api.cut()
            await asyncio.sleep(2.0)
            assert (await gateway.get(gateway.base_url + "/readyz"))[0] == 200


async def control_killed(gateway: Gateway) -> None:
    """Kill the control process and wait for the next one."""
    before = gateway.processes.control
    assert before is not None
    os.kill(before, signal.SIGKILL)
    await eventually(lambda: gateway.processes.control not in (None, before))
    await gateway.ready(gateway.observe_url, 5.0)


async def test_found_workers_that_speak_tls(tmp_path: Path) -> None:
    """They are asked and probed over TLS with the gateway's certificate, and trusted by the name that was looked up alone."""
    ca = Authority(tmp_path)
    certificate, key = ca.issue("gateway", "gateway.example")
    names = {
        "by-dns": "vllm.example",
        "by-srv": "localhost",
        "by-kubernetes": f"{SERVICE}.{NAMESPACE}.svc",
        "stranger": "other.example",
    }

    def speaks_tls(model: str) -> ScriptedWorker:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca.file))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(*ca.issue(model, names[model]))
        return ScriptedWorker(PLAIN, tls=context)

    async with AsyncExitStack() as stack:
        workers = {model: await stack.enter_async_context(speaks_tls(model)) for model in names}
        server, api = await stack.enter_async_context(NameServer()), await stack.enter_async_context(KubernetesApi())
        server.says("vllm.example", "127.0.0.1")
        server.says("_https._tcp.vllm.example", f"0 5 {workers['by-srv'].port} localhost.", kind="SRV")
        api.put("s", endpoint("127.0.0.1", "pod-a"), ports=[{"port": workers["by-kubernetes"].port}])
        found: dict[str, dict[str, Any]] = {
            "by-dns": {"dns": "vllm.example", "port": workers["by-dns"].port, "nameserver": server.address},
            "by-srv": {"srv": "_https._tcp.vllm.example", "nameserver": server.address},
            "by-kubernetes": {"kubernetes": {"service": SERVICE, "namespace": NAMESPACE, "api": api.url}},
            "stranger": {"dns": "vllm.example", "port": workers["stranger"].port, "nameserver": server.address},
        }
        config = {
            "worker_tls": {"ca": str(ca.file), "certificate": str(certificate), "key": str(key)},
            "models": [{"name": model, "workers": {**how, "scheme": "https"}} for model, how in found.items()],
        }
        gateway = await stack.enter_async_context(running_gateway(config))
        async with await RawClient.connect(gateway.base_url) as client:
            answers = {
                model: await client.request("POST", CHAT, chat_body(model, stream=False), timeout_seconds=5) for model in names
            }
        metrics = await gateway.metrics_when(lambda metrics: metrics.total("ridgeline_worker_up") == len(names) - 1)

    assert {model for model, answer in answers.items() if answer.status == 200} == names.keys() - {"stranger"}
    assert answers["stranger"].json()["error"]["code"] in ("worker_not_trusted", "no_worker")
    assert {model for model, worker in workers.items() if worker.requests and worker.probes} == names.keys() - {"stranger"}
    assert not workers["stranger"].requests + workers["stranger"].probes
    assert metrics.total("ridgeline_discovered_workers") == len(names)


async def test_scrapers_that_leave_are_no_fault(worker: ScriptedWorker, tmp_path: Path) -> None:
    """Whoever hangs up while a large page is being made is told nothing, and neither is the log: `Gateway.stop` looks."""
    path = tmp_path / "workers.yaml"
    path.write_text(yaml.safe_dump([worker.url, *(f"http://127.0.0.1:{port}" for port in range(1, 300))]))
    async with running_gateway({"models": [by_load({"file": str(path)})]}) as gateway:
        await gateway.ready(gateway.observe_url)
        host, _, port = gateway.config["observe_listen"].rpartition(":")
        for number in range(40):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.001 * number)
            writer.transport.abort()
        assert (await gateway.get(gateway.observe_url + "/metrics"))[0] == 200
