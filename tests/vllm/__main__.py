"""Runs a real vLLM with each set of flags, and prints what it and the gateway say of the same requests, as a table."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.vllm.comparing import TIMED_STREAMS, Compared, compare, in_front_of
from tests.vllm.flag_sets import BY_NAME, FLAG_SETS, FlagSet
from tests.vllm.worker import RealWorker

COLUMNS = ("flags", "streams as without it", "prompt tokens", "completion tokens", "cached tokens", "tokens an event")
TIME_COLUMNS = ("TTFT ms", "TPOT ms", "whole ms")


async def run(flag_set: FlagSet, folder: Path) -> Compared:
    """Start both, compare, stop both."""
    worker = await asyncio.to_thread(RealWorker, folder / "vllm.log", *flag_set.arguments)
    try:
        async with in_front_of(worker, flag_set) as gateway:
            return await compare(gateway, worker, flag_set)
    finally:
        await asyncio.to_thread(worker.stop)


def row(found: Compared) -> str:
    """A line of the table; each pair is the worker's figure and the gateway's."""
    cells = [found.flag_set.name, f"{found.streams - len(found.different)} of {found.streams}" if found.streams else "-"]
    for kind, (theirs, ours) in found.tokens.items():
        is_untold = kind == "cached" and found.unknown_hits
        cells.append(f"{theirs:.0f}, {ours:.0f}" + (f" ({found.unknown_hits:.0f} untold)" if is_untold else ""))
    cells.append("-" if found.tokens_an_event is None else f"{found.tokens_an_event:.1f}")
    cells += [f"{theirs * 1000:.2f}, {ours * 1000:.2f}" for theirs, ours, _ in found.times.values()] or ["-"] * len(
        TIME_COLUMNS
    )
    return _line(cells)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Command line; exit status 1 when a figure is not as it has to be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"sets of flags, all if none: {', '.join(BY_NAME)}")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in BY_NAME]:
        parser.error(f"there is no set of flags {unknown[0]!r}; there are: {', '.join(BY_NAME)}")
    print(f"worker's figure, gateway's; times are medians of {TIMED_STREAMS} streams, one after another\n")
    print(_line([*COLUMNS, *TIME_COLUMNS]), _line(["---"] * len(COLUMNS + TIME_COLUMNS)), sep="\n", flush=True)
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ridgeline-vllm-") as folder:
        for flag_set in [BY_NAME[name] for name in names] or FLAG_SETS:
            found = asyncio.run(run(flag_set, Path(folder)))
            print(row(found), flush=True)
            faults += [f"{flag_set.name}: {fault}" for fault in found.faults()]
    print("", *faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
