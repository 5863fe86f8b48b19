"""A real vLLM as the tests use it: started like a person would, looked into through its own metrics, killed by its pid."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

import aiohttp

from tests.integration.gateway import ROOT, Metrics

SERVE = ROOT / "deploy" / "vllm-cpu" / "serve.py"
STOP_SECONDS = 30.0
_READY = re.compile(r"vLLM \(pid (\d+)\) serves \S+ at (http://\S+)")

# The worker's own names of what the gateway counts, as they stand on its metrics page.
PROMPT, COMPLETION = "vllm:prompt_tokens_total", "vllm:generation_tokens_total"
CACHED = "vllm:prefix_cache_hits_total"
RUNNING = "vllm:num_requests_running"


class RealWorker:
    """One running vLLM with its launcher; made by `Workers.running`."""

    def __init__(self, log_path: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        """Start it with further arguments, and wait until it answers. RuntimeError, with its last words, when it never does."""
        self._log_path = log_path
        with log_path.open("wb") as log:
            self._launcher = subprocess.Popen(
                [sys.executable, SERVE, *arguments],
                cwd=ROOT,
                env={**os.environ, **(environ or {})},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._launcher.stdout is not None
        output: IO[str] = self._launcher.stdout
        with output:
            ready = _READY.match(output.readline())  # the launcher has its own time limit, and ends
        if ready is None:
            self._launcher.wait()
            raise RuntimeError(f"vLLM did not start:\n{log_path.read_text(errors='replace')[-4000:]}")
        self.pid = int(ready[1])  # of the API server
        self.url = ready[2]

    def __repr__(self) -> str:
        return f"<RealWorker {self.url} pid {self.pid} {'runs' if self.is_running else 'has ended'}>"

    @property
    def is_running(self) -> bool:
        """Whether its launcher has not ended; it ends when nothing of vLLM is left."""
        return self._launcher.poll() is None

    def kill(self, number: signal.Signals) -> None:
        """Send the API server a signal, behind its launcher's back."""
        os.kill(self.pid, number)

    async def ended(self, timeout_seconds: float = STOP_SECONDS) -> int:
        """Wait until nothing of it is left; its exit status, 128 + signal when it was killed. TimeoutError otherwise."""
        ends_at = time.monotonic() + timeout_seconds
        while (status := self._launcher.poll()) is None:
            if time.monotonic() > ends_at:
                raise TimeoutError(f"{self!r} after {timeout_seconds} s")
            await asyncio.sleep(0.05)
        return status

    def stop(self) -> None:
        """End it and wait for it; its launcher kills what does not go by itself."""
        self._launcher.terminate()
        self._launcher.wait(STOP_SECONDS)

    async def metrics(self) -> Metrics:
        """Scrape it."""
        timeout = aiohttp.ClientTimeout(total=5.0)
        async with (
            aiohttp.ClientSession(trust_env=False, timeout=timeout) as session,
            session.get(self.url + "/metrics") as answer,
        ):
            return Metrics(await answer.text())

    async def metrics_when(self, holds: Callable[[Metrics], bool], timeout_seconds: float = 10.0) -> Metrics:
        """Scrape until the condition holds and return that scrape. TimeoutError otherwise."""
        ends_at = time.monotonic() + timeout_seconds
        while not holds(metrics := await self.metrics()):
            if time.monotonic() > ends_at:
                values = {name: metrics.total(name) for name in (RUNNING, PROMPT, COMPLETION, CACHED)}
                raise TimeoutError(f"never held; the last scrape said {values}")
            await asyncio.sleep(0.02)
        return metrics

    async def quiet(self) -> Metrics:
        """Wait until no request runs and return that scrape."""
        return await self.metrics_when(lambda metrics: metrics.total(RUNNING) == 0)


class Workers:
    """The vLLM that all tests share. A test may kill it: the next one that asks gets a new one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[RealWorker] = []

    def running(self) -> RealWorker:
        """The worker, started when none runs, which takes 20 to 60 s."""
        if not self._started or not self._started[-1].is_running:
            log_path = self._folder / f"vllm-{len(self._started)}.log"
            self._started.append(RealWorker(log_path, environ={"VLLM_ENABLE_RESPONSES_API_STORE": "1"}))
        return self._started[-1]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._started:
            if worker.is_running:
                worker.stop()


def growth(before: Metrics, after: Metrics, names: Mapping[str, str]) -> dict[str, float]:
    """How much counters grew between two scrapes, by the words in ``names`` for them."""
    return {word: after.total(name) - before.total(name) for word, name in names.items()}
