"""What `ridgeline replay` promises against what happens: ``python -m benchmarks.replay_promise``.

Real processes serve mixed traffic in one pool behind a real gateway. Its log is replayed, and the division that the replay
suggests is put in force with fresh processes under the same arrivals. Figures of the second run stand beside those promised.

Arrivals take ``--requests`` over ``--per-second`` seconds, twice; starting, draining and replaying take 45 s more. The policy
is ``least-load`` unless told otherwise. By ``prefix-affinity`` hashes of prompts' beginnings and of the workers' names decide
which requests meet on a worker, and the records hold neither. So the promise is made for many sets of names, too, and its range
stands beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.mixed_load import Plan, measure
from benchmarks.policies import hardware, row
from benchmarks.pools import BOUNDARY_TOKENS
from simulator.replay.formats import read_shapes
from simulator.replay.layouts import Figures, Result, result_of
from simulator.replay.layouts import run as run_layout
from simulator.replay.search import Answer, Question, search
from simulator.replay.shapes import arrivals_of, in_order, total_tokens
from simulator.virtual.served import Quantiles, quantiles

_HEADS = ("layout", "requests", "figure", "promised", "with other names", "measured", "measured / promised")
_NAMINGS = 24


def rows_of(layout: str, kind: str, promised: Figures, others: Sequence[Figures], measured: dict[str, Quantiles]) -> str:
    """TPOT and TTFT, median and P99; of ``others``, with workers of other names, from the least to the largest."""
    text = ""
    for name in ("TPOT", "TTFT"):
        for share in ("p50", "p99"):
            first, then = getattr(_of(promised, name), share), getattr(measured[name], share)
            if first and then:
                drawn = [getattr(_of(one, name), share) * 1000 for one in others]
                cells = (
                    f"{1000 * first:,.1f} ms",
                    f"{min(drawn):,.1f} to {max(drawn):,.1f} ms",
                    f"{1000 * then:,.1f} ms",
                    f"{then / first:.2f}",
                )
                text += row((layout, kind, f"{name} {share.upper()}", *cells))
    return text


def _of(figures: Figures, name: str) -> Quantiles:
    return figures.tpot if name == "TPOT" else figures.ttft


def with_other_names(promised: Result, question: Question, answer: Answer) -> list[Result]:
    """The same layout, whose workers have other names each time."""
    arrivals = arrivals_of(question.shapes, answer.budget_tokens)
    totals = [total_tokens(shape, answer.budget_tokens) for shape in question.shapes]
    found = []
    for number in range(_NAMINGS):
        names = tuple(f"http://worker-{number}-{place}:8000" for place in range(question.workers))
        layout = replace(promised.layout, names=names)
        served = run_layout(layout, arrivals, question.placement)
        found.append(result_of(layout, served, totals, BOUNDARY_TOKENS, answer.targets))
    return found


async def serve(plan: Plan, short: int | None, folder: Path) -> dict[str, dict[str, Quantiles]]:
    """Figures of each kind of requests from one real run."""
    found = await measure(plan, short, folder)
    return {
        kind: {
            "TPOT": quantiles(line.tpot_seconds for which, line in found if which == kind),
            "TTFT": quantiles(line.ttft_seconds for which, line in found if which == kind),
        }
        for kind in ("short", "long")
    }


async def run(plan: Plan) -> str:
    """Serve, replay, serve again; the table."""
    with tempfile.TemporaryDirectory(prefix="ridgeline-promise-") as folder:
        _tell(f"one pool of {plan.workers}: {plan.requests} requests, {plan.requests / plan.per_second:.0f} s")
        before = await serve(plan, None, Path(folder))
        with (Path(folder) / "requests.jsonl").open() as lines:
            shapes = in_order(read_shapes(lines).shapes)
    question = Question(
        shapes=shapes,
        placement=hardware(),
        workers=plan.workers,
        policies=(plan.policy,),
        boundaries=(BOUNDARY_TOKENS,),
    )
    _tell("replaying what was recorded")
    answer = search(question)
    text = row(_HEADS) + row(["---"] * len(_HEADS))
    text += _both(answer.before, with_other_names(answer.before, question, answer), before)
    if answer.after is None:
        return text + "The replay suggests to leave it as it is.\n"
    _tell(f"{answer.after.layout.name}: the same requests")
    with tempfile.TemporaryDirectory(prefix="ridgeline-promise-") as folder:
        after = await serve(plan, answer.after.layout.parts[0].workers, Path(folder))
    return text + _both(answer.after, with_other_names(answer.after, question, answer), after)


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _both(promised: Result, others: Sequence[Result], measured: dict[str, dict[str, Quantiles]]) -> str:
    name = promised.layout.name
    short = rows_of(name, "short", promised.short, [one.short for one in others], measured["short"])
    return short + rows_of(name, "long", promised.long, [one.long for one in others], measured["long"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_promise", description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="simulated workers (default 4)")
    parser.add_argument("--per-second", type=float, default=2.0, help="requests (default 2)")
    parser.add_argument("--requests", type=int, default=160, help="in all, in each run (default 160)")
    parser.add_argument("--policy", default="least-load", help="of the pools (default least-load)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    plan = Plan(**vars(options), short_workers=1)
    sys.stdout.write(asyncio.run(run(plan)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
