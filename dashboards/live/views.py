"""The values the page and the screen show of a fleet: the gateway, its pools, workers and keys at one moment."""

from __future__ import annotations

import msgspec

from dashboards.live.window import Figure, Sums
from telemetry.dcgm import Gpus


class State(msgspec.Struct, frozen=True, gc=False):
    """How well a worker is; ``since`` is None before it was ever another."""

    code: str  # ok, down, errors, silence, slow_start, draining, unknown
    reason: str  # in words
    since_unix_seconds: float | None


class WorkerView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One worker. ``None``: not known. Sums and figures are of the last one to two minutes, loads of this moment."""

    worker: str
    source: str
    state: State
    in_flight_requests: int  # of this gateway
    running_requests: int | None  # as the worker says, as the next two
    waiting_requests: int | None
    kv_usage_ratio: float | None
    attained_ttft_ratio: float | None  # median of its last requests that others' prompts were not in the way of
    attained_tpot_ratio: float | None
    floor_beaten: int  # since the start
    restarts: int
    scrape_failures: int
    lately: Sums
    hit_ratio: float | None
    ttft: Figure | None
    tpot: Figure | None
    causes: dict[str, int]  # of requests that deviated, lately
    outcomes: dict[str, int]  # of requests that failed, lately
    attempts: int = 0  # times it was asked since the start, but for stale connections and clients that left
    attempts_busy: int = 0  # of these, answered with 429 or 503
    attempts_failed: int = 0
    engine_version: str | None = None  # of vLLM, as the worker says
    gpus: Gpus | None = None  # as its exporter says, where one is configured
    clock_ratio: float | None = None  # of its GPUs while they work, over what is usual for them and their peers


class Totals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Counters since the gateway's start, as `/metrics` has them."""

    requests: int
    outcomes: dict[str, int]  # those that came up
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    hit_known_tokens: int
    hit_unknown_requests: int
    hit_ratio: float | None


class PoolView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One pool and its workers."""

    model: str
    pool: str
    policy: str
    max_total_tokens: int | None
    hardware: str | None  # what each worker is, if that is configured
    queued_requests: int
    in_flight_requests: int
    totals: Totals
    lately: Sums
    hit_ratio: float | None  # lately
    ttft: Figure | None
    tpot: Figure | None
    causes: dict[str, int]
    workers: list[WorkerView]


class KeyView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One API key, since the start."""

    key: str
    requests: int
    failed: int  # all that ended otherwise than ok
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class GatewayFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The gateway itself."""

    version: str
    processes: int  # serving ones that should be there
    serving: int  # those that are
    loop_lag_seconds: float | None  # the worst of them
    control_lag_seconds: float | None
    records_dropped: int
    log_lines_dropped: int
    unrouted: dict[str, int]  # requests that reached no pool, by outcome, since the start
    serving_restarts: int = 0  # serving processes that ended by themselves, since the start
    control_restarted_seconds: float | None = (
        None  # since control was started again after it ended by itself; None: it never did
    )
    is_config_refused: bool = False  # the configuration that was read last is bad, an older one is in force
    is_stopping: bool = False  # it ends with its last request


class FleetView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything of this moment."""

    now_unix_seconds: float
    gateway: GatewayFacts
    pools: list[PoolView]
    keys: list[KeyView]
