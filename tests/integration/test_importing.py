"""A configuration of another gateway, converted by the command and then serving."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.answers import chat_answer, plain, usage_of
from tests.integration.gateway import ROOT, running_gateway
from tests.integration.kubernetes_api import NAMESPACE, SERVICE, KubernetesApi, endpoint
from tests.integration.raw_client import RawClient
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.steps import Send

FOLDER = ROOT / "tests/data/imports"


@pytest.fixture
async def workers() -> AsyncIterator[list[ScriptedWorker]]:
    """Three that answer whatever they are asked."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(ScriptedWorker()) for _ in range(3)]
        for worker in made:
            worker.script = lambda _: [Send(chat_answer("ok", usage=usage_of(5, 1)))]
        yield made


def converted(kind: str, name: str, workers: list[ScriptedWorker], folder: Path, *options: str) -> dict[str, Any]:
    """What `ridgeline import` writes for a sample whose addresses are those of these workers; less the listeners."""
    text = (FOLDER / name).read_text()
    for number, worker in enumerate(workers, start=1):
        text = text.replace(f"http://10.0.0.1{number}:8000", worker.url)
    (folder / name).write_text(text)
    command = [sys.executable, "-m", "proxy.cli", "import", kind, str(folder / name), *options]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), check=False, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    settings = yaml.safe_load(done.stdout)
    return {key: value for key, value in settings.items() if not key.endswith("listen")}


async def ask(url: str, model: str, *headers: tuple[str, str]) -> Any:
    async with await RawClient.connect(url) as client:
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        return await client.request("POST", "/v1/chat/completions", body, headers=headers)


def asked(worker: ScriptedWorker) -> list[tuple[str, str | None]]:
    """The model and the key of each request."""
    return [
        (json.loads(request.body)["model"], request.headers.get("authorization")) for request in worker.requests if request.body
    ]


async def test_a_litellm_is_served_under_its_names_and_key(workers, tmp_path):
    """Clients keep the key and the model's name they have; workers get theirs, under the name that they serve."""
    settings = converted("litellm", "litellm.yaml", workers, tmp_path)
    environ = {"VLLM_KEY": "for-vllm", "QWEN_BASE": workers[2].url + "/v1", "WORKER_KEY_2": "for-qwen"}

    async with running_gateway(settings, environ=environ) as gateway:
        key = ("Authorization", "Bearer sk-master-1234")
        answers = [await ask(gateway.base_url, name, key) for name in ("llama", "llama-3", "qwen-coder")]
        stranger = await ask(gateway.base_url, "llama")
        elsewhere = await ask(gateway.base_url, "gpt-4o", key)

    assert [answer.status for answer in answers] == [200, 200, 200]
    assert (stranger.status, elsewhere.status) == (401, 404)
    served = asked(workers[0]) + asked(workers[1])
    assert served == [("meta-llama/Llama-3.1-8B-Instruct", "Bearer for-vllm")] * 2
    assert asked(workers[2]) == [("qwen-coder", "Bearer for-qwen")]


async def test_a_vllm_router_is_served(workers, tmp_path):
    """With the name of the model, which it did not know; the same session goes to the same worker."""
    settings = converted("vllm-router", "vllm-router.sh", workers, tmp_path, "--model", "llama")

    async with running_gateway(settings, environ={"VLLM_KEY": "for-vllm"}) as gateway:
        session = ("x-session-id", "s-1")
        answers = [await ask(gateway.base_url, "llama", session) for _ in range(4)]

    assert [answer.status for answer in answers] == [200] * 4
    assert sorted(len(asked(worker)) for worker in workers) == [0, 0, 4]


async def test_a_vllm_router_with_pairs_is_served_in_two_legs(workers, tmp_path):
    """The worker of `--prefill` computes, and that of `--decode` is told where the blocks are."""
    settings = converted("vllm-router", "vllm-router.service", workers, tmp_path, "--model", "llama")
    place = {"do_remote_prefill": True, "remote_block_ids": [1]}
    workers[0].script = lambda _: [Send(plain(200, {"id": "1", "choices": [], "kv_transfer_params": place}))]

    async with running_gateway(settings) as gateway:
        answer = await ask(gateway.base_url, "llama")

    legs = [[json.loads(each.body) for each in worker.requests if each.body] for worker in workers]
    assert (answer.status, [len(leg) for leg in legs]) == (200, [1, 1, 0])
    assert legs[0][0]["max_tokens"] == 1
    assert legs[1][0]["kv_transfer_params"] == place


