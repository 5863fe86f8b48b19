"""What second workers bring where one of several stands still now and then, on the wire: ``python -m benchmarks.hedging``.

Simulated workers run in real time behind a real gateway; every few seconds the engine of one of them, drawn by chance, pauses
for a while. The same arrivals and the same pauses meet the gateway without hedging and with it. Streams are timed by the
gateway, whose records are read; what it costs is what the workers say they have computed.
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
from random import Random
from typing import Any

import aiohttp
import msgspec
import yaml

from benchmarks.mixed_load import HOST, MODEL, free_port, ready, url_of
from benchmarks.policies import row
from simulator.children import child
from simulator.virtual.served import quantiles

_WARM_UP_SECONDS = 2.0
_PROMPT_WORDS, _OUTPUT_TOKENS = (100, 1500), (16, 64)
LAYOUTS: dict[str, dict[str, Any]] = {
    "off": {},
    "after 0.3 s, 5 %": {"after_seconds": 0.3, "budget_ratio": 0.05},
    "after 0.3 s, 20 %": {"after_seconds": 0.3, "budget_ratio": 0.2},
    "after P95, 5 %": {"after_quantile": 0.95, "budget_ratio": 0.05},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run."""

    workers: int
    per_second: float
    seconds: float
    pause_every_seconds: float
    pause_seconds: float
    seed: int


