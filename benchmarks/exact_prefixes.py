"""What routing would gain by knowing exactly what every worker has cached: ``python -m benchmarks.exact_prefixes``.

The upper end of what vLLM's KV events could bring: the choice looks into the engines' prefix caches at the very instant, and
knows every prompt's tokens. Virtual time; the same commit prints the same figures everywhere. docs/decisions/0016 reads them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.policies import WORKERS, WORKLOADS, Result, engines_on, hardware, result_of, row
from routing.policies import load_bound
from routing.ring import Ring
from routing.topology import Model, Pool
from simulator.arrivals import Arrival
from simulator.hardware import Placement
from simulator.virtual.fleet import Choose, Fleet, simulate
from simulator.virtual.routing import by_model, demand_of, workers_named

CACHE_RATIOS = (1.0, 0.25)
"""Of the KV cache that the GPU has room for; with a quarter, beginnings that are still asked for are lost."""


def by_homes(workers: int) -> Choose:
    """As in service: the home of the beginning, within the bound."""
    named = workers_named([f"worker-{number}" for number in range(workers)])
    pool = Pool(index=0, model="m", name="default", workers=named, policy="prefix-affinity")
    return by_model(Model(index=0, name="m", aliases=(), pools=(pool,)))


def exactly(workers: int) -> Choose:
    """Within the same bound whoever has most of the prompt cached; among equals the home, and then who has least to do."""
    named = workers_named([f"worker-{number}" for number in range(workers)])
    ring = Ring(named)

    def chosen(arrival: Arrival, fleet: Fleet) -> int:
        demand, load = demand_of(arrival), fleet.load_tokens
        bound = load_bound(sum(load) / len(load), demand)
        home = -1 if demand.affinity is None else ring.home(demand.affinity).index
        return max(
            (index for index in range(workers) if load[index] <= bound),
            key=lambda index: (fleet.engines[index].ranks[0].cached_tokens(arrival.prompt), index == home, -load[index]),
        )

    return chosen


WAYS = {"prefix-affinity": by_homes, "exact": exactly}


def run(way: str, arrivals: Sequence[Arrival], placement: Placement, cache_ratio: float, workers: int = WORKERS) -> Result:
    """Serve the arrivals by fresh engines with so much of their cache."""
    less = replace(placement, kv_tokens=int(placement.kv_tokens * cache_ratio))
    return result_of(simulate(engines_on(less, workers), arrivals, WAYS[way](workers)), workers)


HEADS = ("traffic", "cache", "choice", "prefix hits", "TTFT P50", "TTFT P99", "TPOT P99", "imbalance")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact_prefixes", description=__doc__)
    parser.add_argument("--requests", type=int, default=4000, help="of each workload (default 4000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    placement = hardware()
    sys.stdout.write(row(HEADS) + row(["---"] * len(HEADS)))
    for workload in WORKLOADS[:3]:  # the last one has nothing in common
        arrivals = workload.arrivals(options.requests, options.seed)
        for ratio in CACHE_RATIOS:
            for way in WAYS:
                found = run(way, arrivals, placement, ratio)
                times = [f"{1e3 * seconds:.0f} ms" for seconds in (found.ttft_p50, found.ttft_p99)]
                figures = (f"{found.hit_ratio:.1%}", *times, f"{1e3 * found.tpot_p99:.1f} ms", f"{found.imbalance_ratio:.2f}")
                sys.stdout.write(row((workload.name, f"{ratio:.0%}", way, *figures)))
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
