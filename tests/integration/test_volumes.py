"""A volume that is full, or can only be read: of a mount namespace of the gateway's own, so that no user needs any rights."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.answers import chat_answer, usage_of
from tests.integration.gateway import Gateway, GatewayError, Metrics, running_gateway
from tests.integration.load import eventually
from tests.integration.namespaces import in_own
from tests.integration.raw_client import RawClient, request_bytes
from tests.integration.scene import CHAT, chat_body
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.steps import Send

pytestmark = [pytest.mark.asyncio, pytest.mark.flaky(reruns=2)]

LOST = "ridgeline_log_lines_dropped_total"


def on_volume(path: Path, options: str) -> tuple[str, ...]:
    """What runs a gateway for which a volume in memory with these options lies at this path, and for nobody else."""
    return (*in_own("mount"), "sh", "-c", f'mount -t tmpfs -o {options} none "$0" && exec "$@"', str(path))


def logged(gateway: Gateway) -> list[str]:
    """The lines of the log as the gateway itself would read them."""
    its_root = Path("/proc", str(gateway.supervisor.pid), "root")
    return (its_root / gateway.config["log"]["path"].removeprefix("/")).read_text().splitlines()


async def among_its_mounts(gateway: Gateway, command: str) -> int:
    """Run a command of a shell where the gateway is; return its exit status."""
    enter = ("nsenter", "--target", str(gateway.supervisor.pid), "--user", "--preserve-credentials", "--mount")
    process = await asyncio.create_subprocess_exec(*enter, "sh", "-c", command, stderr=asyncio.subprocess.DEVNULL)
    return await process.wait()


async def statuses(gateway: Gateway, count: int) -> list[int | None]:
    """Of so many requests, one after another on one connection."""
    async with await RawClient.connect(gateway.base_url) as client:
        found = []
        for _ in range(count):
            await client.send(request_bytes("POST", CHAT, chat_body(stream=False)))
            found.append((await client.read_answer()).status)
        return found


def answering() -> ScriptedWorker:
    return ScriptedWorker([Send(chat_answer("x", usage=usage_of(5, 3)))])


def logging_to(path: Path, **config: Any) -> dict[str, Any]:
    return {"log": {"path": str(path / "records.jsonl")}, **config}


def log_is_unwritten(metrics: Metrics) -> bool:
    return metrics.value("ridgeline_unwritten_files", file="log") == 1


async def test_requests_go_on_while_the_volume_of_the_log_is_full(tmp_path: Path) -> None:
    """Every request has a line or is counted as lost, and with room again each line is whole."""
    async with (
        answering() as worker,
        running_gateway(logging_to(tmp_path), workers=[worker.url], run_by=on_volume(tmp_path, "size=64k")) as gateway,
    ):
        assert await statuses(gateway, 1) == [200]
        await eventually(lambda: len(logged(gateway)) == 1)
        assert await among_its_mounts(gateway, f"cat /dev/zero > {tmp_path}/filler") != 0
        during = await statuses(gateway, 40)
        metrics = await gateway.metrics_when(lambda page: log_is_unwritten(page) and page.total(LOST) > 0)
        assert await among_its_mounts(gateway, f"rm {tmp_path}/filler") == 0
        after = await statuses(gateway, 3)
        metrics = await gateway.metrics_when(lambda page: not log_is_unwritten(page))
        await eventually(lambda: len(logged(gateway)) + metrics.total(LOST) >= 44)
        lines = logged(gateway)

        assert during + after == [200] * 43
        assert gateway.stderr.count("No space left on device; lines are being lost") == 1
        torn = [line for line in lines if not line.endswith("}")]
        assert len(torn) <= 1
        assert len(lines) - len(torn) + metrics.total(LOST) == 44
        assert [json.loads(line)["outcome"] for line in lines[-3:]] == ["ok"] * 3


async def test_requests_go_on_while_the_volume_of_the_log_can_only_be_read(tmp_path: Path) -> None:
    """Another one was put in its place, say; when that can be written again, lines are."""
    async with (
        answering() as worker,
        running_gateway(logging_to(tmp_path), workers=[worker.url], run_by=on_volume(tmp_path, "size=1m")) as gateway,
    ):
        assert await among_its_mounts(gateway, f"mount -t tmpfs -o ro none {tmp_path}") == 0
        during = await statuses(gateway, 20)
        metrics = await gateway.metrics_when(lambda page: log_is_unwritten(page) and page.total(LOST) == 20)
        assert await among_its_mounts(gateway, f"mount -o remount,rw {tmp_path}") == 0
        after = await statuses(gateway, 3)
        await gateway.metrics_when(lambda page: not log_is_unwritten(page))
        await eventually(lambda: len(logged(gateway)) == 3)

        assert during + after == [200] * 23
        assert metrics.total(LOST) == 20
        assert gateway.stderr.count("Read-only file system; lines are being lost") == 1
        assert [json.loads(line)["outcome"] for line in logged(gateway)] == ["ok"] * 3


async def test_a_log_that_can_only_be_read_keeps_a_gateway_from_starting(tmp_path: Path) -> None:
    """Which says what file, and why."""
    with pytest.raises(GatewayError, match=f"cannot open the request log {tmp_path}/records.jsonl: Read-only file system"):
        async with running_gateway(logging_to(tmp_path), workers=["http://127.0.0.1:1"], run_by=on_volume(tmp_path, "ro")):
            pass
