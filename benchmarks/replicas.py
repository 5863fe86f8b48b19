"""From one gateway to fifty before 100 workers, in virtual time: ``python -m benchmarks.replicas``; docs/replicas.md reads it.

Nothing here depends on the machine: the same commit prints the same figures everywhere.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.policies import engines_on, hardware, row
from routing.policy import Reason
from routing.topology import Model, Pool
from simulator import traces
from simulator.arrivals import Arrival, Poisson
from simulator.hardware import Placement
from simulator.virtual.replicas import Outcome, simulate_replicas
from simulator.virtual.routing import workers_named
from simulator.virtual.served import quantiles

WORKERS = 100
REPLICAS = (1, 2, 5, 20, 50)
REQUESTS = 40_000


@dataclass(frozen=True, slots=True)
class Case:
    """Traffic and policy."""

    traffic: str
    policy: str
    arrivals: Callable[[int, int, int], list[Arrival]]  # by count, workers and seed


def chat(count: int, workers: int, seed: int) -> list[Arrival]:
    """Conversations at the load per worker of `benchmarks.policies`; people think two seconds, so that a run has many turns."""
    return traces.chat(count, Poisson(per_second=2.5 * workers), seed=seed, shape=traces.Chat(think_seconds=2.0))


def hot(count: int, workers: int, seed: int) -> list[Arrival]:
    """Prompts that have nothing in common, but for every tenth, which is always the same one: ten times a worker's share."""
    return _with_hot(count, 10.0 * workers, seed, every=10)


def busy(count: int, workers: int, seed: int) -> list[Arrival]:
    """Twice as many, and every fifth is the same."""
    return _with_hot(count, 20.0 * workers, seed, every=5)


def _with_hot(count: int, per_second: float, seed: int, *, every: int) -> list[Arrival]:
    arrivals = traces.mixed(count, Poisson(per_second=per_second), seed=seed, shape=traces.Mixed(long_ratio=0.0))
    prompt = arrivals[0].prompt
    return [replace(one, prompt=prompt, kind="hot") if number % every == 0 else one for number, one in enumerate(arrivals)]


CASES = (
    Case("chat", "prefix-affinity", chat),
    Case("chat", "least-load", chat),
    Case("hot prompt", "prefix-affinity", hot),
    Case("hot prompt, busy", "prefix-affinity", busy),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run. Ratios are shares, but for those of loads, which are over the mean of all workers; seconds."""

    agreement_ratio: float | None  # of next turns that came by another gateway, those that went to the same worker; None: none
    home_ratio: float  # of all requests, those that went to the home of their beginning
    hit_ratio: float  # of prompt tokens, those found in a prefix cache
    peak_p50: float  # tokens in flight of the fullest worker, over time
    peak_worst: float
    work_ratio: float  # computed tokens of the busiest worker over the whole run
    ttft_p50: float
    ttft_p99: float
    hot_ttft_p99: float | None  # of the hot prompt; None: there is none


def run(
    case: Case,
    replicas: int,
    *,
    requests: int,
    workers: int,
    seed: int,
    placement: Placement,
    reads_gauges: bool = True,
) -> Result:
    """Serve the traffic by fresh engines. ``RuntimeError`` if anything is not served."""
    named = workers_named([f"worker-{number}" for number in range(workers)])
    model = Model(
        index=0, name="m", aliases=(), pools=(Pool(index=0, model="m", name="default", workers=named, policy=case.policy),)
    )
    outcome = simulate_replicas(
        engines_on(placement, workers),
        case.arrivals(requests, workers, seed),
        model,
        replicas=replicas,
        seed=seed,
        reads_gauges=reads_gauges,
    )
    return result_of(outcome, workers)


def result_of(outcome: Outcome, workers: int) -> Result:
    """The figures of a run in which everything was served."""
    served = outcome.served
    missing = sum(one.ended_at is None for one in served)
    if missing:
        raise RuntimeError(f"{missing} of {len(served)} requests were not served")
    work: Counter[int | None] = Counter()
    for one in served:
        work[one.worker] += one.prompt_tokens - one.cached_tokens + one.completion_tokens
    ttft = quantiles(one.ttft_seconds for one in served)
    looks = len(outcome.peaks)
    peaks = sorted(outcome.peaks[looks // 4 : -(looks // 4) or None])  # without the time in which it fills up and empties
    return Result(
        agreement_ratio=agreement(outcome),
        home_ratio=sum(reason is Reason.AFFINITY for reason in outcome.reasons) / len(served),
        hit_ratio=sum(one.cached_tokens for one in served) / sum(one.prompt_tokens for one in served),
        peak_p50=peaks[len(peaks) // 2],
        peak_worst=peaks[-1],
        work_ratio=max(work.values()) * workers / sum(work.values()),
        ttft_p50=ttft.p50 or 0.0,
        ttft_p99=ttft.p99 or 0.0,
        hot_ttft_p99=quantiles(one.ttft_seconds for one in served if one.kind == "hot").p99,
    )


def agreement(outcome: Outcome) -> float | None:
    """Of the turns that came by another gateway than the turn before, the share that went to the same worker."""
    before: dict[int, tuple[int, int | None]] = {}
    asked = agreed = 0
    for one, replica in zip(outcome.served, outcome.replicas, strict=True):
        last = before.get(one.session)
        before[one.session] = replica, one.worker
        if last is not None and last[0] != replica:
            asked += 1
            agreed += last[1] == one.worker
    return agreed / asked if asked else None


HEADS = (
    *("traffic", "policy", "gateways", "same worker by another gateway", "at home", "prefix hits"),
    *("fullest worker, typical", "worst", "busiest worker", "TTFT P50", "P99", "of the hot prompt"),
)


def line(case: Case, replicas: int, found: Result) -> str:
    """One row of the table."""
    same = "-" if found.agreement_ratio is None else f"{found.agreement_ratio:.1%}"
    home = f"{found.home_ratio:.1%}" if case.policy == "prefix-affinity" else "-"
    loads = [f"{ratio:.2f}" for ratio in (found.peak_p50, found.peak_worst, found.work_ratio)]
    times = [f"{1000 * seconds:.0f} ms" for seconds in (found.ttft_p50, found.ttft_p99)]
    times.append("-" if found.hot_ttft_p99 is None else f"{1000 * found.hot_ttft_p99:.0f} ms")
    return row((case.traffic, f"`{case.policy}`", str(replicas), same, home, f"{found.hit_ratio:.1%}", *loads, *times))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of all cases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"of each run (default {REQUESTS})")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"with a GPU each (default {WORKERS})")
    parser.add_argument("--replicas", type=int, nargs="+", default=list(REPLICAS), help="numbers of gateways")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blind", action="store_true", help="gateways do not read the workers' gauges")
    options = parser.parse_args(arguments)
    placement = hardware()
    sys.stdout.write(row(HEADS) + row(["---"] * len(HEADS)))
    for case in CASES:
        for replicas in options.replicas:
            found = run(
                case,
                replicas,
                requests=options.requests,
                workers=options.workers,
                seed=options.seed,
                placement=placement,
                reads_gauges=not options.blind,
            )
            sys.stdout.write(line(case, replicas, found))
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
