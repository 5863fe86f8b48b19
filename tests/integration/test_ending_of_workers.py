"""What the manifests of the workers run before a pod of vLLM ends."""

from __future__ import annotations

import asyncio
import sys

import pytest
import yaml

from deploy.helm import render
from tests.integration.answers import METRICS_PAGE
from tests.integration.scripted_worker import ScriptedWorker

IDLE = METRICS_PAGE.replace(b"} 2.0", b"} 0.0").replace(b"} 1.0", b"} 0.0")


def scripts() -> list[str]:
    """What preStop gives to Python, by pool."""
    manifests = yaml.safe_load_all((render.MANIFESTS.parent / "vllm.yaml").read_text())
    pods = [each["spec"]["template"]["spec"] for each in manifests if each["kind"] == "Deployment"]
    return [pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1] for pod in pods]


@pytest.mark.parametrize("script", scripts(), ids=["short", "long"])
async def test_a_pod_waits_for_what_it_is_computing(worker: ScriptedWorker, script: str) -> None:
    """It ends once its own page says that nothing runs or waits, and not before."""
    assert "time.sleep(15)" in script  # in which the gateways learn that it ends
    here = (
        script.replace("time.sleep(15)", "")
        .replace("time.sleep(1)", "time.sleep(0.05)")
        .replace("127.0.0.1:8000", worker.url[7:])
    )
    assert IDLE != METRICS_PAGE

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", here)
    async with asyncio.timeout(20):
        while True:
            await asyncio.sleep(0.02)
            if len(worker.probes) >= 5:
                break
        assert process.returncode is None
        worker.metrics_page = IDLE
        assert await process.wait() == 0
