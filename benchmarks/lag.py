"""How long a serving process leaves a client waiting while others ask much of the gateway: ``python -m benchmarks.lag``.

A probe asks ``/livez`` of the clients' listener every few milliseconds, which the serving process answers itself between two
tokens; its answer time is the lag of the loop, and the way there and back. Beside streams at a steady rate there is in turn
nothing, Prometheus scraping, a configuration that changes again and again, people who look at the live page, and all of them;
every request is traced and exported all the time.
"""

# ruff: noqa: S603 -- the programs and addresses are chosen here

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from benchmarks.machine import command_line, describe_machine
from benchmarks.proxies import GATEWAY, Place, find_proxies, new_place, running
from benchmarks.streams import workload_of
from benchmarks.tool import Tool, ToolError, Workload, build_tool, pinned

_KEY = "sk-test"
_PROBE_SECONDS = 0.002
_SCRAPE_SECONDS = 1.0
_RELOAD_SECONDS = 2.0
_VIEWERS = 8
_OTHER_WORKERS = 200  # of the model that comes and goes with each reload; nobody answers there


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Answer times of the probe beside one disturbance, in milliseconds."""

    beside: str
    probes: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    most_ms: float


def config_of(place: Place, collector_port: int, *, has_others: bool) -> dict[str, object]:
    """The gateway's configuration, with or without a second model of many workers."""
    observe, admin = place.spare_ports
    models: list[dict[str, object]] = [{"name": "m", "workers": [f"http://127.0.0.1:{place.worker_port}"]}]
    if has_others:
        models.append({"name": "other", "workers": [f"http://127.0.1.{number}:9" for number in range(1, _OTHER_WORKERS + 1)]})
    return {
        "listen": f"127.0.0.1:{place.port}",
        "observe_listen": f"127.0.0.1:{observe}",
        "admin_listen": f"127.0.0.1:{admin}",
        "keys": [{"name": "bench", "sha256": sha256(_KEY.encode()).hexdigest()}],
        "models": models,
        "log": {"path": str(place.folder / "requests.jsonl")},
        "tracing": {"otlp_endpoint": f"http://127.0.0.1:{collector_port}", "sample_ratio": 1.0},
    }


def lag_of(beside: str, seconds: Sequence[float]) -> Lag:
    """Quantiles of answer times. ``ValueError`` without any."""
    if not seconds:
        raise ValueError("no probe was answered")
    ranked = sorted(seconds)

    def quantile(share: float) -> float:
        return round(1e3 * ranked[min(len(ranked) - 1, int(share * len(ranked)))], 3)

    return Lag(
        beside=beside,
        probes=len(ranked),
        p50_ms=quantile(0.5),
        p99_ms=quantile(0.99),
        p999_ms=quantile(0.999),
        most_ms=round(1e3 * ranked[-1], 3),
    )


def probe(port: int, seconds: float) -> list[float]:
    """Ask ``/livez`` on one kept connection for so long; the answer times in seconds. Raises OSError when it is closed."""
    found = []
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ends_at = time.monotonic() + seconds
        while (asked_at := time.monotonic()) < ends_at:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = b""
            while not answer.endswith(b"ok\n"):
                more = connection.recv(4096)
                if not more:
                    raise OSError("the gateway closed the connection of the probe")
                answer += more
            found.append(time.monotonic() - asked_at)
            time.sleep(_PROBE_SECONDS)
    return found


class _Collector(BaseHTTPRequestHandler):
    """Takes whatever is exported."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing is told."""


