"""One screen of the fleet as `/api/fleet` tells it: the sentence, what is wrong, pools and their workers.

Names and texts come from configurations and workers: what a terminal would take for a command is shown as a question mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dashboards import thresholds
from dashboards.live.shown import Fleet
from dashboards.live.views import GatewayFacts, PoolView, WorkerView
from dashboards.live.window import Figure, Sums
from dashboards.live.words import how_long

_STYLES = {"ok": "green", "notice": "cyan", "warning": "yellow", "critical": "bold red"}
_STATES = {"silence": "silent", "errors": "failing", "slow_start": "coming back", "unknown": "not known yet"}
_WELL = frozenset({"ok", "slow_start"})
_MOST_FINDINGS = 5
_ANY_WIDTH = 10_000
_UNKNOWN = Text("-", style="dim")


def screen(fleet: Fleet, *, most_workers: int) -> Group:
    """Everything, with at most so many workers: those that are not well come first within their pool."""
    parts: list[RenderableType] = [_headline(fleet), _gateway(fleet.gateway), Text()]
    if fleet.findings:
        parts += [*_findings(fleet), Text()]
    parts.append(_table(fleet, most_workers))
    return Group(*parts)


def _headline(fleet: Fleet) -> Text:
    said = fleet.headline
    more = f"  (and {said.more} more)" if said.more else ""
    return Text.assemble((_plain(said.text), _STYLES.get(said.severity, "")), (more, "dim"))


def _gateway(facts: GatewayFacts) -> Text:
    words = [f"ridgeline {_plain(facts.version)}", f"{facts.serving} of {facts.processes} serving"]
    for name, lag in (("loop", facts.loop_lag_seconds), ("control", facts.control_lag_seconds)):
        words.append(f"{name} lag {_seconds(lag)}")
    lost = facts.records_dropped + facts.log_lines_dropped
    if lost:
        words.append(f"{lost:,} records or log lines lost")
    return Text("   ".join(words), style="red" if lost or facts.serving < facts.processes else "dim")


def _findings(fleet: Fleet) -> Iterator[Text]:
    for finding in fleet.findings[:_MOST_FINDINGS]:
        since = (
            ""
            if finding.since_unix_seconds is None
            else f"  for {how_long(fleet.now_unix_seconds - finding.since_unix_seconds)}"
        )
        yield Text.assemble(
            ("● ", _STYLES.get(finding.severity, "")),
            _plain(finding.text),
            (since, "dim"),
            (f"  → {_plain(finding.advice)}" if finding.advice else "", "dim"),
        )
    if (left := len(fleet.findings) - _MOST_FINDINGS) > 0:
        yield Text(f"  and {left} more", style="dim")


_COLUMNS = (
    *("pool / worker", "state", "requests", "failed", "TTFT p50", "p99", "expected", "hit", "TPOT p50", "p99", "expected"),
    *("attained", "in flight", "running", "waiting", "KV", "mostly"),
)
_LEFT_ALIGNED = frozenset({"pool / worker", "state", "mostly"})
# Places of the columns that a narrow terminal has no room for, the least missed first; no TTFT without its hit share.
_LEAST_MISSED = ((10,), (6,), (9,), (12,), (5,), (13,), (2,), (15,), (14,), (16,), (11,), (4, 7))


class _Fitting:
    """A table that leaves out whole columns until it fits; names and states are never left out."""

    def __init__(self, rows: Sequence[tuple[Sequence[Text], str]]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        wide = options.update(width=_ANY_WIDTH, max_width=_ANY_WIDTH)
        left_out: set[int] = set()
        for places in ((), *_LEAST_MISSED):
            left_out.update(places)
            table = self._table(left_out)
            if Measurement.get(console, wide, table).maximum <= options.max_width:
                break
        yield table

    def _table(self, left_out: Set[int]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
        for place, name in enumerate(_COLUMNS):
            if place not in left_out:
                table.add_column(name, justify="left" if name in _LEFT_ALIGNED else "right", no_wrap=True)
        for cells, style in self._rows:
            table.add_row(*(cell for place, cell in enumerate(cells) if place not in left_out), style=style)
        return table


def _table(fleet: Fleet, most_workers: int) -> _Fitting:
    rows: list[tuple[Sequence[Text], str]] = []
    left = most_workers
    for pool in fleet.pools:
        rows.append((_pool_cells(pool), "bold"))
        shown = sorted(pool.workers, key=_trouble)[: max(left, 0)]
        rows += [(_worker_cells(worker, fleet.now_unix_seconds), "") for worker in shown]
        left -= len(shown)
        if hidden := len(pool.workers) - len(shown):
            rows.append(([Text(f"  and {hidden} more", style="dim")], ""))
    return _Fitting(rows)


def _trouble(worker: WorkerView) -> tuple[bool, float, str]:
    attained = [ratio for ratio in (worker.attained_ttft_ratio, worker.attained_tpot_ratio) if ratio is not None]
    return worker.state.code in _WELL, min(attained, default=1.0), worker.worker


def _pool_cells(pool: PoolView) -> list[Text]:
    queued = Text(f"{pool.queued_requests} queued", style="yellow") if pool.queued_requests else Text()
    attained = pool.tpot.attained_p50_ratio if pool.tpot else None
    return [
        Text(f"{_plain(pool.model)} / {_plain(pool.pool)}"),
        queued,
        *_figures(pool.lately, pool.ttft, pool.hit_ratio, pool.tpot),
        _attained(attained),
        Text(str(pool.in_flight_requests)),
        *(Text(), Text(), Text()),
        _cause(pool.causes),
    ]


def _worker_cells(worker: WorkerView, now: float) -> list[Text]:
    return [
        Text(f"  {_plain(worker.worker)}"),
        _state(worker, now),
        *_figures(worker.lately, worker.ttft, worker.hit_ratio, worker.tpot),
        _attained(worker.tpot.attained_p50_ratio if worker.tpot else None),
        Text(str(worker.in_flight_requests)),
        _count(worker.running_requests),
        _count(worker.waiting_requests, "yellow"),
        _share(worker.kv_usage_ratio, lambda ratio: ratio > 1 - thresholds.KV_RESERVE_RATIO),
        _cause(worker.causes),
    ]


def _state(worker: WorkerView, now: float) -> Text:
    state = worker.state
    since = "" if state.since_unix_seconds is None else f" {how_long(now - state.since_unix_seconds)}"
    style = "green" if state.code in _WELL else "yellow" if state.code in {"draining", "unknown"} else "bold red"
    return Text.assemble((_plain(_STATES.get(state.code, state.code)), style), (since, "dim"))


def _figures(lately: Sums, ttft: Figure | None, hit_ratio: float | None, tpot: Figure | None) -> Iterable[Text]:
    failed = Text(f"{lately.failed:,}", style="red") if lately.failed else Text("0", style="dim")
    return (Text(f"{lately.requests:,}"), failed, *_times(ttft), _share(hit_ratio), *_times(tpot))


def _times(figure: Figure | None) -> Sequence[Text]:
    if figure is None:
        return _UNKNOWN, _UNKNOWN, _UNKNOWN
    expected = _UNKNOWN if figure.expected_p50_seconds is None else Text(_seconds(figure.expected_p50_seconds), style="dim")
    return Text(_seconds(figure.p50_seconds)), Text(_seconds(figure.p99_seconds)), expected


def _attained(ratio: float | None) -> Text:
    if ratio is None:
        return _UNKNOWN
    far, wrong, good = thresholds.ATTAINED_FAR_OFF_RATIO, thresholds.ATTAINED_RATIO, thresholds.ATTAINED_GOOD_RATIO
    style = "bold red" if ratio < far else "yellow" if ratio < wrong else "green" if ratio >= good else ""
    return Text(f"{ratio:.0%}", style=style)


def _share(ratio: float | None, is_bad: object = None) -> Text:
    if ratio is None:
        return _UNKNOWN
    return Text(f"{ratio:.0%}", style="yellow" if callable(is_bad) and is_bad(ratio) else "")


def _count(count: int | None, style: str = "") -> Text:
    return _UNKNOWN if count is None else Text(f"{count:,}", style=style if count else "")


def _cause(causes: dict[str, int]) -> Text:
    if not causes:
        return Text()
    name, number = max(causes.items(), key=lambda item: item[1])
    said = "floor beaten" if name == "facts" else _plain(name).replace("_", " ")
    return Text(f"{said} ({number})", style="yellow")


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
