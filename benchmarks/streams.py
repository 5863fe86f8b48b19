"""Cost of a token at one rate over few or many streams, and memory of connections: ``python -m benchmarks.streams``.

The gateway as ``python -m benchmarks`` runs it, on one core, with the load tool on another.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cost import read_cpu, read_memory, spent_seconds, tree_of
from benchmarks.machine import command_line, describe_machine
from benchmarks.proxies import GATEWAY, Place, find_proxies, new_place, running
from benchmarks.tool import Tool, ToolError, Workload, build_tool

TOKENS_PER_SECOND = 5_000
STREAMS = (10, 100, 1_000, 5_000)
_TOKENS = 128
_LEAST_REQUESTS = 240
_IDLE_CONNECTIONS = 4_000
_SETTLE_SECONDS = 1.0
_SAMPLE_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """So many streams at once, all together at one rate."""

    streams: int
    tokens_per_second: float  # that came through
    cpu_us: float  # of the tree, per token, with what the requests take
    serving_cpu_us: float
    stream_bytes: float  # memory of the serving process per stream while they run, over what it had before


def workload_of(streams: int, tokens: int = _TOKENS) -> Workload:
    """Streams of so many tokens, paced so that all together make the rate."""
    interval_us = round(streams / TOKENS_PER_SECOND * 1e6)
    requests = max(_LEAST_REQUESTS, streams)
    return Workload(
        name=f"{streams} streams", unit="tokens", clients=streams, requests=requests, tokens=tokens, interval_us=interval_us
    )


def measure_streams(
    tool: Tool, core: int, streams: Sequence[int], idle_connections: int, tokens: int = _TOKENS
) -> tuple[list[Streamed], float]:
    """Each number of streams in a gateway of its own; with it bytes of memory per idle connection. Raises `ToolError`."""
    found = []
    idle_bytes = 0.0
    for number in streams:
        (gateway,), _ = find_proxies([GATEWAY], None, 1)
        with tempfile.TemporaryDirectory(prefix="ridgeline-bench-", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
            place = new_place(Path(folder))
            stop_standing_in = stack.enter_context(tool.standing_in(place.worker_port))
            pid = stack.enter_context(running(gateway, place, core))
            serving = _serving_of(pid)
            if not found:
                idle_bytes = _idle_bytes(place, serving, idle_connections)
            stop_standing_in()
            tool.warm_up(Workload(name="", unit="tokens", clients=8, requests=100), place.port, place.worker_port)
            time.sleep(_SETTLE_SECONDS)
            found.append(_drive(tool, workload_of(number, tokens), place, pid, serving))
    return found, idle_bytes


def _drive(tool: Tool, workload: Workload, place: Place, pid: int, serving: int) -> Streamed:
    before, at_first = read_cpu(pid), _memory(serving)
    most = at_first
    is_over = threading.Event()

    def sample() -> None:
        nonlocal most
        while not is_over.wait(_SAMPLE_SECONDS):
            most = max(most, _memory(serving))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        result = tool.drive(workload, 1.0, place.port, place.worker_port)
    finally:
        is_over.set()
        sampler.join()
    spent = spent_seconds(before, read_cpu(pid))
    return Streamed(
        streams=workload.clients,
        tokens_per_second=round(result.tokens / result.wall_s),
        cpu_us=round(sum(spent.values()) / result.tokens * 1e6, 2),
        serving_cpu_us=round(spent.get(serving, 0.0) / result.tokens * 1e6, 2),
        stream_bytes=round((most - at_first) / workload.clients),
    )


def _idle_bytes(place: Place, serving: int, connections: int) -> float:
    """Memory per connection that has carried one request and is kept."""
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":8,"stream":true}'
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk-test\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )

    def connect() -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", place.port), 5)
        connection.sendall(request)
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            more = connection.recv(65536)
            if not more:
                raise ToolError("the gateway has closed a connection that was to be kept")
            answer += more
        return connection

    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connect())
        before = _memory(serving)
        for _ in range(connections):
            stack.enter_context(connect())
        return (_memory(serving) - before) / connections


def _serving_of(pid: int) -> int:
    for each in tree_of(pid):
        if "proxy.serving.process" in Path(f"/proc/{each}/cmdline").read_text().replace("\0", " "):
            return each
    raise ToolError("there is no serving process")


def _memory(pid: int) -> int:
    """Resident bytes: what is new in it belongs to nobody else."""
    return read_memory(pid).rss_bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument(
        "--streams", type=int, nargs="+", default=list(STREAMS), help="how many at once (default 10 100 1000 5000)"
    )
    parser.add_argument("--tokens", type=int, default=_TOKENS, help="of each stream (default 128)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures, with machine and versions")
    options = parser.parse_args(arguments)
    core, tool_core = sorted(os.sched_getaffinity(0))[:2]
    try:
        tool = Tool(program=build_tool(), core=tool_core)
        found, idle_bytes = measure_streams(tool, core, options.streams, _IDLE_CONNECTIONS, options.tokens)
    except ToolError as error:
        sys.stderr.write(f"benchmarks: {error}\n")
        return 2
    sys.stdout.write("streams  tokens/s  CPU us per token  of it serving  kB per stream\n")
    for each in found:
        sys.stdout.write(
            f"{each.streams:7,}  {each.tokens_per_second:8,.0f}  {each.cpu_us:16.1f}  {each.serving_cpu_us:13.1f}"
            f"  {each.stream_bytes / 1000:13.1f}\n"
        )
    sys.stdout.write(f"an idle connection: {idle_bytes / 1000:.1f} kB\n")
    if options.json:
        told = {
            "command": command_line(),
            "machine": asdict(describe_machine()),
            "streams": [asdict(each) for each in found],
            "idle_connection_bytes": round(idle_bytes),
        }
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
