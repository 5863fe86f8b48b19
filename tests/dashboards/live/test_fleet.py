"""The fleet as the page shows it."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest

from dashboards.live.fleet import Around, Since, build
from dashboards.live.views import FleetView
from dashboards.live.window import Window
from routing.health import Condition
from routing.topology import Topology
from telemetry.dcgm import Gpus
from telemetry.gpus_lately import GpusLately
from telemetry.layout import Layout, slot
from telemetry.points import Snapshot
from tests.dashboards.live.requests_made import a_record
from tests.proxy.fleets import a_topology

WELL = (Condition.WELL, 0)
TWO = a_topology({"default": ["w-0", "w-1"]}, keys=["app-a"])


def view_of(
    topology: Topology = TWO,
    window: Window | None = None,
    serving: list[dict[int, float]] | None = None,
    control: dict[int, float] | None = None,
    conditions: dict[str, tuple[Condition, int]] | None = None,
    since: Since | None = None,
    now: float = 100.0,
    is_stopping: bool = False,
    **more: Any,
) -> FleetView:
    def cells(values: dict[int, float]) -> list[float]:
        return [values.get(cell, 0.0) for cell in range(Layout.of(topology).size)]

    arrays = tuple(cells(values) for values in ([{}] if serving is None else serving))
    around = Around(
        snapshot=Snapshot(topology, arrays, None if control is None else cells(control), "1.2.3"),
        condition_of=lambda worker: (conditions or {}).get(worker.name, WELL),
        hardware={("m", "default"): "h100-sxm"},
        processes=2,
        log_lines_dropped=0,
        now_unix_seconds=now,
        is_stopping=is_stopping,
        **more,
    )
    made = list(build(around, window or Window(), since or Since()))
    assert made[-1] is not None
    return made[-1]


def worker_cell(index: int, name: str, **labels: Any) -> int:
    return Layout.of(TWO).worker_base(index) + slot(name, **labels)


def test_loads_add_up_over_processes() -> None:
    """What serving processes count is summed; what the worker says is taken once, and NaN is unknown."""
    in_flight = worker_cell(1, "ridgeline_in_flight_requests")
    up, running, kv = (worker_cell(1, f"ridgeline_worker_{name}") for name in ("up", "running_requests", "kv_usage_ratio"))

    pool = view_of(serving=[{in_flight: 2.0}, {in_flight: 3.0}], control={up: 1.0, running: 7.0, kv: nan}).pools[0]

    worker = pool.workers[1]
    assert (worker.in_flight_requests, worker.running_requests, worker.kv_usage_ratio) == (5, 7, None)
    assert (pool.in_flight_requests, pool.hardware) == (5, "h100-sxm")


def test_attempts_are_told_by_what_came_of_them() -> None:
    """Stale connections and clients that left are nobody's fault."""
    counts = {
        "answered": 50.0,
        "busy": 7.0,
        "failed": 2.0,
        "silent": 1.0,
        "connect_failed": 1.0,
        "stale": 9.0,
        "abandoned": 30.0,
    }
    cells = {worker_cell(1, "ridgeline_attempts_total", result=result): count for result, count in counts.items()}

    worker = view_of(serving=[cells, cells]).pools[0].workers[1]

    assert (worker.attempts, worker.attempts_busy, worker.attempts_failed) == (122, 14, 8)


def test_the_gateway_says_what_became_of_its_configuration_and_processes() -> None:
    """As control's gauges have it; nothing known is nothing wrong."""
    refused = slot("ridgeline_configuration_refused")
    restarts = {role: slot("ridgeline_process_restarts_total", role=role) for role in ("serving", "control")}

    said = view_of(
        control={refused: 1.0, restarts["serving"]: 2.0, restarts["control"]: 7.0}, is_stopping=True, control_seconds=12.0
    ).gateway
    unsaid = view_of(control={refused: nan}).gateway

    assert (said.is_config_refused, said.serving_restarts, said.is_stopping) == (True, 2, True)
    assert (said.control_restarted_seconds, unsaid.control_restarted_seconds) == (12.0, None)
    assert (unsaid.is_config_refused, unsaid.serving_restarts, unsaid.is_stopping) == (False, 0, False)


def test_counters_are_those_of_the_metrics() -> None:
    """Requests of all endpoints by outcome, tokens with the hit share of those that know it, and keys."""
    layout = Layout.of(TWO)
    route = layout.route_base(TWO.routes.index(("m", "default")))
    nowhere = layout.route_base(TWO.routes.index(("unknown", "none")))
    pool, key = layout.pool_base(0), layout.key_base(0)
    requests = "ridgeline_requests_total"
    cells = {
        route + slot(requests, endpoint="chat", outcome="ok"): 5.0,
        route + slot(requests, endpoint="embeddings", outcome="ok"): 2.0,
        route + slot(requests, endpoint="chat", outcome="truncated"): 1.0,
        nowhere + slot(requests, endpoint="other", outcome="client_error"): 3.0,
        pool + slot("ridgeline_cached_tokens_total"): 300.0,
        pool + slot("ridgeline_cache_known_prompt_tokens_total"): 400.0,
        key + slot("ridgeline_key_requests_total", outcome="ok"): 4.0,
        key + slot("ridgeline_key_requests_total", outcome="rejected"): 2.0,
        key + slot("ridgeline_key_tokens_total", kind="cached"): 300.0,
    }

    view = view_of(serving=[cells, cells])

    totals = view.pools[0].totals
    assert (totals.requests, totals.outcomes, totals.hit_ratio) == (16, {"ok": 14, "truncated": 2}, 0.75)
    assert view.gateway.unrouted == {"client_error": 6}
    assert (view.keys[0].key, view.keys[0].requests, view.keys[0].failed, view.keys[0].cached_tokens) == ("app-a", 12, 4, 600)


