"""What the gateway costs beside other proxies: ``python -m benchmarks``; docs/cost.md says what is measured and how."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.cost import read_cpu
from benchmarks.machine import command_line, describe_machine
from benchmarks.measure import measure_round, measure_together
from benchmarks.proxies import GATEWAY, NAMES, Proxy, another_gateway, find_proxies
from benchmarks.report import Run, other_conditions, read_json, write_json, write_report
from benchmarks.tool import WORKLOADS, Tool, ToolError, Workload, build_tool


def _tell(text: str) -> None:
    sys.stderr.write(f"benchmarks: {text}\n")
    sys.stderr.flush()


def _cores(text: str) -> tuple[int, int]:
    proxy, _, tool = text.partition(",")
    if not (proxy.isdigit() and tool.isdigit() and proxy != tool):
        raise argparse.ArgumentTypeError("two different numbers, such as 0,1")
    return int(proxy), int(tool)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return list(dict.fromkeys(names))


def _also(text: str) -> Proxy:
    try:
        return another_gateway(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _workloads(text: str) -> tuple[Workload, ...]:
    names = [name.strip() for name in text.split(";")]
    known = {workload.name: workload for workload in WORKLOADS}
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {'; '.join(unknown)}; there are {'; '.join(known)}")
    return tuple(known[name] for name in names)


def _positive(text: str) -> float:
    figure = float(text)
    if figure <= 0:
        raise argparse.ArgumentTypeError("more than 0")
    return figure


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="each measures every proxy once (default 5)")
    parser.add_argument("--scale", type=_positive, default=1.0, help="fewer or more requests of each workload (default 1)")
    parser.add_argument("--proxies", type=_names, default=list(NAMES), help=f"some of {','.join(NAMES)} (default all)")
    parser.add_argument("--router-bin", type=Path, metavar="DIR", help="where the routers are, if not on the PATH")
    parser.add_argument(
        "--processes", type=int, default=1, help="serving processes of the gateway, all on one core (default 1)"
    )
    parser.add_argument(
        "--also",
        type=_also,
        action="append",
        default=[],
        metavar="NAME=PYTHON[,PATH]",
        help="the gateway once more, by another Python or with modules from elsewhere",
    )
    parser.add_argument("--cores", type=_cores, metavar="PROXY,TOOL", help="cores (default the first two this process may use)")
    parser.add_argument("--idle-seconds", type=_positive, default=10.0, help="how long each proxy idles first (default 10)")
    parser.add_argument("--go-on", action="store_true", help="add rounds to those in the file of --json, if it is there")
    parser.add_argument(
        "--together",
        action="store_true",
        help="run all proxies at once and drive them in turn: for a machine that is not quiet",
    )
    parser.add_argument(
        "--workloads", type=_workloads, default=WORKLOADS, help="some of them, parted by semicolons (default all)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all raw figures; renewed after each round")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, tell progress on standard error and print the report. Exit status 2 when nothing can be measured."""
    options = _options(arguments)
    usable = sorted(os.sched_getaffinity(0))
    if options.cores is None and len(usable) < 2:
        _tell("two cores are needed, one for the proxy and one for the load")
        return 2
    core, tool_core = options.cores or (usable[0], usable[1])
    if not {core, tool_core} <= set(usable):
        _tell(f"this process may use the cores {', '.join(map(str, usable))} only")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    try:
        read_cpu(os.getpid())
        tool = Tool(program=build_tool(), core=tool_core)
    except (ToolError, OSError) as error:
        _tell(str(error))
        return 2
    proxies, missing = find_proxies(options.proxies, options.router_bin, options.processes)
    for name in missing:
        _tell(f"{name} is left out: not installed, see docs/cost.md")
    proxies += options.also
    if not proxies:
        return 2
    run = Run(
        command=command_line(),
        started=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        machine=describe_machine(),
        versions={proxy.name: proxy.version for proxy in proxies},
        cores={"proxies": core, "load": tool_core},
        scale=options.scale,
        idle_seconds=options.idle_seconds,
        workloads=tuple(options.workloads),
        rounds=[],
    )
    if options.go_on and options.json and options.json.exists():
        try:
            earlier = read_json(options.json.read_bytes())
        except ValueError as error:
            _tell(f"{options.json} is no run that could be gone on with: {error}")
            return 2
        if others := other_conditions(run, earlier):
            _tell(f"{options.json} is of a run under other conditions: {', '.join(others)}")
            return 2
        run = replace(run, started=earlier.started, rounds=earlier.rounds)
    if options.json:
        options.json.write_bytes(write_json(run))  # so that a path that cannot be written is noticed now
    if options.together:
        for figures in measure_together(
            proxies, run.workloads, tool=tool, core=core, scale=options.scale, rounds=options.rounds
        ):
            run.rounds.append(figures)
            _tell(f"{len(run.rounds)} rounds")
            if options.json:
                options.json.write_bytes(write_json(run))
        sys.stdout.write(write_report(run, GATEWAY))
        return 0
    try:
        for number in range(options.rounds):
            _tell(f"round {number + 1} of {options.rounds}")
            first = len(run.rounds) % len(proxies)  # nobody is always the first
            run.rounds.append(
                measure_round(
                    [*proxies[first:], *proxies[:first]],
                    run.workloads,
                    tool=tool,
                    core=core,
                    scale=options.scale,
                    idle_seconds=options.idle_seconds,
                    tell=_tell,
                )
            )
            if options.json:
                options.json.write_bytes(write_json(run))
    except KeyboardInterrupt:
        _tell(f"interrupted; {len(run.rounds)} rounds are complete")
    if run.rounds:
        sys.stdout.write(write_report(run, GATEWAY))
    return 0 if run.rounds else 130


if __name__ == "__main__":
    sys.exit(main())
