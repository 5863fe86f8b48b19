"""Somebody sets the wall clock while requests run, by an hour forward and back: nothing but time stamps changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gateway import Gateway, running_gateway
from tests.integration.load import eventually, paced
from tests.integration.raw_client import Answer, End, RawClient
from tests.integration.scene import CHAT, chat_body
from tests.integration.scripted_worker import ScriptedWorker

KEY = "sk-clock"
LIMIT = 2  # requests a minute
CONFIG = {
    "keys": [{"name": "app", "sha256": sha256(KEY.encode()).hexdigest(), "quota": {"requests_per_minute": LIMIT}}],
    "chains": {"header": "x-chain"},
    "limits": {"first_byte_seconds": 5, "token_gap_seconds": 5, "total_seconds": 30, "client_idle_seconds": 30},
}


def wall_clock(folder: Path) -> tuple[dict[str, str], Callable[[int], int]]:
    """What a process needs in its environment to have a wall clock of its own, and what sets that, in seconds from the time."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        pytest.skip("libfaketime is not installed (Debian package faketime)")  # a failure under REQUIRE_REAL=1
    file = folder / "offset"

    def set_by(seconds: int) -> int:
        fresh = file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        return fresh.replace(file).stat().st_size

    set_by(0)
    environ = {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    return environ, set_by


async def ask(client: RawClient) -> Answer:
    headers = [("authorization", f"Bearer {KEY}"), ("x-chain", "one")]
    return await client.request("POST", CHAT, chat_body(), headers, timeout_seconds=10)


async def admin(gateway: Gateway, path: str) -> Any:
    status, text = await gateway.get(gateway.admin_url + path)
    assert status == 200, text
    return json.loads(text)


async def test_a_clock_that_is_set_changes_nothing_but_time_stamps(tmp_path: Path) -> None:
    """Limits do not fire, no duration is long or negative, a quota's minute goes on, a chain is not broken, and it is told."""
    environ, set_by = wall_clock(tmp_path)
    async with (
        ScriptedWorker(lambda _: paced(6, 0.08)) as worker,
        running_gateway(CONFIG, workers=[worker.url], environ=environ) as gateway,
        await RawClient.connect(gateway.base_url) as client,
    ):
        answers, ended = [], []
        for seconds in (3600, -3600):
            asking = asyncio.create_task(ask(client))
            await asyncio.sleep(0.2)
            set_by(seconds)
            answers.append(await asking)
            ended.append(time.time() + seconds)
            await eventually(lambda: gateway.stderr.count("the wall clock was set by") == len(answers))
        refused = await ask(client)
        records = await gateway.records(LIMIT + 1)
        (chain,) = (await admin(gateway, "/api/chains"))["newest"]
        metrics, told = await gateway.metrics(), gateway.stderr

    assert [(answer.status, answer.end) for answer in answers] == [(200, End.COMPLETE)] * LIMIT
    assert refused.status == 429
    durations = [(name, one[name]) for one in records for name in one if name.endswith("_seconds") and "unix" not in name]
    assert [pair for pair in durations if pair[1] is not None and not 0 <= pair[1] < 5] == []
    stamps = [datetime.fromisoformat(one["time"]).timestamp() for one in records[:LIMIT]]
    assert all(abs(stamp - at) < 5 for stamp, at in zip(stamps, ended, strict=True))
    assert (chain["calls"], chain["seconds"] < 10) == (LIMIT + 1, True)
    assert metrics.total("ridgeline_worker_up") == 1
    assert "ridgeline_worker_left_out" not in metrics
    assert "set by +3600.0 s" in told
    assert "set by -7200.0 s" in told
