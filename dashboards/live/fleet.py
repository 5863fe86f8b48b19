"""How the view of a fleet is made: pools, workers and keys with their load, their figures lately, and how well they are.

Pure: made from a snapshot of the cells, the window of the last requests and what the serving processes make of each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan

from dashboards.live.views import FleetView, GatewayFacts, KeyView, PoolView, State, Totals, WorkerView
from dashboards.live.window import Glimpse, Window
from routing.health import Condition
from routing.topology import Pool, Topology, Worker
from telemetry.gpus_lately import GpusLately
from telemetry.labels import LABELS
from telemetry.layout import Layout, slot
from telemetry.points import Array, Snapshot
from telemetry.record import Outcome

_SLICE = 10  # workers, after which whoever builds this may let others run

_UP, _RUNNING, _WAITING, _KV = (
    slot(f"ridgeline_worker_{name}") for name in ("up", "running_requests", "waiting_requests", "kv_usage_ratio")
)
_ATTAINED_TTFT, _ATTAINED_TPOT = (slot("ridgeline_worker_attained_ratio", figure=figure) for figure in ("ttft", "tpot"))
_IN_FLIGHT = slot("ridgeline_in_flight_requests")
_SCRAPE_FAILURES, _RESTARTS = slot("ridgeline_scrape_failures_total"), slot("ridgeline_worker_restarts_total")
_BEATEN = {figure: slot("ridgeline_floor_beaten_total", figure=figure) for figure in LABELS["figure"] if figure != "e2e"}
_ATTEMPTS = {result: slot("ridgeline_attempts_total", result=result) for result in LABELS["result"]}
_NOBODYS_FAULT = frozenset({"stale", "abandoned", "outrun"})
_IN_VAIN = frozenset(LABELS["result"]) - _NOBODYS_FAULT - {"answered", "busy"}
_QUEUED = slot("ridgeline_queued_requests")
_PROMPT, _COMPLETION, _CACHED, _KNOWN, _UNKNOWN = (
    slot(f"ridgeline_{name}_total")
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_known_prompt_tokens", "cache_unknown_requests")
)
_REQUESTS = slot("ridgeline_requests_total", endpoint=LABELS["endpoint"][0], outcome=Outcome.OK)
_ENDPOINTS, _OUTCOMES = len(LABELS["endpoint"]), tuple(Outcome)
_KEY_REQUESTS = slot("ridgeline_key_requests_total", outcome=Outcome.OK)
_KEY_TOKENS = {kind: slot("ridgeline_key_tokens_total", kind=kind) for kind in LABELS["kind"]}
_LOOP_LAG, _CONTROL_LAG = slot("ridgeline_loop_lag_seconds"), slot("ridgeline_control_lag_seconds")
_DROPPED = slot("ridgeline_records_dropped_total")
_CONFIG_REFUSED = slot("ridgeline_configuration_refused")
_SERVING_RESTARTS = slot("ridgeline_process_restarts_total", role="serving")
_CONTROL_RESTARTS = slot("ridgeline_process_restarts_total", role="control")


@dataclass(slots=True)
class Since:
    """Remembers since when something is as it is."""

    _known: dict[tuple[str, ...], tuple[str, float | None]] = field(default_factory=dict)

    def of(self, subject: tuple[str, ...], state: str, now: float) -> float | None:
        """Since when the subject is in this state; ``None`` if it was so at the first look."""
        known = self._known.get(subject)
        if known is None or known[0] != state:
            known = self._known[subject] = (state, None if known is None else now)
        return known[1]

    def keep_only(self, subjects: set[tuple[str, ...]]) -> None:
        """Forget all others."""
        self._known = {subject: known for subject, known in self._known.items() if subject in subjects}


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a view is made from, beside the window."""

    snapshot: Snapshot
    condition_of: Callable[[Worker], tuple[Condition, int]]  # and how many processes leave it out
    hardware: Mapping[tuple[str, str], str]  # of a pool
    processes: int
    log_lines_dropped: int
    now_unix_seconds: float
    control_seconds: float = 0.0  # since this control process was started
    is_stopping: bool = False
    engine_version_of: Callable[[str], str | None] = lambda _worker: None
    gpus: Mapping[str, GpusLately] = field(default_factory=dict)  # by worker


