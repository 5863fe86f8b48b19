"""What a decision costs by policy and number of workers, and the hash before it: ``python -m benchmarks.decisions``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from random import Random
from timeit import repeat

import msgspec

from benchmarks.policies import guidance_for, hardware, row
from routing.affinity import affinity_of
from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.guidance import NO_GUIDANCE
from routing.policy import POLICIES, Snapshot, choose
from routing.ring import rings_of
from routing.topology import Model, Pool
from simulator.virtual.routing import workers_named

FLEETS = (2, 20, 200)


def decision_us(policy: str, workers: int, *, calls: int = 2000, repeats: int = 5) -> float:
    """Microseconds of one decision: the least of several means. Loads lie in shared cells, as in service."""
    named = workers_named([f"worker-{number}" for number in range(workers)])
    pool = Pool(index=0, model="m", name="default", workers=named, policy=policy)
    model = Model(index=0, name="m", aliases=(), pools=(pool,))
    random = Random(1)  # noqa: S311 -- made-up load
    load, in_flight, is_up = (_cells(workers, draw) for draw in (lambda: random.uniform(2e5, 3e5), lambda: 8.0, lambda: 1.0))
    guidance = guidance_for(hardware()) if policy == "fastest" else NO_GUIDANCE
    rings = rings_of([pool])
    demands = [
        Demand(TokenEstimate(1000, 1000, 1000), max_tokens=100, affinity=random.getrandbits(64), session=random.getrandbits(64))
        for _ in range(64)
    ]
    turn = 0

    def decide() -> None:
        nonlocal turn
        turn += 1
        choose(model, demands[turn % 64], Snapshot(is_up, load, turn, in_flight, guidance, rings))

    return min(repeat(decide, number=calls, repeat=repeats)) / calls * 1e6


def _cells(workers: int, draw: Callable[[], float]) -> memoryview[float]:
    """Every hundredth of an array, as the figures of workers lie in blocks."""
    cells = memoryview(bytearray(8 * 100 * workers)).cast("d")
    for index in range(workers):
        cells[100 * index] = draw()
    return cells[::100]


def hash_us(size_bytes: int, *, calls: int = 500, repeats: int = 5) -> float:
    """Microseconds for the hash of a conversation of so many bytes, most of them in what was said since."""
    words = "the quick brown fox " * (size_bytes // 20)
    messages = [
        {"role": "system", "content": words[:1000]},
        {"role": "user", "content": words[:800]},
        {"role": "assistant", "content": words[: max(0, size_bytes - 2000)]},
    ]
    raw = msgspec.Raw(json.dumps(messages).encode())
    return min(repeat(lambda: affinity_of(raw), number=calls, repeat=repeats)) / calls * 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args(arguments)
    heads = ("policy", *(f"{workers} workers" for workers in FLEETS))
    sys.stdout.write(row(heads) + row(["---"] * len(heads)))
    for policy in POLICIES:
        costs = (decision_us(policy, workers, calls=options.calls) for workers in FLEETS)
        sys.stdout.write(row((f"`{policy}`", *(f"{cost:.1f} µs" for cost in costs))))
        sys.stdout.flush()
    for size in (2_000, 1_000_000):
        sys.stdout.write(f"hash of the beginning, {size:,} bytes: {hash_us(size, calls=options.calls // 4 or 1):.1f} µs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
