"""What `ridgeline replay` promises against what happens: ``python -m benchmarks.replay_promise``.

Real processes serve mixed traffic in one pool behind a real gateway. Its log is replayed, and the division that the replay
suggests is put in force with fresh processes under the same arrivals. Figures of the second run stand beside those promised.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.mixed_load import Plan, measure
from benchmarks.policies import hardware, row
from benchmarks.pools import BOUNDARY_TOKENS
from simulator.replay.formats import read_shapes
from simulator.replay.layouts import Figures, Result
from simulator.replay.search import Question, search
from simulator.replay.shapes import in_order
from simulator.virtual.served import Quantiles, quantiles

_HEADS = ("layout", "requests", "figure", "promised", "measured", "measured / promised")


def rows_of(layout: str, kind: str, promised: Figures, measured: dict[str, Quantiles]) -> str:
    """TPOT and TTFT, median and P99."""
    text = ""
    for name, quantity in (("TPOT", promised.tpot), ("TTFT", promised.ttft)):
        for share in ("p50", "p99"):
            first, then = getattr(quantity, share), getattr(measured[name], share)
            if first and then:
                cells = (f"{1000 * first:,.1f} ms", f"{1000 * then:,.1f} ms", f"{then / first:.2f}")
                text += row((layout, kind, f"{name} {share.upper()}", *cells))
    return text


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
        before = await serve(plan, None, Path(folder))
        with (Path(folder) / "requests.jsonl").open() as lines:
            shapes = in_order(read_shapes(lines).shapes)
    question = Question(
        shapes=shapes,
        placement=hardware(),
        workers=plan.workers,
        policies=("prefix-affinity",),
        boundaries=(BOUNDARY_TOKENS,),
    )
    answer = search(question)
    text = row(_HEADS) + row(["---"] * len(_HEADS))
    text += _both(answer.before, before)
    if answer.after is None:
        return text + "The replay suggests to leave it as it is.\n"
    with tempfile.TemporaryDirectory(prefix="ridgeline-promise-") as folder:
        after = await serve(plan, answer.after.layout.parts[0].workers, Path(folder))
    return text + _both(answer.after, after)


def _both(promised: Result, measured: dict[str, dict[str, Quantiles]]) -> str:
    name = promised.layout.name
    return rows_of(name, "short", promised.short, measured["short"]) + rows_of(name, "long", promised.long, measured["long"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_promise", description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="simulated workers (default 4)")
    parser.add_argument("--per-second", type=float, default=2.0, help="requests (default 2)")
    parser.add_argument("--requests", type=int, default=400, help="in all, in each run (default 400)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    plan = Plan(**vars(options), short_workers=1)
    sys.stdout.write(asyncio.run(run(plan)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
