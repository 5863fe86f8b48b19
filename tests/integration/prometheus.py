"""A real Prometheus on a free port: what it scrapes, which rules it has, and what it answers."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.integration.gateway import free_ports

_START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Prometheus:
    """Made by `running_prometheus`."""

    url: str
    session: aiohttp.ClientSession

    async def query(self, expr: str) -> list[dict[str, Any]]:
        """The series that an instant query returns. ValueError with Prometheus' own words when it refuses the query."""
        async with self.session.post(self.url + "/api/v1/query", data={"query": expr}) as answer:
            body = json.loads(await answer.text())
        if body["status"] != "success":
            raise ValueError(f"{body['error']}: {expr}")
        result: list[dict[str, Any]] = body["data"]["result"]
        return result

    async def query_range(self, expr: str, seconds: float, step_seconds: float = 1.0) -> list[dict[str, Any]]:
        """The series of the last ``seconds``. ValueError as for `query`."""
        now = time.time()
        data = {"query": expr, "start": str(now - seconds), "end": str(now), "step": str(step_seconds)}
        async with self.session.post(self.url + "/api/v1/query_range", data=data) as answer:
            body = json.loads(await answer.text())
        if body["status"] != "success":
            raise ValueError(f"{body['error']}: {expr}")
        result: list[dict[str, Any]] = body["data"]["result"]
        return result


@asynccontextmanager
async def running_prometheus(
    folder: Path,
    targets: dict[str, Sequence[str]],
    *,
    rules: Sequence[Path] = (),
    every_seconds: int = 1,
    alertmanagers: Sequence[str] = (),
) -> AsyncIterator[Prometheus]:
    """One that scrapes ``targets`` (``host:port`` by job) every so many seconds and tells ``alertmanagers``.

    Skips the test where none is installed.
    """
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian package prometheus)")  # a failure under REQUIRE_REAL=1
    config = {
        "global": {"scrape_interval": f"{every_seconds}s", "evaluation_interval": f"{every_seconds}s"},
        "rule_files": [str(path) for path in rules],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]} for job, addresses in targets.items()
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        async with aiohttp.ClientSession(trust_env=False, timeout=aiohttp.ClientTimeout(total=30)) as session:
            if not await is_ready(session, url, process):
                raise AssertionError(f"Prometheus does not start: {log_text(folder)}")
            yield Prometheus(url, session)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def log_text(folder: Path) -> str:
    """What it wrote to its log."""
    return (folder / "prometheus.log").read_text(errors="replace")


async def is_ready(session: aiohttp.ClientSession, url: str, process: asyncio.subprocess.Process) -> bool:
    """Wait until the server says so; False if it ends or never does."""
    ends_at = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends_at and process.returncode is None:
        try:
            async with session.get(url + "/-/ready") as answer:
                if answer.status == 200:
                    return True
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)
    return False