async def test_a_production_stack_with_listed_backends_is_served(workers, tmp_path):
    """Each model by its own backends."""
    settings = converted("production-stack", "production-stack-static.yaml", workers, tmp_path)

    async with running_gateway(settings, environ={"VLLM_API_KEY": "for-vllm"}) as gateway:
        answers = [await ask(gateway.base_url, name) for name in ("llama", "opt")]

    assert [answer.status for answer in answers] == [200, 200]
    assert asked(workers[2]) == [("opt", "Bearer for-vllm")]


async def test_a_production_stack_in_a_cluster_finds_its_engines(workers, tmp_path):
    """By the Services that its chart makes, here of a release called `prod`, through an API of Kubernetes."""
    settings = converted("production-stack", "production-stack.yaml", workers, tmp_path, "--release", "prod")
    (model,) = [each for each in settings["models"] if each["name"] == "opt"]
    found = model["pools"][0]["workers"]["kubernetes"]

    async with KubernetesApi() as api:  # which knows one Service only, and pods with any port
        port = workers[0].port
        api.put("slice", endpoint("127.0.0.1", "opt-0"), ports=[{"name": "http", "port": port, "protocol": "TCP"}])
        here = {"api": api.url, "service": SERVICE, "namespace": NAMESPACE, "port": port}
        model["pools"][0]["workers"]["kubernetes"] = found | here
        settings["models"] = [model]
        async with running_gateway(settings, environ={"VLLM_API_KEY": "for-vllm"}) as gateway:
            answer = await ask(gateway.base_url, "opt", ("x-user-id", "u-1"))

    assert found["service"] == "prod-opt125m-engine-service"
    assert answer.status == 200
    assert asked(workers[0]) == [("opt", "Bearer for-vllm")]


def observing(old: str, **pool: Any) -> dict[str, Any]:
    """The configuration of the how-to, before this address; less its listener."""
    page = (ROOT / "docs/how-to/move-in.md").read_text()
    settings = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    settings["models"][0]["pools"][0].update(workers=[old], **pool)
    del settings["listen"]
    return settings


async def test_a_gateway_before_another_one_sees_and_changes_nothing(workers, tmp_path):
    """The how-to's configuration before a gateway that wants a key: the same body comes back, with a record of its own."""
    hashed = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"  # of "key"
    old = {"keys": [{"name": "observer", "sha256": hashed}], "models": [{"name": "my-model", "workers": [workers[0].url]}]}

    async with (
        running_gateway(old) as behind,
        running_gateway(observing(behind.base_url, health_path="/livez"), environ={"OLD_KEY": "key"}) as gateway,
    ):
        answer = await ask(gateway.base_url, "my-model")
        direct = await ask(behind.base_url, "my-model", ("Authorization", "Bearer key"))
        (record,) = await gateway.records(1)

    assert (answer.status, answer.body) == (200, direct.body)
    assert (record["outcome"], record["pool"], record["prompt_tokens"]) == ("ok", "as-it-is", 5)


async def test_what_is_no_vllm_is_asked_where_it_says_how_it_is(workers):
    """LiteLLM's /health sends requests to every model; here it would say that the worker is down."""
    workers[0].health_status = 503
    workers[0].models_page = {"object": "list", "data": []}
    settings = observing(workers[0].url, health_path="/v1/models")

    async with running_gateway(settings, environ={"OLD_KEY": "key"}) as gateway:
        await gateway.metrics_when(lambda metrics: metrics.value("ridgeline_worker_up") == 1)
        answer = await ask(gateway.base_url, "my-model")

    assert answer.status == 200
    assert "/health" not in {probe.path for probe in workers[0].probes}