@contextmanager
def _collecting() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def _again_and_again(act: Callable[[], None], pause_seconds: float) -> Iterator[None]:
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(pause_seconds):
            with suppress(OSError):
                act()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _viewing(port: int) -> Iterator[None]:
    """As many open pages: each reads the stream of events as it comes."""

    def read(connection: socket.socket) -> None:
        with suppress(OSError):
            while connection.recv(65536):
                pass

    with ExitStack() as stack:
        for _ in range(_VIEWERS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            connection.sendall(f"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            connection.settimeout(None)
            threading.Thread(target=read, args=(connection,), daemon=True).start()
            stack.callback(connection.shutdown, socket.SHUT_RDWR)
        yield


def measure_lag(tool: Tool, core: int, seconds: float, streams: int) -> list[Lag]:
    """Each disturbance for so long. Raises `ToolError`."""
    (gateway,), _ = find_proxies([GATEWAY], None, 1)
    with tempfile.TemporaryDirectory(prefix="ridgeline-bench-", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        place = new_place(Path(folder))
        stop_standing_in = stack.enter_context(tool.standing_in(place.worker_port))
        collector_port = stack.enter_context(_collecting())
        config = place.folder / "lag.yaml"
        has_others = False

        def write_config() -> None:
            fresh = config.with_suffix(".new")
            fresh.write_text(yaml.safe_dump(config_of(place, collector_port, has_others=has_others)))
            fresh.replace(config)

        write_config()
        command = [sys.executable, "-m", "proxy.cli", "serve", "--config", str(config)]
        pid = stack.enter_context(running(replace(gateway, command=lambda _: command), place, core))
        stop_standing_in()
        observe, admin = place.spare_ports

        def scrape() -> None:
            with urllib.request.urlopen(f"http://127.0.0.1:{observe}/metrics", timeout=5) as answer:
                answer.read()

        def reload() -> None:
            nonlocal has_others
            has_others = not has_others
            write_config()
            os.kill(pid, signal.SIGHUP)

        def scrapes() -> AbstractContextManager[None]:
            return _again_and_again(scrape, _SCRAPE_SECONDS)

        def reloads() -> AbstractContextManager[None]:
            return _again_and_again(reload, _RELOAD_SECONDS)

        beside: dict[str, list[Callable[[], AbstractContextManager[None]]]] = {
            "streams alone": [],
            "scrapes": [scrapes],
            "reloads": [reloads],
            "live pages": [lambda: _viewing(admin)],
            "all of them": [scrapes, reloads, lambda: _viewing(admin)],
        }
        workload = workload_of(streams)
        lasts_seconds = workload.tokens * workload.interval_us / 1e6
        workload = replace(workload, requests=max(streams, round(streams * (seconds + 2.0) / lasts_seconds)))
        found = []
        for name, disturbances in beside.items():
            with ExitStack() as disturbed, _driving(tool, workload, place):
                for disturbance in disturbances:
                    disturbed.enter_context(disturbance())
                time.sleep(0.5)
                found.append(lag_of(name, _probed_apart(tool.core, place.port, seconds)))
        return found


@contextmanager
def _driving(tool: Tool, workload: Workload, place: Place) -> Iterator[None]:
    """Streams for as long as the block lasts; the tool sleeps between them, since the probe is on its core."""
    with pinned(tool.core):
        command = [str(tool.program), "-B", "0", "-p", str(place.port), "-m", str(place.worker_port), *workload.arguments(1.0)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
        if process.poll():
            raise ToolError(f"the streams ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


def _probed_apart(core: int, port: int, seconds: float) -> list[float]:
    """By a process of its own: this one has other things to do, and answers would wait for it."""
    with pinned(core):
        command = [sys.executable, "-m", "benchmarks.lag", "--probe", str(port), "--seconds", str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 30)
    if done.returncode:
        raise ToolError(f"the probe gave up: {done.stderr.strip()[-200:]}")
    answer: list[float] = json.loads(done.stdout)
    return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lag", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each (default 20)")
    parser.add_argument("--streams", type=int, default=100, help="5,000 tokens a second in so many streams (default 100)")
    parser.add_argument("--probe", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures, with machine and versions")
    options = parser.parse_args(arguments)
    if options.probe is not None:
        sys.stdout.write(json.dumps(probe(options.probe, options.seconds)))
        return 0
    core, tool_core = sorted(os.sched_getaffinity(0))[:2]
    try:
        found = measure_lag(Tool(program=build_tool(), core=tool_core), core, options.seconds, options.streams)
    except ToolError as error:
        sys.stderr.write(f"benchmarks: {error}\n")
        return 2
    sys.stdout.write("beside         probes  p50 ms  p99 ms  p99.9 ms  most ms\n")
    for each in found:
        figures = f"{each.p50_ms:6.2f}  {each.p99_ms:6.2f}  {each.p999_ms:8.2f}  {each.most_ms:7.2f}"
        sys.stdout.write(f"{each.beside:13}  {each.probes:6,}  {figures}\n")
    if options.json:
        told = {"command": command_line(), "machine": asdict(describe_machine()), "lag": [asdict(each) for each in found]}
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
