"""The whole gateway as a user starts it: the command, its processes, its listeners, its log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from telemetry.sinks.jsonlog import LOGGED_FIELDS

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 20.0
STOP_SECONDS = 20.0


class Metrics(Mapping[str, list[Sample]]):
    """One scrape: samples by their full name (`…_total`, `…_bucket`, `…_count`, `…_sum`)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples: dict[str, list[Sample]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples[sample.name].append(sample)
        self._samples.default_factory = None

    def __getitem__(self, name: str) -> list[Sample]:
        return self._samples[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._samples)

    def __len__(self) -> int:
        return len(self._samples)

    def matching(self, name: str, **labels: str) -> list[Sample]:
        """The samples of this name that carry at least these labels. KeyError when the name is absent."""
        return [sample for sample in self[name] if labels.items() <= sample.labels.items()]

    def value(self, name: str, **labels: str) -> float:
        """The value of the one sample that carries at least these labels. LookupError when it is none, or several."""
        match self.matching(name, **labels):
            case [sample]:
                return sample.value
            case found:
                raise LookupError(
                    f"{len(found)} samples for {name}{labels}: {[sample.labels for sample in found or self[name]]}"
                )

    def total(self, name: str, **labels: str) -> float:
        """The sum over all samples that carry at least these labels; 0 when none does."""
        return sum(sample.value for sample in self.matching(name, **labels))


@dataclass(frozen=True, slots=True)
class Processes:
    """Process ids now; None or fewer while one of them is being restarted."""

    supervisor: int
    control: int | None
    serving: tuple[int, ...]


class GatewayError(AssertionError):
    """The gateway did not start, did not stop, or complained."""


class Gateway:
    """A running gateway; made by `running_gateway`."""

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        *,
        processes: int,
        environ: Mapping[str, str],
        run_by: Sequence[str] = (),
    ) -> None:
        ports = iter(free_ports(3))
        listeners = {name: f"127.0.0.1:{next(ports)}" for name in ("listen", "observe_listen", "admin_listen")}
        self.log_path = folder / "records.jsonl"
        self.config: dict[str, Any] = {**listeners, "log": {"path": str(self.log_path)}, **config}
        self.config["limits"] = {"drain_grace_seconds": 0, **self.config.get("limits", {})}  # tests need no balancer to notice
        self.base_url = self._url("listen", "tls")
        self.observe_url = self._url("observe_listen", "observe_tls")
        self.admin_url = self._url("admin_listen", "admin_tls")
        self.config_path = folder / "gateway.yaml"
        self._stderr_path = folder / "stderr.txt"
        self._process_count = processes
        self._environ = environ
        self._run_by = run_by
        self._process: asyncio.subprocess.Process | None = None

    def _url(self, listener: str, tls: str) -> str:
        return f"{'https' if tls in self.config else 'http'}://{self.config[listener]}"

    def __repr__(self) -> str:
        return f"<Gateway {self.base_url} {self._process}>"

    @property
    def stderr(self) -> str:
        """Everything it has written to standard error and standard output so far."""
        return self._stderr_path.read_text(errors="replace")

    @property
    def supervisor(self) -> asyncio.subprocess.Process:
        """The process that was started. AssertionError before `start`."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def processes(self) -> Processes:
        """The process ids at this moment."""
        children = dict(_children(self.supervisor.pid))
        control = [pid for pid, line in children.items() if "proxy.control.process" in line]
        serving = [pid for pid, line in children.items() if "proxy.serving.process" in line]
        return Processes(self.supervisor.pid, control[0] if control else None, tuple(serving))

    async def start(self) -> None:
        """Write the configuration and start the command; does not wait until it is ready."""
        self.config_path.write_text(yaml.safe_dump(self.config))
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        program = (*self._run_by, sys.executable, "-m", "proxy.cli")
        command = (*program, "serve", "--config", str(self.config_path), "--processes", str(self._process_count))
        with self._stderr_path.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env={**kept, **self._environ}, stdout=output, stderr=output
            )

    async def ready(self, url: str | None = None, timeout_seconds: float = START_SECONDS) -> None:
        """Wait until ``/readyz`` of the client listener (or of another base URL) is 200. GatewayError if it never is."""
        seen = "nothing"
        ends_at = time.monotonic() + timeout_seconds
        while time.monotonic() < ends_at:
            if self.supervisor.returncode is not None:
                raise GatewayError(f"ended with {self.supervisor.returncode} while starting:\n{self.stderr}")
            try:
                status, text = await self.get((url or self.base_url) + "/readyz")
            except (OSError, aiohttp.ClientError, TimeoutError) as error:
                seen = repr(error)
            else:
                if status == 200:
                    return
                seen = f"{status} {text}"
            await asyncio.sleep(0.02)
        raise GatewayError(f"not ready after {timeout_seconds} s; /readyz: {seen}\n{self.stderr}")

    async def get(self, url: str, timeout_seconds: float = 5.0) -> tuple[int, str]:
        """Status and text of a GET on a connection of its own."""
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        async with aiohttp.ClientSession(trust_env=False, timeout=timeout) as session, session.get(url, ssl=False) as answer:
            return answer.status, await answer.text()

    async def metrics(self) -> Metrics:
        """Scrape the observers' listener."""
        status, text = await self.get(self.observe_url + "/metrics")
        if status != 200:
            raise GatewayError(f"/metrics answered {status}: {text}")
        return Metrics(text)

    async def metrics_when(self, holds: Callable[[Metrics], bool], timeout_seconds: float = 5.0) -> Metrics:
        """Scrape until the condition holds (a missing sample counts as not) and return that scrape. TimeoutError otherwise."""
        ends_at = time.monotonic() + timeout_seconds
        while True:
            metrics = await self.metrics()
            with suppress(LookupError):
                if holds(metrics):
                    return metrics
            if time.monotonic() > ends_at:
                raise TimeoutError(f"never held; the last scrape was\n{metrics.text}")
            await asyncio.sleep(0.05)

    def log_lines(self) -> list[dict[str, Any]]:
        """Every complete line of the log, start and stop and health included; what a record leaves out is ``None``."""
        if not self.log_path.exists():
            return []
        whole, _, _ = self.log_path.read_text().rpartition("\n")
        lines = [json.loads(line) for line in whole.splitlines()]
        return [dict.fromkeys(LOGGED_FIELDS) | line if "outcome" in line else line for line in lines]

    async def records(self, count: int = 1, timeout_seconds: float = 5.0) -> list[dict[str, Any]]:
        """Wait until the log holds at least so many requests; return all of them. TimeoutError if it never does."""
        ends_at = time.monotonic() + timeout_seconds
        while True:
            found = [line for line in self.log_lines() if "outcome" in line]
            if len(found) >= count:
                return found
            if time.monotonic() > ends_at:
                raise TimeoutError(f"{len(found)} of {count} records: {found}\n{self.stderr}")
            await asyncio.sleep(0.02)

    async def stop(self, timeout_seconds: float = STOP_SECONDS) -> None:
        """SIGTERM, wait. GatewayError for another exit than 0, a child left behind, or a traceback on standard error."""
        if self._process is None:
            return
        children = [pid for pid, _ in _children(self._process.pid)]
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_seconds):
                status = await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            _kill_left(children)
            raise GatewayError(f"still running {timeout_seconds} s after SIGTERM:\n{self.stderr}") from None
        left = await _left_after(children, seconds=2.0)
        _kill_left(left)
        if status != 0 or left or "Traceback" in self.stderr:
            raise GatewayError(f"exit status {status}, children left {left}, standard error:\n{self.stderr}")


