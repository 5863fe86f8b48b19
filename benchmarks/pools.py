"""One pool against two for short requests among very long ones, in virtual time: ``python -m benchmarks.pools``.

Nine of ten requests are short; the tenth has 30,000 to 100,000 tokens. The number of GPUs and the arrivals are the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.policies import WORKERS, engines_on, hardware, row
from routing.topology import Model, Pool
from simulator import traces
from simulator.arrivals import Arrival, Poisson
from simulator.hardware import Placement
from simulator.virtual.fleet import simulate
from simulator.virtual.routing import by_model, workers_named
from simulator.virtual.served import Quantiles, Served, quantiles, summarise

BOUNDARY_TOKENS = 16_384
_MOST_TOKENS = 131_072
_KINDS = ("short", "long")
_REQUESTS = 3000
_PER_SECOND = (4.0, 6.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What became of one kind of requests; seconds."""

    ttft: Quantiles
    tpot: Quantiles

    @property
    def stall_ratio(self) -> float:
        """TPOT P99 over P50."""
        return (self.tpot.p99 or 0.0) / (self.tpot.p50 or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One layout under one load."""

    kinds: dict[str, Kind]
    tokens_per_second: float  # generated


def layout(workers: int, short: int | None, borrow_below_ratio: float | None = None) -> Model:
    """All workers in one pool (``short`` is ``None``), or so many in one for short requests and the others in one for long."""
    named = workers_named([f"worker-{number}" for number in range(workers)])
    if short is None:
        pools: tuple[Pool, ...] = (Pool(index=0, model="m", name="all", workers=named, max_total_tokens=_MOST_TOKENS),)
    else:
        pools = (
            Pool(
                index=0,
                model="m",
                name="short",
                workers=named[:short],
                max_total_tokens=BOUNDARY_TOKENS,
                borrows_from=None if borrow_below_ratio is None else "long",
                borrow_below_ratio=borrow_below_ratio or 0.0,
            ),
            Pool(index=1, model="m", name="long", workers=named[short:], max_total_tokens=_MOST_TOKENS),
        )
    return Model(index=0, name="m", aliases=(), pools=pools)


def run(model: Model, arrivals: Sequence[Arrival], placement: Placement) -> Outcome:
    """Serve the arrivals by fresh engines."""
    engines = engines_on(placement, sum(len(pool.workers) for pool in model.pools))
    served = simulate(engines, arrivals, by_model(model))
    return Outcome(
        kinds={kind: _kind([one for one in served if one.kind == kind]) for kind in _KINDS},
        tokens_per_second=summarise(served).completion_tokens_per_second,
    )


def _kind(served: Sequence[Served]) -> Kind:
    return Kind(ttft=quantiles(one.ttft_seconds for one in served), tpot=quantiles(one.tpot_seconds for one in served))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pools", description=__doc__)
    parser.add_argument("--requests", type=int, default=_REQUESTS, help=f"at each rate (default {_REQUESTS})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"with a GPU each (default {WORKERS})")
    options = parser.parse_args(arguments)
    placement = hardware()
    workers = options.workers
    few = max(1, workers // 4)
    layouts = {
        f"one pool of {workers}": layout(workers, None),
        f"{few} short + {workers - few} long": layout(workers, few),
        f"{few + 1} short + {workers - few - 1} long": layout(workers, few + 1),
        f"{few} short + {workers - few} long, borrowing idle ones": layout(workers, few, 0.0),
    }
    heads = ("requests/s", "layout", "short: TPOT P50", "P99", "P99/P50", "TTFT P50", "P99")
    heads += ("long: TPOT P50", "P99", "TTFT P50", "P99", "tokens/s")
    sys.stdout.write(row(heads) + row(["---"] * len(heads)))
    for per_second in _PER_SECOND:
        arrivals = traces.mixed(options.requests, Poisson(per_second=per_second), seed=options.seed)
        for name, model in layouts.items():
            outcome = run(model, arrivals, placement)
            short, long = (outcome.kinds[kind] for kind in _KINDS)
            sys.stdout.write(
                row(
                    (
                        f"{per_second:g}",
                        name,
                        *_milliseconds(short.tpot, 1),
                        f"**{short.stall_ratio:.2f}**",
                        *_milliseconds(short.ttft, 0),
                        *_milliseconds(long.tpot, 1),
                        *_milliseconds(long.ttft, 0),
                        f"{outcome.tokens_per_second:.0f}",
                    )
                )
            )
            sys.stdout.flush()
    return 0


def _milliseconds(found: Quantiles, digits: int) -> tuple[str, str]:
    return f"{1000 * (found.p50 or 0.0):,.{digits}f} ms", f"{1000 * (found.p99 or 0.0):,.{digits}f} ms"


if __name__ == "__main__":
    sys.exit(main())