def test_a_pool_has_the_figures_of_all_its_workers() -> None:
    """Spreads add up; the hit share of nothing is unknown."""
    window = Window()
    assert view_of(window=window).pools[0].hit_ratio is None
    window.take([a_record(worker="w-0", upstream_ttft_seconds=0.1), a_record(worker="w-1", upstream_ttft_seconds=0.4)])

    pool = view_of(window=window).pools[0]

    assert pool.ttft is not None
    assert (pool.ttft.requests, pool.lately.requests, pool.hit_ratio) == (2, 2, 0.4)
    assert [worker.lately.requests for worker in pool.workers] == [1, 1]


@pytest.mark.parametrize(
    ("up", "condition", "code"),
    [
        (1.0, (Condition.WELL, 0), "ok"),
        (0.0, (Condition.SILENCE, 1), "down"),
        (1.0, (Condition.SILENCE, 1), "silence"),
        (1.0, (Condition.ERRORS, 1), "errors"),
        (1.0, (Condition.SLOW_START, 0), "slow_start"),
        (nan, (Condition.WELL, 0), "unknown"),
    ],
)
def test_health_has_a_reason(up: float, condition: tuple[Condition, int], code: str) -> None:
    """What a probe found outranks what requests showed, and what requests showed outranks a good probe."""
    view = view_of(control={worker_cell(0, "ridgeline_worker_up"): up}, conditions={"w-0": condition})

    assert view.pools[0].workers[0].state.code == code


def test_it_is_told_since_when_a_worker_is_as_it_is() -> None:
    """From the change on; how it was at the first look has no beginning."""
    since, up = Since(), worker_cell(0, "ridgeline_worker_up")

    told = [
        view_of(control={up: value}, since=since, now=now).pools[0].workers[0].state.since_unix_seconds
        for now, value in ((10.0, 1.0), (20.0, 1.0), (30.0, 0.0), (40.0, 0.0), (50.0, 1.0))
    ]

    assert told == [None, None, 30.0, 30.0, 50.0]


def test_a_missing_process_is_seen() -> None:
    """A slot without an array is no process; lag is that of the worst, and unknown without any."""
    lag = slot("ridgeline_loop_lag_seconds")

    assert view_of(serving=[{lag: 0.1}, {lag: 0.3}]).gateway.loop_lag_seconds == 0.3
    empty = view_of(serving=[]).gateway
    assert (empty.processes, empty.serving, empty.loop_lag_seconds, empty.control_lag_seconds) == (2, 0, None, None)


def test_a_large_fleet_lets_others_run() -> None:
    """The view of 600 workers is made in slices."""
    large = a_topology({"default": [f"w-{number}" for number in range(600)]})
    layout = Layout.of(large)
    around = Around(
        snapshot=Snapshot(large, ([0.0] * layout.size,), None, "1"),
        condition_of=lambda _: WELL,
        hardware={},
        processes=1,
        log_lines_dropped=0,
        now_unix_seconds=0.0,
    )

    made = list(build(around, Window(), Since()))

    assert [each is None for each in made] == [True] * 60 + [False]


def test_what_is_known_of_gpus_and_engine_stands_beside_the_worker() -> None:
    """The newest reading, and the clock beside what is usual for the pool; nothing where no exporter is configured."""
    lately = {name: GpusLately() for name in ("w-0", "w-1")}
    for at in range(20):
        lately["w-0"].look(at, Gpus(gpus=1, sm_clock_hertz=1e9))
        lately["w-1"].look(at, Gpus(gpus=1, sm_clock_hertz=2e9))
    lately["w-1"].look(20.0, None)

    first, second = view_of(gpus=lately, engine_version_of={"w-0": "0.32.0"}.get).pools[0].workers
    bare = view_of().pools[0].workers[0]

    assert (first.gpus, first.clock_ratio, first.engine_version) == (Gpus(gpus=1, sm_clock_hertz=1e9), 0.5, "0.32.0")
    assert (second.gpus, second.engine_version) == (None, None)
    assert (bare.gpus, bare.clock_ratio) == (None, None)


def test_since_when_workers_are_so_is_forgotten_with_them() -> None:
    """Names that come and go leave nothing behind."""
    since = Since()
    for number in range(5):
        view_of(topology=a_topology({"default": ["w-0", f"w-{number + 1}"]}), since=since)

    assert set(since._known) == {("worker", "w-0"), ("worker", "w-5")}
