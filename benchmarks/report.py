"""From the figures of some rounds to tables in Markdown, and to JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from benchmarks.machine import Machine
from benchmarks.measure import ProxyRound, Round, Sample
from benchmarks.tool import Workload

_NONE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that is known about one run; what ``--json`` writes."""

    command: str
    started: str  # date and time, UTC
    machine: Machine
    versions: dict[str, str]  # by proxy
    cores: dict[str, int]  # of the proxies, of the tool
    scale: float
    idle_seconds: float
    workloads: tuple[Workload, ...]
    rounds: list[Round]


def costs(rounds: Iterable[Round], proxy: str, workload: str) -> list[float]:
    """CPU microseconds per unit, of the rounds in which they were measured."""
    return [sample.cpu_us for figures in rounds if (sample := _sample(figures, proxy, workload))]


def ratios(rounds: Iterable[Round], proxy: str, other: str, workload: str) -> list[float]:
    """Cost of a proxy as a multiple of another's in the same round, of the rounds in which both were measured."""
    found: list[float] = []
    for figures in rounds:
        mine, theirs = _sample(figures, proxy, workload), _sample(figures, other, workload)
        if mine and theirs and theirs.cpu_us:
            found.append(mine.cpu_us / theirs.cpu_us)
    return found


def spread(figures: Sequence[float]) -> str:
    """Median, and least to most in brackets where there are several."""
    if not figures:
        return _NONE
    if len(figures) == 1:
        return _number(figures[0])
    return f"{_number(median(figures))} ({_number(min(figures))} to {_number(max(figures))})"


def write_json(run: Run) -> bytes:
    """All raw figures."""
    return msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"


def read_json(text: bytes) -> Run:
    """The run that `write_json` wrote. Raises ValueError for anything else."""
    return msgspec.json.decode(text, type=Run)


def other_conditions(run: Run, earlier: Run) -> list[str]:
    """In what the conditions of two runs differ, by name, so that their rounds are not to be thrown together."""
    names = ("machine", "versions", "cores", "scale", "idle_seconds", "workloads")
    return [name for name in names if getattr(run, name) != getattr(earlier, name)]


def write_report(run: Run, gateway: str) -> str:
    """The report in Markdown."""
    parts = [_head(run)]
    parts.append("CPU microseconds of the process tree per token or request, median (least to most) of the rounds:\n")
    parts.append(_cost_table(run))
    others = [name for name in run.versions if name != gateway]
    if gateway in run.versions:
        if others:
            parts.append(
                f"\nCost of {gateway} as a multiple of another's, median (least to most) of the ratios of each round:\n"
            )
            parts.append(_table(run, others, lambda name, work: spread(ratios(run.rounds, gateway, name, work.name))))
        if roles := _roles(run, gateway):
            parts.append(f"\nCPU of {gateway} by process, medians; the row `idle` in milliseconds per second:\n")
            parts.append(_split_table(run, gateway, roles))
    parts.append(
        "\nDelay in microseconds, p50 / p99, medians of the rounds: of every token, of the first token, of plain answers:\n"
    )
    parts.append(_table(run, list(run.versions), lambda name, work: _delay(run.rounds, name, work)))
    parts.append("\nWithout traffic, and memory; RSS is summed over processes, PSS counts shared pages once; medians:\n")
    parts.append(_rest_table(run))
    faults = list(_faults(run))
    if faults:
        parts.append("\n**Errors:**\n")
        parts += [f"- {fault}" for fault in faults]
    return "\n".join(parts) + "\n"


def _head(run: Run) -> str:
    versions = "; ".join(f"{name}: {number}" for name, number in run.versions.items())
    cores = ", ".join(f"{what} on core {core}" for what, core in run.cores.items())
    return (
        f"`{run.command}`, {run.started}; rounds: {len(run.rounds)}, scale {run.scale:g}; {cores}.\n\n"
        f"{run.machine}.\n\n{versions}.\n"
    )


def _cost_table(run: Run) -> str:
    return _table(run, list(run.versions), lambda name, work: spread(costs(run.rounds, name, work.name)))


def _table(run: Run, columns: list[str], cell: Callable[[str, Workload], str]) -> str:
    rows = [[work.name, *(cell(name, work) for name in columns)] for work in run.workloads]
    return _markdown(["workload", *columns], rows)


def _split_table(run: Run, gateway: str, roles: list[str]) -> str:
    rows = [[work.name, *(cost_of_role(run.rounds, gateway, work.name, role) for role in roles)] for work in run.workloads]
    idle = [figures[gateway].idle for figures in run.rounds if gateway in figures]
    rows.append(
        ["idle", *(_median([each.cpu_ms_per_second_by_role.get(role, 0.0) for each in idle if each]) for role in roles)]
    )
    return _markdown(["workload", *roles], rows)


def cost_of_role(rounds: Iterable[Round], proxy: str, workload: str, role: str) -> str:
    """Median cost of the processes that are for one thing."""
    samples = (_sample(figures, proxy, workload) for figures in rounds)
    return _median([sample.cpu_us_by_role.get(role, 0.0) for sample in samples if sample])


def _roles(run: Run, gateway: str) -> list[str]:
    samples = [sample for figures in run.rounds if gateway in figures for sample in figures[gateway].samples.values()]
    return sorted({role for sample in samples for role in sample.cpu_us_by_role})


def _delay(rounds: Iterable[Round], proxy: str, workload: Workload) -> str:
    results = [sample.result for figures in rounds if (sample := _sample(figures, proxy, workload.name))]
    if not workload.is_streamed:
        delays = [result.total_us for result in results]
    elif workload.unit == "tokens":
        delays = [result.token_us for result in results]
    else:
        delays = [result.first_us for result in results]
    return f"{_median([delay.p50 for delay in delays])} / {_median([delay.p99 for delay in delays])}" if delays else _NONE


def _rest_table(run: Run) -> str:
    rows = []
    for name in run.versions:
        mine = [figures[name] for figures in run.rounds if name in figures]
        idle = [each.idle for each in mine if each.idle]
        loaded = [each.loaded for each in mine if each.loaded]
        rows.append(
            [
                name,
                _median([each.cpu_ms_per_second for each in idle]),
                _mib([each.memory.rss_bytes for each in idle]),
                _mib([each.rss_bytes for each in loaded]),
                _mib([each.pss_bytes for each in loaded if each.pss_bytes is not None]),
            ]
        )
    return _markdown(["proxy", "idle CPU ms/s", "RSS MiB idle", "RSS MiB after load", "PSS MiB after load"], rows)


def _faults(run: Run) -> Iterable[str]:
    for number, figures in enumerate(run.rounds, 1):
        for name, mine in figures.items():
            for where, text in mine.errors.items():
                yield f"round {number}, {name}, {where}: {text}"
            for where, sample in mine.samples.items():
                result = sample.result
                if result.errors:
                    yield f"round {number}, {name}, {where}: {result.errors} of {result.requests} answers were not whole"


def _sample(figures: Round, proxy: str, workload: str) -> Sample | None:
    return figures.get(proxy, ProxyRound()).samples.get(workload)


def _median(figures: Sequence[float]) -> str:
    return _number(median(figures)) if figures else _NONE


def _mib(figures: Sequence[int]) -> str:
    return f"{median(figures) / 2**20:.0f}" if figures else _NONE


def _number(figure: float) -> str:
    """Three digits that count, without an exponent."""
    if figure >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in [head, *rows]
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)
