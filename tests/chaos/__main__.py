"""By hand: ``python -m tests.chaos --seconds 300``. Prints what happened; exit status 1 if anything was lost or wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter

from tests.chaos.client import Verdict
from tests.chaos.run import run_chaos


def main() -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--per-second", type=float, default=15.0, help="requests, at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="serving processes")
    parser.add_argument("--hedges", action="store_true", help="late streams are sent to a second worker as well")
    options = parser.parse_args()
    report = asyncio.run(
        run_chaos(
            seconds=options.seconds,
            per_second=options.per_second,
            seed=options.seed,
            processes=options.processes,
            hedges=options.hedges,
        )
    )
    for row in report.recoveries():
        print(json.dumps(row))
    bad = [one for one in report.results if one.verdict in (Verdict.WRONG, Verdict.REFUSED)] + report.unexplained()
    for one in bad[:20]:
        print(f"at {one.started_at - report.started_at:.1f} s, {one.verdict} by {one.worker}: {one.detail}")
    summary = {
        "requests": len(report.results),
        "verdicts": Counter(one.verdict.value for one in report.results),
        "cut_unexplained": len(report.unexplained()),
        "records": report.records,
        "hedges": report.hedges,
        "in_flight": report.in_flight,
        "in_flight_tokens": report.in_flight_tokens,
    }
    print(json.dumps(summary))
    return 1 if bad or report.in_flight or sum(report.records.values()) != len(report.results) else 0


if __name__ == "__main__":
    sys.exit(main())
