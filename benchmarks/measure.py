"""One round: every proxy is started anew, idles, is driven through all workloads, and is ended. What it cost is a value."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cost import Memory, Reading, read_cpu, read_memory, spent_seconds
from benchmarks.proxies import Place, Proxy, ProxyStartError, new_place, running
from benchmarks.tool import Tool, ToolError, ToolResult, Workload

_SETTLE_SECONDS = 0.2  # for what a proxy does after the last answer: closing, writing its log
_START_UP_SECONDS = 1.0  # until a proxy that has just answered is taken to idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One workload through one proxy."""

    cpu_us: float  # CPU microseconds of the tree per unit of the workload
    cpu_us_by_role: dict[str, float]  # the same by what the processes are for
    result: ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A proxy without traffic."""

    cpu_ms_per_second: float
    cpu_ms_per_second_by_role: dict[str, float]
    memory: Memory


@dataclass(slots=True, kw_only=True)
class ProxyRound:
    """One proxy in one round. What could not be measured is in `errors` under the workload's name, or under "start"."""

    idle: Idle | None = None
    loaded: Memory | None = None  # memory after all workloads
    samples: dict[str, Sample] = field(default_factory=dict)  # by the workload's name
    errors: dict[str, str] = field(default_factory=dict)


Round = dict[str, ProxyRound]  # by the proxy's name


def measure_round(
    proxies: Sequence[Proxy],
    workloads: Sequence[Workload],
    *,
    tool: Tool,
    core: int,
    scale: float,
    idle_seconds: float,
    tell: Callable[[str], None],
) -> Round:
    """Measure every proxy once, in the order given, on this core. What fails becomes an error in its place."""
    figures: Round = {}
    for proxy in proxies:
        tell(proxy.name)
        figures[proxy.name] = ProxyRound()
        with tempfile.TemporaryDirectory(prefix="ridgeline-bench-", ignore_cleanup_errors=True) as folder:
            place = new_place(Path(folder))
            try:
                _measure(proxy, workloads, figures[proxy.name], place, tool, core, scale, idle_seconds)
            except (ProxyStartError, ToolError) as error:
                figures[proxy.name].errors["start"] = str(error)
                tell(f"{proxy.name}: {error}")
    return figures


def measure_together(
    proxies: Sequence[Proxy], workloads: Sequence[Workload], *, tool: Tool, core: int, scale: float, rounds: int
) -> Iterator[Round]:
    """Run all proxies at once and drive them in turn, one workload after the other, so that figures that are compared are taken
    within a second of each other: for a machine that has other things to do. What fails becomes an error in its place.
    """
    with ExitStack() as stack:
        places: dict[str, Place] = {}
        pids: dict[str, int] = {}
        stand_ins: dict[str, ExitStack] = {}
        for proxy in proxies:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ridgeline-bench-", ignore_cleanup_errors=True))
            place = places[proxy.name] = new_place(Path(folder))
            stand_in = stand_ins[proxy.name] = stack.enter_context(ExitStack())
            stand_in.enter_context(tool.standing_in(place.worker_port))
            pids[proxy.name] = stack.enter_context(running(proxy, place, core))
        time.sleep(_START_UP_SECONDS)
        for number in range(rounds):
            first = number % len(proxies)
            figures: Round = {proxy.name: ProxyRound() for proxy in proxies}
            for workload in workloads:
                for proxy in (*proxies[first:], *proxies[:first]):
                    place, stand_in = places[proxy.name], stand_ins[proxy.name]
                    stand_in.close()
                    try:
                        sample = _drive(proxy, workload, pids[proxy.name], place, tool, scale)
                        figures[proxy.name].samples[workload.name] = sample
                    except ToolError as error:
                        figures[proxy.name].errors[workload.name] = str(error)
                    stand_in.enter_context(tool.standing_in(place.worker_port))
            yield figures


def _measure(
    proxy: Proxy,
    workloads: Sequence[Workload],
    figures: ProxyRound,
    place: Place,
    tool: Tool,
    core: int,
    scale: float,
    idle_seconds: float,
) -> None:
    with tool.standing_in(place.worker_port) as stop_standing_in, running(proxy, place, core) as pid:
        time.sleep(_START_UP_SECONDS)
        before = read_cpu(pid)
        time.sleep(idle_seconds)
        by_role = _by_role(proxy, before, read_cpu(pid), 1e3 / idle_seconds)
        figures.idle = Idle(cpu_ms_per_second=sum(by_role.values()), cpu_ms_per_second_by_role=by_role, memory=read_memory(pid))
        stop_standing_in()  # the tool brings a worker of its own
        for workload in workloads:
            try:
                figures.samples[workload.name] = _drive(proxy, workload, pid, place, tool, scale)
            except ToolError as error:
                figures.errors[workload.name] = str(error)
        figures.loaded = read_memory(pid)


def _drive(proxy: Proxy, workload: Workload, pid: int, place: Place, tool: Tool, scale: float) -> Sample:
    tool.warm_up(workload, place.port, place.worker_port)
    time.sleep(_SETTLE_SECONDS)
    before = read_cpu(pid)
    result = tool.drive(workload, scale * proxy.share, place.port, place.worker_port)
    time.sleep(_SETTLE_SECONDS)
    after = read_cpu(pid)
    if before.processes - after.processes:
        raise ToolError("a process of the proxy ended while it was measured")
    by_role = _by_role(proxy, before, after, 1e6 / workload.units_of(result))
    return Sample(cpu_us=sum(by_role.values()), cpu_us_by_role=by_role, result=result)


def _by_role(proxy: Proxy, before: Reading, after: Reading, factor: float) -> dict[str, float]:
    """CPU seconds between two readings, times a factor, by what the processes are for."""
    figures: dict[str, float] = defaultdict(float)
    for pid, seconds in spent_seconds(before, after).items():
        figures[proxy.role_of(after.commands[pid])] += seconds * factor
    return dict(figures)
