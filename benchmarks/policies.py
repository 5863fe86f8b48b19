"""Policies compared in virtual time on the same traffic: ``python -m benchmarks.policies``; docs/routing.md has the table.

Nothing here depends on the machine: the same engines, seeds and arrivals give the same figures everywhere.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.control.speeds import speed_of
from roofline.closed_form import closed_form
from roofline.expected import DEFAULT_LOSSES
from routing.guidance import Guidance, PoolGuidance, pool_key
from routing.policy import POLICIES
from routing.topology import Model, Pool
from simulator import traces
from simulator.arrivals import Arrival, Poisson
from simulator.engine.engine import Engine, EngineSettings
from simulator.hardware import Hardware, Placement, place
from simulator.virtual.fleet import simulate
from simulator.virtual.routing import by_model, workers_named
from simulator.virtual.served import Served, summarise

WORKERS = 8


@dataclass(frozen=True, slots=True)
class Workload:
    """Traffic for eight workers, at a rate that keeps them busy and does not overload them."""

    name: str
    arrivals: Callable[[int, int], list[Arrival]]  # by count and seed


WORKLOADS = (
    Workload("chat", lambda count, seed: traces.chat(count, Poisson(per_second=20.0), seed=seed)),
    Workload("rag", lambda count, seed: traces.rag(count, Poisson(per_second=40.0), seed=seed)),
    Workload(
        "agents",
        # Agents declare 32,000 tokens and generate few; the gateway learns that, so it is declared here.
        lambda count, seed: traces.agents(count, Poisson(per_second=2.0), seed=seed, shape=traces.Agents(max_tokens=2_048)),
    ),
    # Nothing in common, so that no policy can gain: what it costs to look for it.
    Workload(
        "unrelated",
        lambda count, seed: traces.mixed(count, Poisson(per_second=80.0), seed=seed, shape=traces.Mixed(long_ratio=0.0)),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One policy on one workload; seconds. Ratios are shares but for the imbalance."""

    hit_ratio: float  # prompt tokens found in a prefix cache
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    imbalance_ratio: float  # computed tokens of the busiest worker over the mean


def hardware() -> Placement:
    """An H100 with an 8B model."""
    return place("llama-3.1-8b", None, "h100-sxm", Hardware())


def guidance_for(placement: Placement) -> Guidance:
    """What control would tell of these workers."""
    speed = speed_of(closed_form(placement.timer.deployment, DEFAULT_LOSSES["vllm"], chunk_tokens=placement.step_tokens))
    return Guidance(pools={pool_key("m", "default"): PoolGuidance(speed=speed, cached_ratio=0.5)})


def engines_on(placement: Placement, count: int) -> list[Engine]:
    """Fresh engines."""
    return [
        Engine(
            EngineSettings(
                timer=placement.timer,
                kv_tokens=placement.kv_tokens,
                max_num_seqs=placement.max_num_seqs,
                step_tokens=placement.step_tokens,
                seed=number,
            )
        )
        for number in range(count)
    ]


def run(policy: str, arrivals: Sequence[Arrival], placement: Placement, workers: int, guidance: Guidance) -> Result:
    """Serve the arrivals by fresh engines in one pool with this policy."""
    named = workers_named([f"worker-{number}" for number in range(workers)])
    pool = Pool(index=0, model="m", name="default", workers=named, policy=policy)
    model = Model(index=0, name="m", aliases=(), pools=(pool,))
    served = simulate(engines_on(placement, workers), arrivals, by_model(model, guidance=guidance))
    return result_of(served, workers)


def result_of(served: Sequence[Served], workers: int) -> Result:
    """The figures of a run in which everything was served."""
    summary = summarise(served)
    work: Counter[int] = Counter()
    for one in served:
        if one.worker is not None:
            work[one.worker] += one.prompt_tokens - one.cached_tokens + one.completion_tokens
    if summary.completed != len(served):
        raise RuntimeError(f"{len(served) - summary.completed} of {len(served)} requests were not served")
    return Result(
        hit_ratio=summary.cached_ratio or 0.0,
        ttft_p50=summary.ttft_seconds.p50 or 0.0,
        ttft_p99=summary.ttft_seconds.p99 or 0.0,
        tpot_p50=summary.tpot_seconds.p50 or 0.0,
        tpot_p99=summary.tpot_seconds.p99 or 0.0,
        imbalance_ratio=max(work.values()) * workers / sum(work.values()),
    )


def row(cells: Sequence[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of all policies on all workloads."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__)
    parser.add_argument("--requests", type=int, default=4000, help="of each workload (default 4000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"with a GPU each (default {WORKERS})")
    options = parser.parse_args(arguments)
    placement = hardware()
    guidance = guidance_for(placement)
    heads = ("traffic", "policy", "prefix hits", "TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", "imbalance")
    sys.stdout.write(row(heads) + row(["---"] * len(heads)))
    for workload in WORKLOADS:
        arrivals = workload.arrivals(options.requests, options.seed)
        for policy in POLICIES:
            found = run(policy, arrivals, placement, options.workers, guidance)
            sys.stdout.write(
                row(
                    (
                        workload.name,
                        f"`{policy}`",
                        f"{found.hit_ratio:.1%}",
                        *(f"{1000 * seconds:.0f} ms" for seconds in (found.ttft_p50, found.ttft_p99)),
                        *(f"{1000 * seconds:.1f} ms" for seconds in (found.tpot_p50, found.tpot_p99)),
                        f"{found.imbalance_ratio:.2f}",
                    )
                )
            )
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