@asynccontextmanager
async def running_gateway(
    config: Mapping[str, Any] | None = None,
    *,
    workers: Sequence[str] = (),
    processes: int = 1,
    environ: Mapping[str, str] | None = None,
    wait_ready: bool = True,
    run_by: Sequence[str] = (),
) -> AsyncIterator[Gateway]:
    """Start a gateway and stop it at the end, with the checks of `Gateway.stop`.

    ``config`` is the configuration file as a value, less what is filled in here (listeners, log); ``workers`` alone stands for
    one model ``tiny`` with these base URLs. With both, the model is added to the configuration. ``run_by`` is a command that
    becomes the one behind it, as ``unshare`` does.
    """
    whole = dict(config or {})
    if workers:
        whole["models"] = [*whole.get("models", []), {"name": "tiny", "workers": list(workers)}]
    with tempfile.TemporaryDirectory(prefix="ridgeline-test-") as folder:
        gateway = Gateway(whole, Path(folder), processes=processes, environ=environ or {}, run_by=run_by)
        try:
            await gateway.start()
            if wait_ready:
                await gateway.ready()
            yield gateway
        except BaseException as error:
            try:
                await gateway.stop()
            except GatewayError as failure:  # what the test saw comes first
                error.add_note(str(failure))
            raise
        await gateway.stop()


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, all different; another process may still take one before the gateway does."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def _children(parent: int) -> list[tuple[int, str]]:
    """Process ids of the direct children that live, with their command lines (read from /proc)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # ended meanwhile
            state, ppid = stat.read_text().rpartition(")")[2].split()[:2]
            if int(ppid) == parent and state != "Z":
                line = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(stat.parent.name), line))
    return sorted(found)


async def _left_after(pids: Sequence[int], *, seconds: float) -> list[int]:
    """Which of these processes still live after so many seconds; sooner when none does."""
    ends_at = time.monotonic() + seconds
    while True:
        left = [pid for pid in pids if _lives(pid)]
        if not left or time.monotonic() > ends_at:
            return left
        await asyncio.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill_left(pids: Sequence[int]) -> None:
    for pid in pids:
        if _lives(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