class _Line(msgspec.Struct):
    """Of a record what is looked at."""

    outcome: str
    ttft_seconds: float | None = None
    prompt_tokens: int | None = None
    hedge: str | None = None
    outrun_seconds: float | None = None
    outrun_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One layout."""

    lines: list[_Line]
    computed_tokens: float  # prompt tokens, as all workers say


def config_of(urls: Sequence[str], hedging: dict[str, Any], ports: Sequence[int], log: Path) -> dict[str, Any]:
    """One pool of all workers, by load."""
    names = ("listen", "observe_listen", "admin_listen")
    listeners = {name: f"{HOST}:{port}" for name, port in zip(names, ports, strict=True)}
    pool = {"name": "default", "policy": "least-load", "workers": list(urls)}
    limits = {"drain_grace_seconds": 0, "drain_seconds": 1}
    models = [{"name": MODEL, "pools": [pool]}]
    return {**listeners, "models": models, "limits": limits, "hedging": hedging, "log": {"path": str(log)}}


async def measure(plan: Plan, hedging: dict[str, Any], folder: Path) -> Result:
    """Run one layout with fresh processes."""
    log = folder / "requests.jsonl"
    async with contextlib.AsyncExitStack() as stack:
        controls = [free_port() for _ in range(plan.workers)]
        workers = [
            await stack.enter_async_context(
                child(
                    f"worker-{number}",
                    [
                        *("-m", "simulator.worker", "--model", MODEL, "--gpu", "h100-sxm", "--port", "0"),
                        *("--control-port", str(control), "--seed", str(number)),
                    ],
                    folder=folder,
                    grace_seconds=2.0,
                    reads_output=True,
                )
            )
            for number, control in enumerate(controls)
        ]
        urls = [await url_of(worker) for worker in workers]
        ports = [free_port() for _ in range(3)]
        path = folder / "gateway.yaml"
        path.write_text(yaml.safe_dump(config_of(urls, hedging, ports, log)))
        gateway = await stack.enter_async_context(
            child("gateway", ["-m", "proxy.cli", "serve", "--config", str(path)], folder=folder, grace_seconds=10.0)
        )
        session = await stack.enter_async_context(
            aiohttp.ClientSession(trust_env=False, connector=aiohttp.TCPConnector(limit=0))
        )
        await ready(session, f"http://{HOST}:{ports[1]}/readyz", gateway)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_pauses(plan, session, controls))
            await _load(plan, session, f"http://{HOST}:{ports[0]}", tasks)
        await asyncio.sleep(1.0)  # records are on their way
        computed = sum([await _computed_tokens(session, url) for url in urls])
    lines = [msgspec.json.decode(line, type=_Line) for line in log.read_bytes().splitlines()]
    return Result(lines=lines, computed_tokens=computed)


async def _load(plan: Plan, session: aiohttp.ClientSession, base_url: str, tasks: asyncio.TaskGroup) -> None:
    """Requests at random instants, all different, the same for the same seed."""
    dice = Random(plan.seed)  # noqa: S311 -- a load, no secret
    loop = asyncio.get_running_loop()
    at, ends_at = loop.time(), loop.time() + plan.seconds
    while (at := at + dice.expovariate(plan.per_second)) < ends_at:
        words = " ".join(f"word{dice.randrange(10**4)}" for _ in range(dice.randint(*_PROMPT_WORDS) // 3))
        body = {
            "model": MODEL,
            "prompt": words,
            "max_tokens": dice.randint(*_OUTPUT_TOKENS),
            "ignore_eos": True,
            "stream": True,
        }
        await asyncio.sleep(max(0.0, at - loop.time()))
        tasks.create_task(_call(session, base_url, body))


async def _call(session: aiohttp.ClientSession, base_url: str, body: dict[str, Any]) -> None:
    async with session.post(f"{base_url}/v1/completions", json=body) as response:
        async for _ in response.content.iter_any():
            pass


async def _pauses(plan: Plan, session: aiohttp.ClientSession, controls: Sequence[int]) -> None:
    """One worker at a time stands still, at instants of its own."""
    dice = Random(plan.seed + 1)  # noqa: S311 -- the same
    loop = asyncio.get_running_loop()
    at, ends_at = loop.time() + _WARM_UP_SECONDS, loop.time() + plan.seconds
    while at + plan.pause_seconds < ends_at:
        await asyncio.sleep(max(0.0, at - loop.time()))
        url = f"http://{HOST}:{dice.choice(controls)}/faults"
        for faults in ({"pause": True}, {}):
            async with session.put(url, json=faults) as answer:
                answer.raise_for_status()
            if faults:
                await asyncio.sleep(plan.pause_seconds)
        at += plan.pause_every_seconds * dice.uniform(0.5, 1.5)


async def _computed_tokens(session: aiohttp.ClientSession, url: str) -> float:
    async with session.get(f"{url}/metrics") as answer:
        page = await answer.text()
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:prompt_tokens_total"))


def line_of(name: str, result: Result) -> str:
    """A row of the table."""
    lines = result.lines
    ttft = sorted(line.ttft_seconds for line in lines if line.ttft_seconds is not None)
    found = quantiles(ttft)
    asked = sum(line.prompt_tokens or 0 for line in lines)
    times = [f"{1000 * (value or 0.0):,.0f} ms" for value in (found.p50, ttft[int(0.95 * len(ttft))], found.p99, ttft[-1])]
    counts = [str(sum(line.hedge == result for line in lines)) for result in ("won", "lost")]
    others = sum(line.hedge is not None for line in lines) - sum(map(int, counts))
    wasted = sum(line.outrun_prompt_tokens or 0 for line in lines)
    return row(
        (
            name,
            f"{sum(line.outcome == 'ok' for line in lines)} of {len(lines)}",
            *times,
            *counts,
            str(others),
            f"{sum(line.outrun_seconds or 0.0 for line in lines):.1f} s",
            f"{wasted / asked:.2%}",
            f"{result.computed_tokens / asked - 1:+.2%}",
        )
    )


async def run(plan: Plan, names: Sequence[str]) -> None:
    """The layouts one after the other; prints the table."""
    heads = (
        *("hedging", "answered", "TTFT P50", "P95", "P99", "largest", "won", "lost", "others"),
        *("called off after", "prompt tokens sent for nothing", "computed beyond those asked"),
    )
    sys.stdout.write(row(heads) + row(["---"] * len(heads)))
    for name in names:
        with tempfile.TemporaryDirectory(prefix="ridgeline-hedging-") as folder:
            sys.stdout.write(line_of(name, await measure(plan, LAYOUTS[name], Path(folder))))
            sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all layouts and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hedging", description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="simulated workers (default 4)")
    parser.add_argument("--per-second", type=float, default=10.0, help="requests (default 10)")
    parser.add_argument("--seconds", type=float, default=80.0, help="of each layout (default 80)")
    parser.add_argument("--pause-every-seconds", type=float, default=10.0, help="on average (default 10)")
    parser.add_argument("--pause-seconds", type=float, default=1.5, help="of one worker (default 1.5)")
    parser.add_argument("--only", choices=LAYOUTS, help="this layout alone")
    parser.add_argument("--seed", type=int, default=1)
    options = vars(parser.parse_args(arguments))
    only = options.pop("only")
    asyncio.run(run(Plan(**options), [only] if only else list(LAYOUTS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