def build(around: Around, window: Window, since: Since) -> Iterator[FleetView | None]:
    """Make the view; ``None`` now and then, when others may run, and the view last."""
    snapshot, topology = around.snapshot, around.snapshot.topology
    arrays = [array for array in snapshot.arrays if array is not None]
    cells = _Cells(arrays, snapshot.control, Layout.of(topology))
    routes = {route: index for index, route in enumerate(topology.routes)}
    pools = []
    done = 0
    for pool in topology.pools:
        workers, sum_of_all, in_flight = [], Glimpse(), 0
        for worker in pool.workers:
            glimpse = window.glimpse(worker.name)
            workers.append(_worker(worker, pool, cells, glimpse, around, since))
            sum_of_all.add(glimpse)
            in_flight += workers[-1].in_flight_requests
            done += 1
            if done % _SLICE == 0:
                yield None
        pools.append(_pool(pool, workers, sum_of_all, in_flight, cells, routes, around))
    since.keep_only({("worker", worker.name) for worker in topology.workers})
    yield FleetView(
        now_unix_seconds=around.now_unix_seconds,
        gateway=_gateway(cells, around, routes, {(pool.model, pool.name) for pool in topology.pools}),
        pools=pools,
        keys=_keys(topology, cells),
    )


@dataclass(frozen=True, slots=True)
class _Cells:
    serving: Sequence[Array]
    control: Array | None
    layout: Layout

    def sum(self, cell: int) -> int:
        """A counter or a gauge that adds up over the serving processes."""
        return int(sum(array[cell] for array in self.serving))

    def said(self, cell: int) -> float | None:
        """A gauge of the control process; ``None`` while nobody has set it."""
        value = float("nan") if self.control is None else self.control[cell]
        return None if isnan(value) else value

    def counted(self, cell: int) -> int:
        """A counter of the control process."""
        return 0 if self.control is None else int(self.control[cell])


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def ratio(part: float, whole: float) -> float | None:
    """A share; ``None`` of nothing."""
    return part / whole if whole else None


def _worker(worker: Worker, pool: Pool, cells: _Cells, glimpse: Glimpse, around: Around, since: Since) -> WorkerView:
    base = cells.layout.worker_base(worker.index)
    sums = glimpse.sums
    attempts = {result: cells.sum(base + cell) for result, cell in _ATTEMPTS.items() if result not in _NOBODYS_FAULT}
    up = cells.said(base + _UP)
    code, reason = _state(worker, up, around.condition_of(worker), len(cells.serving))
    return WorkerView(
        worker=worker.name,
        source=worker.source,
        state=State(code, reason, since.of(("worker", worker.name), code, around.now_unix_seconds)),
        in_flight_requests=cells.sum(base + _IN_FLIGHT),
        running_requests=_whole(cells.said(base + _RUNNING)),
        waiting_requests=_whole(cells.said(base + _WAITING)),
        kv_usage_ratio=cells.said(base + _KV),
        attained_ttft_ratio=cells.said(base + _ATTAINED_TTFT),
        attained_tpot_ratio=cells.said(base + _ATTAINED_TPOT),
        floor_beaten=sum(cells.counted(base + cell) for cell in _BEATEN.values()),
        restarts=cells.counted(base + _RESTARTS),
        scrape_failures=cells.counted(base + _SCRAPE_FAILURES),
        lately=sums,
        hit_ratio=ratio(sums.cached_tokens, sums.hit_known_tokens),
        ttft=glimpse.ttft,
        tpot=glimpse.tpot,
        causes=glimpse.causes,
        outcomes=glimpse.outcomes,
        attempts=sum(attempts.values()),
        attempts_busy=attempts["busy"],
        attempts_failed=sum(attempts[result] for result in _IN_VAIN),
        engine_version=around.engine_version_of(worker.name),
        gpus=None if (gpus := around.gpus.get(worker.name)) is None else gpus.newest,
        clock_ratio=None if gpus is None else gpus.clock_ratio(inf, _peers(worker, pool, around)),
    )


def _peers(worker: Worker, pool: Pool, around: Around) -> Iterator[GpusLately]:
    return (around.gpus[each.name] for each in pool.workers if each is not worker and each.name in around.gpus)


