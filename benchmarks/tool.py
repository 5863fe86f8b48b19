"""The load tool: how tokstorm.c is built, the workloads it drives, and what it answers."""

# ruff: noqa: S603 -- the compiler, and the program that it has built

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
_SOURCE = Path(__file__).with_name("tokstorm.c")
_CACHE = ROOT / ".cache" / "benchmarks"
_FLAGS = ("-O2",)
_WARM_UP_REQUESTS = 60
_LEAST_REQUESTS = 40
_RUN_SECONDS = 300.0  # longest run of the tool


class ToolError(Exception):
    """The tool cannot be built, or gave no figures; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One kind of traffic, and what its cost is divided by."""

    name: str
    unit: str  # "tokens" or "requests"
    clients: int
    requests: int
    tokens: int = 128  # of each stream
    interval_us: int = 0  # between the tokens of a stream; 0: as fast as they are read
    prompt_bytes: int = 2000
    is_streamed: bool = True
    asks_usage: bool = True

    def arguments(self, scale: float) -> list[str]:
        """What the tool is given; ``scale`` makes it fewer requests or more."""
        figures = {
            "-c": self.clients,
            "-r": max(_LEAST_REQUESTS, int(self.requests * scale)),
            "-n": self.tokens,
            "-i": self.interval_us,
            "-P": self.prompt_bytes,
            "-s": int(self.is_streamed),
            "-u": int(self.asks_usage),
        }
        return [word for option, figure in figures.items() for word in (option, str(figure))]

    def units_of(self, result: ToolResult) -> int:
        """How many of its unit were served."""
        return result.tokens if self.unit == "tokens" else result.requests


WORKLOADS = (
    Workload(name="token, paced", unit="tokens", clients=64, requests=400, interval_us=10_000),
    Workload(name="token, storm", unit="tokens", clients=64, requests=1500),
    Workload(name="request, plain", unit="requests", clients=32, requests=6000, is_streamed=False),
    Workload(name="request, one-token stream", unit="requests", clients=16, requests=4000, tokens=1),
    Workload(name="request, 200 kB prompt", unit="requests", clients=16, requests=600, tokens=8, prompt_bytes=200_000),
    Workload(name="request, 1 MB prompt", unit="requests", clients=8, requests=150, tokens=8, prompt_bytes=1_000_000),
    Workload(
        name="token, paced, usage not asked", unit="tokens", clients=64, requests=400, interval_us=10_000, asks_usage=False
    ),
)


class Quantiles(msgspec.Struct, frozen=True):
    """Delays in microseconds."""

    p50: float
    p99: float


class ToolResult(msgspec.Struct, frozen=True):
    """The line that the tool prints; times are in microseconds where the name says so."""

    requests: int
    tokens: int
    errors: int  # answers that were cut short, refused, or lacked tokens
    wall_s: float
    first_us: Quantiles  # first token written by the worker → read by the client
    token_us: Quantiles  # the same of every token
    total_us: Quantiles  # request sent → answer complete


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """What is started within runs on this core, and so does all that it starts."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def build_tool() -> Path:
    """Compile the tool unless that has been done for the same source. Raises `ToolError`."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ToolError(
            "a C compiler is needed to build benchmarks/tokstorm.c, and no cc is on the PATH (Debian: gcc, libc6-dev)"
        )
    source = _SOURCE.read_bytes()
    program = _CACHE / f"tokstorm-{sha256(source + ' '.join(_FLAGS).encode()).hexdigest()[:12]}"
    if program.exists():
        return program
    _CACHE.mkdir(parents=True, exist_ok=True)
    fresh = program.with_suffix(f".{os.getpid()}")
    done = subprocess.run([compiler, *_FLAGS, "-o", str(fresh), str(_SOURCE)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"{compiler} cannot build benchmarks/tokstorm.c:\n{done.stderr.strip()}")
    fresh.rename(program)
    return program


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """The built tool on its core."""

    program: Path
    core: int

    @contextmanager
    def standing_in(self, worker_port: int) -> Iterator[Callable[[], None]]:
        """A worker for a proxy that starts or idles, until the block ends or calls what it is given."""
        with pinned(self.core):
            process = subprocess.Popen([str(self.program), "--serve", "-m", str(worker_port), "-n", "8"])

        def stop() -> None:
            process.kill()
            process.wait()

        try:
            yield stop
        finally:
            stop()

    def warm_up(self, workload: Workload, port: int, worker_port: int) -> None:
        """A few requests of the same kind. What comes of them is not looked at, but raises `ToolError` when it hangs."""
        self._run([*workload.arguments(1.0), "-r", str(_WARM_UP_REQUESTS)], port, worker_port)

    def drive(self, workload: Workload, scale: float, port: int, worker_port: int) -> ToolResult:
        """Drive a proxy. Raises `ToolError` when not all requests were answered."""
        done = self._run(workload.arguments(scale), port, worker_port)
        try:
            result = msgspec.json.decode(done.stdout, type=ToolResult)
        except msgspec.DecodeError:
            raise ToolError(f"the tool gave up: {done.stderr.strip() or f'exit code {done.returncode}'}") from None
        if done.stderr.strip():
            raise ToolError(f"the tool says: {done.stderr.strip()}, after {result.requests} requests")
        if not workload.units_of(result):
            raise ToolError(f"no {workload.unit} came through")
        return result

    def _run(self, arguments: list[str], port: int, worker_port: int) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), "-B", "1", "-p", str(port), "-m", str(worker_port), *arguments]
        try:
            with pinned(self.core):
                return subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise ToolError(f"the tool was not done after {_RUN_SECONDS:g} s") from None
