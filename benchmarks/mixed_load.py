"""One pool against two for short requests among very long ones, with real processes: ``python -m benchmarks.mixed_load``.

Simulated workers run in real time behind a real gateway, once in one pool and once divided, under the same arrivals. It shows
on the wire what `benchmarks.pools` computes in virtual time. Streams are timed by the gateway, whose records are read.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from benchmarks.policies import row
from benchmarks.pools import BOUNDARY_TOKENS
from simulator import traces
from simulator.arrivals import Arrival, Poisson
from simulator.children import Child, child
from simulator.engine.prefix import BYTES_PER_TOKEN
from simulator.virtual.served import quantiles

MODEL = "llama-3.1-8b"
HOST = "127.0.0.1"
_START_SECONDS = 60.0
_ANSWER_SECONDS = 600.0
_MOST_TOKENS = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run."""

    workers: int
    short_workers: int  # of the divided layout
    per_second: float
    requests: int
    seed: int
    policy: str = "prefix-affinity"


class _Line(msgspec.Struct):
    """Of a record what is looked at."""

    request_id: str
    outcome: str
    pool: str | None = None
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None


def config_of(urls: Sequence[str], short: int | None, policy: str, ports: Sequence[int], log: Path) -> dict[str, Any]:
    """All workers in one pool, or the first ``short`` ones in a pool for short requests."""
    if short is None:
        pools = [{"name": "all", "policy": policy, "max_total_tokens": _MOST_TOKENS, "workers": list(urls)}]
    else:
        pools = [
            {"name": "short", "policy": policy, "max_total_tokens": BOUNDARY_TOKENS, "workers": list(urls[:short])},
            {"name": "long", "policy": policy, "max_total_tokens": _MOST_TOKENS, "workers": list(urls[short:])},
        ]
    names = ("listen", "observe_listen", "admin_listen")
    listeners = {name: f"{HOST}:{port}" for name, port in zip(names, ports, strict=True)}
    limits = {"drain_grace_seconds": 0, "drain_seconds": 1}
    return {**listeners, "models": [{"name": MODEL, "pools": pools}], "limits": limits, "log": {"path": str(log)}}


def body_of(arrival: Arrival) -> dict[str, Any]:
    """A completion of as many tokens as the arrival has, in words that no other request begins with."""
    words = f"{arrival.session:08d} " + "word and " * (arrival.prompt.tokens * BYTES_PER_TOKEN // 9)
    text = words[: arrival.prompt.tokens * BYTES_PER_TOKEN]
    return {"model": MODEL, "prompt": text, "max_tokens": arrival.output_tokens, "ignore_eos": True, "stream": True}


async def measure(plan: Plan, short: int | None, folder: Path) -> list[tuple[str, _Line]]:
    """Run one layout with fresh processes; kind and record of each request."""
    log = folder / "requests.jsonl"
    arrivals = traces.mixed(plan.requests, Poisson(per_second=plan.per_second), seed=plan.seed)
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                child(
                    f"worker-{number}",
                    [
                        *("-m", "simulator.worker", "--model", MODEL, "--gpu", "h100-sxm", "--port", "0"),
                        *("--max-model-len", str(_MOST_TOKENS), "--seed", str(number)),
                    ],
                    folder=folder,
                    grace_seconds=2.0,
                    reads_output=True,
                )
            )
            for number in range(plan.workers)
        ]
        urls = [await url_of(worker) for worker in workers]
        ports = [free_port() for _ in range(3)]
        path = folder / "gateway.yaml"
        path.write_text(yaml.safe_dump(config_of(urls, short, plan.policy, ports, log)))
        gateway = await stack.enter_async_context(
            child("gateway", ["-m", "proxy.cli", "serve", "--config", str(path)], folder=folder, grace_seconds=10.0)
        )
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                trust_env=False,
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS),
            )
        )
        base_url = f"http://{HOST}:{ports[0]}"
        await ready(session, f"http://{HOST}:{ports[1]}/readyz", gateway)
        async with asyncio.TaskGroup() as calls:
            started_at = asyncio.get_running_loop().time()
            for number, arrival in enumerate(arrivals):
                await asyncio.sleep(max(0.0, started_at + arrival.at_seconds - asyncio.get_running_loop().time()))
                calls.create_task(_call(session, base_url, f"{arrival.kind}-{number}", arrival))
    lines = [msgspec.json.decode(line, type=_Line) for line in log.read_bytes().splitlines()]
    return [(line.request_id.partition("-")[0], line) for line in lines]


async def _call(session: aiohttp.ClientSession, base_url: str, request_id: str, arrival: Arrival) -> None:
    headers = {"x-request-id": request_id}
    async with session.post(f"{base_url}/v1/completions", json=body_of(arrival), headers=headers) as response:
        async for _ in response.content.iter_any():
            pass


async def url_of(worker: Child) -> str:
    """Where a worker listens, as it says itself. Raises RuntimeError if it does not start."""
    async with asyncio.timeout(_START_SECONDS):
        line = await worker.first_line()
    if not line:
        raise RuntimeError(f"{worker.name} did not start: {worker.last_words()}")
    return line.split()[-1]


async def ready(session: aiohttp.ClientSession, url: str, gateway: Child) -> None:
    """Wait until a gateway serves. Raises RuntimeError if it does not start."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_START_SECONDS):
            while gateway.process.returncode is None:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.1)
    raise RuntimeError(f"the gateway did not start: {gateway.last_words()}")


def free_port() -> int:
    """A port that nobody listens at now."""
    import socket  # noqa: PLC0415

    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def lines_of(name: str, found: Sequence[tuple[str, _Line]]) -> str:
    """Rows of the table: one for each kind of request."""
    text = ""
    for kind in ("short", "long"):
        lines = [line for which, line in found if which == kind]
        tpot, ttft = quantiles(line.tpot_seconds for line in lines), quantiles(line.ttft_seconds for line in lines)
        ok = sum(line.outcome == "ok" for line in lines)
        ratio = (tpot.p99 or 0.0) / (tpot.p50 or 1.0)
        figures = [f"{1000 * (value or 0.0):,.1f} ms" for value in (tpot.p50, tpot.p99, ttft.p50, ttft.p99)]
        text += row((name, kind, f"{ok} of {len(lines)}", *figures[:2], f"{ratio:.2f}", *figures[2:]))
    return text


async def run(plan: Plan) -> str:
    """Both layouts one after the other; the table."""
    heads = ("layout", "kind", "answered", "TPOT P50", "P99", "P99/P50", "TTFT P50", "P99")
    text = row(heads) + row(["---"] * len(heads))
    for name, short in (
        (f"one pool of {plan.workers}", None),
        (f"{plan.short_workers} short + {plan.workers - plan.short_workers} long", plan.short_workers),
    ):
        with tempfile.TemporaryDirectory(prefix="ridgeline-mixed-") as folder:
            text += lines_of(name, await measure(plan, short, Path(folder)))
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both layouts and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixed_load", description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="simulated workers (default 4)")
    parser.add_argument("--short-workers", type=int, default=1, help="of them for short requests (default 1)")
    parser.add_argument("--per-second", type=float, default=2.0, help="requests (default 2)")
    parser.add_argument("--requests", type=int, default=400, help="in all, in each layout (default 400)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if not 0 < options.short_workers < options.workers:
        parser.error("--short-workers must leave a worker for long requests")
    plan = Plan(**vars(options))
    sys.stdout.write(asyncio.run(run(plan)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