def _state(worker: Worker, up: float | None, condition: tuple[Condition, int], serving: int) -> tuple[str, str]:
    """A word for a worker's state, and what that means."""
    found, count = condition
    of_all = "" if count >= serving else f" (so {count} of {serving} serving processes)"
    if up == 0.0:
        return "down", "its health check fails, or nothing answers at its address"
    if found is Condition.SILENCE and count:
        return "silence", f"it takes requests and says nothing, though its health check answers; left out{of_all}"
    if found is Condition.ERRORS and count:
        return "errors", f"its requests fail, or no connection can be made; left out{of_all}"
    if worker.is_draining:
        return "draining", "gets no new requests; those it has go on"
    if found is Condition.SLOW_START:
        return "slow_start", "back after a failure, with a rising share of the load"
    if up is None:
        return "unknown", "not probed yet"
    return "ok", "healthy"


def _pool(
    pool: Pool,
    workers: list[WorkerView],
    glimpse: Glimpse,
    in_flight: int,
    cells: _Cells,
    routes: Mapping[tuple[str, str], int],
    around: Around,
) -> PoolView:
    base = cells.layout.pool_base(pool.index)
    outcomes = _outcomes(cells, routes[pool.model, pool.name])
    known, cached = cells.sum(base + _KNOWN), cells.sum(base + _CACHED)
    sums = glimpse.sums
    return PoolView(
        model=pool.model,
        pool=pool.name,
        policy=pool.policy,
        max_total_tokens=pool.max_total_tokens,
        hardware=around.hardware.get((pool.model, pool.name)),
        queued_requests=cells.sum(base + _QUEUED),
        in_flight_requests=in_flight,
        totals=Totals(
            requests=sum(outcomes.values()),
            outcomes=outcomes,
            prompt_tokens=cells.sum(base + _PROMPT),
            completion_tokens=cells.sum(base + _COMPLETION),
            cached_tokens=cached,
            hit_known_tokens=known,
            hit_unknown_requests=cells.sum(base + _UNKNOWN),
            hit_ratio=ratio(cached, known),
        ),
        lately=sums,
        hit_ratio=ratio(sums.cached_tokens, sums.hit_known_tokens),
        ttft=glimpse.ttft,
        tpot=glimpse.tpot,
        causes=glimpse.causes,
        workers=workers,
    )


def _outcomes(cells: _Cells, route: int) -> dict[str, int]:
    """Requests of a route by outcome, all endpoints together; only those outcomes that came up."""
    first = cells.layout.route_base(route) + _REQUESTS
    width = len(_OUTCOMES)
    found = dict.fromkeys(_OUTCOMES, 0)
    for array in cells.serving:
        counts = array[first : first + _ENDPOINTS * width]
        for index, outcome in enumerate(_OUTCOMES):
            found[outcome] += int(sum(counts[index::width]))
    return {outcome.value: count for outcome, count in found.items() if count}


def _gateway(cells: _Cells, around: Around, routes: Mapping[tuple[str, str], int], pools: set[tuple[str, str]]) -> GatewayFacts:
    lags = [lag for array in cells.serving if not isnan(lag := array[_LOOP_LAG])]
    unrouted: dict[str, int] = {}
    for route, index in routes.items():
        if route not in pools:
            for outcome, count in _outcomes(cells, index).items():
                unrouted[outcome] = unrouted.get(outcome, 0) + count
    return GatewayFacts(
        version=around.snapshot.version,
        processes=around.processes,
        serving=len(cells.serving),
        loop_lag_seconds=max(lags, default=None),
        control_lag_seconds=cells.said(_CONTROL_LAG),
        records_dropped=cells.sum(_DROPPED),
        log_lines_dropped=around.log_lines_dropped,
        unrouted=unrouted,
        serving_restarts=cells.counted(_SERVING_RESTARTS),
        control_restarted_seconds=around.control_seconds if cells.counted(_CONTROL_RESTARTS) else None,
        is_config_refused=cells.said(_CONFIG_REFUSED) == 1.0,
        is_stopping=around.is_stopping,
    )


def _keys(topology: Topology, cells: _Cells) -> list[KeyView]:
    found = []
    for key in topology.keys:
        base = cells.layout.key_base(key.index)
        counts = [cells.sum(base + _KEY_REQUESTS + index) for index in range(len(_OUTCOMES))]
        found.append(
            KeyView(
                key=key.name,
                requests=sum(counts),
                failed=sum(counts) - counts[_OUTCOMES.index(Outcome.OK)],
                prompt_tokens=cells.sum(base + _KEY_TOKENS["prompt"]),
                cached_tokens=cells.sum(base + _KEY_TOKENS["cached"]),
                completion_tokens=cells.sum(base + _KEY_TOKENS["completion"]),
            )
        )
    return found
