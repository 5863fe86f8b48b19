"""What caps cost and bring, in virtual time: a pool of four workers with too much to do, under caps of several sizes.

    python -m benchmarks.admission

The same commit prints the same numbers on any machine. docs/decisions/0008-admission.md reads them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

from roofline.capacity.knee import knee
from roofline.expected import DEFAULT_LOSSES
from roofline.gpu_given import resolve_gpu
from roofline.written import Written, deployment_of
from routing.topology import Model, Pool
from simulator import traces
from simulator.arrivals import Arrival, AtOnce, Poisson
from simulator.engine.engine import Engine
from simulator.hardware import Hardware
from simulator.model_files import load_model
from simulator.settings import WorkerSettings
from simulator.virtual.admission import Sender, simulate_admission
from simulator.virtual.routing import demand_of, workers_named
from simulator.virtual.served import Served, quantiles, summarise

WORKERS = 4
MODEL, GPU = "llama-3.1-8b", "h100-sxm"
FILL_RATIOS = (0.4, 0.6, 0.8, 0.95, 1.2, 1.6, 2.4, inf)
KNEE_RATIOS = (0.8, 1.0, 2.0, 4.0, 8.0, inf)


def engines() -> tuple[list[Engine], int]:
    """Fresh ones, and the tokens that the cache of one holds."""
    launches = [WorkerSettings(model=MODEL, gpu=GPU, port=0, hardware=Hardware()).launch() for _ in range(WORKERS)]
    settings = launches[0].engine.settings
    return [launch.engine for launch in launches], settings.kv_blocks * settings.block_tokens


def model() -> Model:
    """One pool of all of them."""
    names = workers_named([f"worker-{number}" for number in range(WORKERS)])
    return Model(index=0, name=MODEL, aliases=(), pools=(Pool(index=0, model=MODEL, name="default", workers=names),))


def mean_context(arrivals: list[Arrival]) -> int:
    """Prompt and half of the completion."""
    chain = [one for arrival in arrivals for one in arrival.chain()]
    return round(sum(one.prompt.tokens + one.output_tokens / 2 for one in chain) / len(chain))


def overstatement(arrivals: list[Arrival]) -> float:
    """Prompts and output budgets over the mean contexts."""
    chain = [one for arrival in arrivals for one in arrival.chain()]
    return sum(demand_of(one).total_tokens for one in chain) / len(chain) / mean_context(arrivals)


def line(name: str, served: list[Served]) -> str:
    """One row."""
    found = summarise(served)
    ttft, tpot, e2e = found.ttft_seconds, found.tpot_seconds, found.e2e_seconds
    return (
        f"| {name} | {found.completion_tokens_per_second:.0f} | {ttft.p50:.2f} | {ttft.p99:.2f} | {1e3 * (tpot.p50 or 0):.1f} "
        f"| {1e3 * (tpot.p99 or 0):.1f} | {e2e.p50:.1f} | {found.preemptions} | {found.cached_ratio:.2f} |"
    )


HEAD = (
    "| cap | tokens/s | TTFT p50 s | p99 | TPOT p50 ms | p99 | e2e p50 s | preempted | cached |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def ratios(name: str, arrivals: list[Arrival]) -> Iterator[str]:
    """The same overload under each ratio of each cap."""
    _, kv_tokens = engines()
    context = mean_context(arrivals)
    deployment = deployment_of(load_model(MODEL, Path()), resolve_gpu(GPU), Written())
    bend = knee(deployment, DEFAULT_LOSSES["vllm"], context).batch
    over = overstatement(arrivals)
    yield f"\n{name}: mean context {context} tokens, cache {kv_tokens} tokens, knee {bend:.0f}, budget {over:.2f}\n\n{HEAD}"
    for ratio in FILL_RATIOS:
        yield line(f"fill {ratio}", simulate_admission(engines()[0], arrivals, model(), max_tokens=kv_tokens * ratio * over))
    for ratio in KNEE_RATIOS:
        yield line(f"knee x {ratio}", simulate_admission(engines()[0], arrivals, model(), max_requests=bend * ratio))


def fairness() -> Iterator[str]:
    """One key sends 4,000 requests at once; another one asks now and then."""
    greedy = [replace(one, kind="greedy") for one in traces.rag(4000, AtOnce(), seed=1)]
    small = [replace(one, kind="small") for one in traces.rag(100, Poisson(per_second=2.0), seed=2)]
    _, kv_tokens = engines()
    over = overstatement(greedy)
    yield "\nA key that sends 4,000 requests at once, and one that sends two a second: TTFT of the latter, s\n"
    yield "| cap | p50 | p99 | tokens/s of all |\n| --- | ---: | ---: | ---: |"
    for ratio in (*FILL_RATIOS, -0.95):
        served = simulate_admission(
            engines()[0],
            greedy + small,
            model(),
            max_tokens=kv_tokens * abs(ratio) * over,
            sender_of=lambda arrival, one_key=ratio < 0: Sender(key="" if one_key else arrival.kind),
        )
        of_small = quantiles(one.ttft_seconds for one in served if one.kind == "small")
        name = "fill 0.95, one key for both" if ratio < 0 else f"fill {ratio}"
        yield f"| {name} | {of_small.p50:.2f} | {of_small.p99:.2f} | {summarise(served).completion_tokens_per_second:.0f} |"


def main() -> int:
    """Print all tables."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    for rows in (
        ratios("Chat, 300 new conversations a second", traces.chat(2 * count, Poisson(per_second=300.0), seed=3)),
        ratios("RAG, 120 a second", traces.rag(count, Poisson(per_second=120.0), seed=4)),
        ratios(
            "The same, and every request declares 32,768 tokens",
            traces.rag(count, Poisson(per_second=120.0), seed=4, shape=traces.Rag(max_tokens=32_768)),
        ),
        fairness(),
    ):
        for row in rows:
            sys.stdout.write(row + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
