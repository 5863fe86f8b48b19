"""Simulated workers as processes that can be killed, started again on the same port, and told to misbehave."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).resolve().parents[2]
MODEL = "llama-3.1-8b"
_START_SECONDS = 30.0


class SimulatedWorker:
    """One worker; its name stays the same whatever happens to its process, and its port if one is given (0: a free one)."""

    def __init__(self, name: str, *, port: int, options: tuple[str, ...]) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        self._faults_url = ""
        self._starting = asyncio.Lock()  # on a busy machine that may last until the next thing is to be done to it

    def __repr__(self) -> str:
        return f"<SimulatedWorker {self.name} {self.url}>"

    async def start(self) -> None:
        """Start it and wait until it listens. AssertionError if it does not."""
        async with self._starting:
            await self._start()

    async def _start(self) -> None:
        command = ["-m", "simulator.worker", "--model", MODEL, "--port", str(self._port), "--control-port", "0", *self._options]
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        assert process.stdout is not None
        async with asyncio.timeout(_START_SECONDS):
            lines = [(await process.stdout.readline()).decode() for _ in range(2)]
        assert "faults can be changed at" in lines[1], f"{self.name} did not start: {lines}"
        self.url, self._faults_url = (line.split()[-1] for line in lines)

    async def set_faults(self, faults: Mapping[str, Any]) -> None:
        """Put these faults in force instead of all before."""
        async with (
            self._starting,
            aiohttp.ClientSession(trust_env=False) as session,
            session.put(self._faults_url, data=json.dumps(faults)) as answer,
        ):
            assert answer.status == 200, await answer.text()

    async def kill(self) -> None:
        """End its process at once, as a crash does; one that is being started when it has been."""
        async with self._starting:
            await self._kill()

    async def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def simulated_workers(*workers: SimulatedWorker) -> AsyncIterator[None]:
    """Run them while the block lasts."""
    try:
        await asyncio.gather(*(worker.start() for worker in workers))
        yield
    finally:
        await asyncio.gather(*(worker.kill() for worker in workers))
