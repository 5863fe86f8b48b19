"""By hand: ``python -m tests.soak --seconds 300``. Prints tables; exit status 1 if anything does not hold."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.soak.run import Soaked, run_soak
from tests.soak.watching import shown


def main() -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--per-second", type=float, default=15.0, help="requests, at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-kills", action="store_true", help="leave the gateway's own processes alone")
    parser.add_argument("--json", type=Path, help="file for the report")
    options = parser.parse_args()
    soaked = asyncio.run(
        run_soak(seconds=options.seconds, per_second=options.per_second, seed=options.seed, kills=not options.without_kills)
    )
    print(as_text(soaked))
    if options.json:
        options.json.write_text(json.dumps(as_object(soaked), indent=1) + "\n")
    return 1 if soaked.failures else 0


def as_object(soaked: Soaked) -> dict[str, Any]:
    """The report as a value of JSON."""
    return {
        "seconds": soaked.seconds,
        "requests": len(soaked.sent),
        "verdicts": dict(Counter(one.result.verdict.value for one in soaked.sent)),
        "refused_by_quota": sum(one.is_limited for one in soaked.sent),
        "faults_of_workers": dict(Counter(one.kind.value for one in soaked.trouble)),
        "done_to_the_gateway": dict(Counter(one.kind.value for one in soaked.disturbances)),
        "checks": [asdict(one) | {"holds": one.holds} for one in soaked.checks],
        "trends": [asdict(one) | {"is_flat": one.is_flat} for one in soaked.trends],
        "failures": soaked.failures,
    }


def as_text(soaked: Soaked) -> str:
    """The report for people, in Markdown."""
    found = as_object(soaked)
    heads = ("requests", "verdicts", "refused_by_quota", "faults_of_workers", "done_to_the_gateway")
    lines = [f"{name.replace('_', ' ')}: {_one_line(found[name])}" for name in heads]
    rows = [
        (one.name, f"{one.expected:g}", f"{one.found:g}", f"{one.may_differ_by:g}", _verdict(holds=one.holds))
        for one in soaked.checks
    ]
    lines += ["", *_table(("what has to agree", "one", "other", "may differ by", ""), rows)]
    rows = [
        (
            f"{one.figure.removesuffix('_bytes').replace('_', ' ')} of {one.role}",
            *(shown(one.figure, value) for value in (one.earlier, one.later, one.most)),
            _verdict(holds=one.is_flat),
        )
        for one in soaked.trends
    ]
    lines += ["", *_table(("what has to be flat", "earlier", "later", "at most", ""), rows)]
    return "\n".join([*lines, "", *(soaked.failures or ["everything holds"])])


def _one_line(value: Any) -> str:
    return ", ".join(f"{count} {name}" for name, count in value.items()) if isinstance(value, dict) else str(value)


def _verdict(*, holds: bool) -> str:
    return "holds" if holds else "**FAILS**"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---", *["---:"] * (len(head) - 2), "---"], *rows)]


if __name__ == "__main__":
    sys.exit(main())
