"""What the machine runs out of while the gateway serves: descriptors, and room for the log."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from tests.integration.answers import chat_answer, usage_of
from tests.integration.load import eventually
from tests.integration.raw_client import request_bytes
from tests.integration.scene import Scene, chat_body, running_scene
from tests.integration.steps import Send, Wait

pytestmark = [pytest.mark.asyncio, pytest.mark.flaky(reruns=2)]

ANSWER = [Send(chat_answer("x", usage=usage_of(5, 3)))]
BODY = chat_body(stream=False)
SMALL_BYTES = 800
TOLD = "file descriptors open that it may have"


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def lines_of(scene: Scene) -> list[str]:
    return scene.gateway.log_path.read_text().splitlines()


async def status_of(scene: Scene) -> int | None:
    """The status of a request on a new connection, or None when that is closed or not taken."""
    try:
        async with await scene.connect() as client:
            await client.send(scene.request(scene.plays(ANSWER), BODY))
            return (await client.read_answer(timeout_seconds=1)).status
    except (OSError, TimeoutError, AssertionError):
        return None


async def test_a_process_without_descriptors_serves_whom_it_has_and_comes_back() -> None:
    """With 256 descriptors and 400 clients: those that are in are served, no worker is blamed, and then all are."""
    async with running_scene(workers=2) as scene, await scene.connect() as first, await scene.connect() as second:
        await scene.ask(ANSWER, body=BODY, client=first)
        await second.request("GET", "/livez")
        [pid] = scene.gateway.processes.serving
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (256, 256))
        async with AsyncExitStack() as stack:
            for _ in range(400):
                client = await stack.enter_async_context(await scene.connect())
                await client.send(request_bytes("GET", "/livez")[:10])
            await asyncio.sleep(0.5)
            before = cpu_seconds(pid)
            during = [await scene.ask(ANSWER, body=BODY, client=first) for _ in range(3)]
            busy = asyncio.create_task(scene.ask([Wait(0.5), *ANSWER], body=BODY, client=first))
            await asyncio.sleep(0.2)
            others = [await scene.ask(ANSWER, body=BODY, client=second) for _ in range(6)]
            await busy
            await asyncio.sleep(0.5)
            spent_seconds = cpu_seconds(pid) - before
            await eventually(lambda: TOLD in scene.gateway.stderr)  # control looks at processes every two seconds
        told = [line for line in scene.gateway.stderr.splitlines() if TOLD in line]
        await eventually(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) < 60)
        after = await scene.ask(ANSWER, body=BODY)
        metrics = await scene.quiet()

        assert [seen.answer.status for seen in during] == [200] * 3
        assert spent_seconds < 0.5
        assert after.answer.status == 200
        assert scene.gateway.processes.serving == (pid,)
        assert others[0].answer.status == 503  # no descriptor for a second connection to a worker
        assert others[0].answer.json()["error"]["code"] == "gateway_out_of_descriptors"
        assert metrics.total("ridgeline_rejections_total", reason="shortage") >= 1
        assert {seen.answer.status for seen in others} <= {200, 503}
        assert metrics.total("ridgeline_attempts_total", result="connect_failed") == 0
        assert "ridgeline_worker_left_out" not in metrics
        assert len(told) == 1
        assert f"serving process {pid} has 2" in told[0]
        assert metrics.value("ridgeline_process_most_descriptors", role="serving") == 256


async def test_requests_go_on_while_the_log_has_no_room() -> None:
    """Lines are lost and counted while the file cannot grow; with room again they are written, each on a line of its own."""
    async with running_scene() as scene:
        await scene.ask(ANSWER, body=BODY)
        control = scene.gateway.processes.control
        assert control is not None
        size = scene.gateway.log_path.stat().st_size
        resource.prlimit(control, resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
        during = [await status_of(scene) for _ in range(20)]
        await scene.gateway.metrics_when(lambda metrics: metrics.total("ridgeline_log_lines_dropped_total") == len(during))
        resource.prlimit(control, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        after = await status_of(scene)
        await eventually(lambda: lines_of(scene)[-1].endswith("}"))

        assert during == [200] * 20
        assert after == 200
        assert scene.gateway.processes.control == control
        first, torn, last = lines_of(scene)
        assert json.loads(first)["outcome"] == json.loads(last)["outcome"] == "ok"
        assert len(torn) == 100  # what there was room for, and no other line in the same
        assert scene.gateway.stderr.count("lines are being lost") == 1


async def test_requests_go_on_while_control_can_write_nothing() -> None:
    """But some lines: neither its log nor what it publishes. Each is told once, shown, counted; what was in force stays so."""
    async with running_scene() as scene:
        gateway = scene.gateway
        await scene.ask(ANSWER, body=BODY)
        control = gateway.processes.control
        assert control is not None
        assert gateway.log_path.stat().st_size > SMALL_BYTES > 2 * len(gateway.stderr)  # standard error is a file here, too
        resource.prlimit(control, resource.RLIMIT_FSIZE, (SMALL_BYTES, resource.RLIM_INFINITY))
        gateway.config["models"].append({"name": "more", "workers": ["http://127.0.0.1:1"]})
        gateway.config_path.write_text(yaml.safe_dump(gateway.config))
        gateway.supervisor.send_signal(signal.SIGHUP)
        during = [await status_of(scene) for _ in range(5)]
        metrics = await gateway.metrics_when(
            lambda metrics: (
                metrics.total("ridgeline_log_lines_dropped_total") == len(during)
                and metrics.total("ridgeline_reloads_total", result="failed") == 1
                and metrics.value("ridgeline_unwritten_files", file="log") == 1
            )
        )
        await asyncio.sleep(2.5)
        told = gateway.stderr
        resource.prlimit(control, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        gateway.supervisor.send_signal(signal.SIGHUP)
        await gateway.metrics_when(lambda metrics: metrics.value("ridgeline_configuration_refused") == 0)
        after = await scene.ask(ANSWER, body=BODY)

        assert during == [200] * len(during)
        assert metrics.value("ridgeline_configuration_refused") == 1
        assert told.count("the old one stays in force: File too large") == 1
        assert told.count("lines are being lost") == 1
        assert max(Counter(line.partition(" ")[2] for line in told.splitlines()).values()) == 1
        assert metrics.value("ridgeline_unwritten_files", file="log") == 1
        assert after.answer.status == 200
        assert gateway.processes.control == control
        await gateway.metrics_when(lambda metrics: metrics.value("ridgeline_unwritten_files", file="log") == 0)
