"""How the cost of a request grows with workers and models, in one process: ``python -m benchmarks.growth``.

The path of `benchmarks.hot_path`, with prompts that begin differently: the default policy spreads them over all workers.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import process_time

from benchmarks.hot_path import HotPath, a_config, plain_request
from benchmarks.machine import command_line, describe_machine
from benchmarks.work import count_work
from proxy.serving.state import ServingState

SIZES = ((1, 2), (1, 20), (1, 200), (1, 600), (100, 2))
"""Models, and workers of each."""
_PROMPTS = 509  # prime, so that no worker sees always the same ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What a plain request costs at one size."""

    models: int
    workers: int  # of each model
    request_us: float  # CPU time, the median of the rounds
    least_us: float
    most_us: float
    instructions: float  # of bytecode, mean of many requests
    tick_ms: float  # of the look at limits and health twice a second, least of several: it holds the loop
    reload_ms: float  # of taking over a topology of this size, the same; so does this


def measure_growth(
    run_dir: Path, sizes: Sequence[tuple[int, int]], *, requests: int, rounds: int, counted: int = 60
) -> list[Grown]:
    """Measure in a running loop, one size after the other in each round."""
    paths = []
    for models, workers in sizes:
        folder = run_dir / f"{models}-{workers}"
        folder.mkdir()
        path = HotPath(folder, config=a_config(models, workers))
        names = ["m", *(f"m{number}" for number in range(1, models))]
        prompts = itertools.cycle([plain_request(names[number % models], number) for number in range(_PROMPTS)])
        for _ in range(_PROMPTS):
            path.plain_to_any(next(prompts))
        paths.append((path, prompts))
    seconds: list[list[float]] = [[] for _ in paths]
    for _ in range(rounds):
        for (path, prompts), found in zip(paths, seconds, strict=True):
            gc.collect()
            started_at = process_time()
            for _ in range(requests):
                path.plain_to_any(next(prompts))
            found.append((process_time() - started_at) / requests)
    return [
        Grown(
            models=models,
            workers=workers,
            request_us=round(median(found) * 1e6, 1),
            least_us=round(min(found) * 1e6, 1),
            most_us=round(max(found) * 1e6, 1),
            instructions=round(sum(_instructions(path, next(prompts)) for _ in range(counted)) / counted),
            tick_ms=round(min(_seconds_of(path.state.tick) for _ in range(9)) * 1e3, 2),
            reload_ms=round(min(_seconds_of(lambda path=path: _reload(path.state)) for _ in range(5)) * 1e3, 2),
        )
        for (models, workers), (path, prompts), found in zip(sizes, paths, seconds, strict=True)
    ]


def _instructions(path: HotPath, request: bytes) -> float:
    return count_work(lambda: path.plain_to_any(request)).instructions


def _reload(state: ServingState) -> None:
    """Adopt the topology that is in force again, whose workers are on its rings."""
    (rings,) = state.loads.rings_for(state.topology)
    state.adopt(state.topology, rings or {})


def _seconds_of(call: Callable[[], None]) -> float:
    started_at = process_time()
    call()
    return process_time() - started_at


async def run(requests: int, rounds: int) -> list[Grown]:
    """Measure with files in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ridgeline-bench-") as folder:
        return measure_growth(Path(folder), SIZES, requests=requests, rounds=rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="of each size in each round (default 2000)")
    parser.add_argument("--rounds", type=int, default=7, help="the median counts (default 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures, with machine and versions")
    options = parser.parse_args(arguments)
    gc.set_threshold(20_000, 50, 100)  # as the serving process does
    grown = asyncio.run(run(options.requests, options.rounds))
    sys.stdout.write(
        "models  workers  request us (least to most)  bytecode instructions  look twice a second, ms  reload, ms\n"
    )
    for each in grown:
        sys.stdout.write(
            f"{each.models:6}  {each.workers:7}  {each.request_us:8.1f} ({each.least_us:.1f} to {each.most_us:.1f})"
            f"  {each.instructions:21,.0f}  {each.tick_ms:12.2f}  {each.reload_ms:21.2f}\n"
        )
    if options.json:
        told = {"command": command_line(), "machine": asdict(describe_machine()), "growth": [asdict(each) for each in grown]}
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
