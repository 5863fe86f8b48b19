"""The one place that knows a metric's name: what each family counts, its labels, its buckets, and who writes it.

`telemetry.layout` gives every family its cells, `telemetry.exposition` writes them out and ``docs/reference/metrics.md``
is generated from here, so a new metric is one entry in `CATALOG` and the line that counts it.

Labels come from closed sets, because each combination is a series that exists at 0 from the start. The budget is 50,000
series for 600 workers in 30 pools; what is fine-grained is therefore kept per pool, and a worker gets few coarse buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import nan

from routing.policy import POLICIES, PoolReason, Reason
from telemetry.record import NoToken, Outcome, Phase, Rejection


class Kind(Enum):
    """Type of a family; the values are the words of the text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(Enum):
    """What a family is kept per; `SCOPE_LABELS` has the labels that it brings along."""

    PROCESS = "process"
    ROUTE = "route"  # every pair of `Topology.routes`, also those where no pool was chosen
    POOL = "pool"
    WORKER = "worker"
    KEY = "key"


class Writer(Enum):
    """The kind of process that sets a family; EXPOSITION families have no cells and are known when the text is written."""

    SERVING = "serving"
    CONTROL = "control"
    EXPOSITION = "exposition"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family."""

    name: str  # as exported, counters with their `_total`
    kind: Kind
    scope: Scope
    help: str  # what is counted; for a duration from which moment to which
    labels: tuple[str, ...] = ()  # closed labels beyond those of the scope; values in `LABELS`
    bounds: tuple[float, ...] = ()  # finite upper bounds of a histogram, rising; +Inf is implied
    writer: Writer = Writer.SERVING
    start: float = 0.0  # a gauge before its first observation; NaN means unknown, which is exported as absent
    is_per_process: bool = False  # never summed over serving processes: exported with a label `process`

    def label_values(self, label: str) -> tuple[str, ...]:
        """Values that one of `labels` can take here, in the order of their cells. Raises KeyError for an open label."""
        own = LABELS.get(f"{self.name}.{label}")
        return LABELS[label] if own is None else own


SCOPE_LABELS: dict[Scope, tuple[str, ...]] = {
    Scope.PROCESS: (),
    Scope.ROUTE: ("model", "pool"),
    Scope.POOL: ("model", "pool"),
    Scope.WORKER: ("model", "pool", "worker"),
    Scope.KEY: ("key",),
}
_TIMED = ("chat", "completions", "responses", "messages", "embeddings")  # each costs a histogram per pool

# A key is a label's name, or `family.label` where a family has a set of its own under that name.
LABELS: dict[str, tuple[str, ...]] = {
    "endpoint": (*_TIMED, "rerank", "audio", "tokenize", "response_lookup", "models", "other"),
    "ridgeline_e2e_seconds.endpoint": _TIMED,
    "outcome": tuple(value.value for value in Outcome),
    "phase": tuple(value.value for value in Phase),
    "ridgeline_rejections_total.reason": tuple(value.value for value in Rejection),
    "ridgeline_no_token_total.reason": tuple(value.value for value in NoToken),
    "ridgeline_routes_total.reason": tuple(value.value for value in (*PoolReason, *Reason)),
    "ridgeline_reloads_total.result": ("ok", "failed"),
    "policy": tuple(POLICIES),
    "result": ("answered", "connect_failed", "connect_timeout", "stale", "broken", "abandoned"),
    "kind": ("prompt", "completion", "cached"),
}

# Ratio of 1.25 and less from 4 to 200 ms, so that a P99 of 1.5 times the median can be seen.
TOKEN_GAP_BOUNDS = (
    *(0.0005, 0.001, 0.002, 0.003),
    *(0.004, 0.005, 0.00625, 0.0075, 0.009, 0.011, 0.0135, 0.0165, 0.02),
    *(0.025, 0.03, 0.0375, 0.045, 0.055, 0.0675, 0.083, 0.1, 0.125, 0.15, 0.175, 0.2),
    *(0.25, 0.35, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0, 900.0),
)
# Ratio of 1.5 and less from 20 ms to 30 s; objectives are set at bounds, so the round ones are all there.
FIRST_TOKEN_BOUNDS = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01),
    *(0.02, 0.03, 0.045, 0.067, 0.1, 0.14, 0.19, 0.25, 0.35, 0.5, 0.7),
    *(1.0, 1.4, 1.9, 2.5, 3.5, 5.0, 7.0, 10.0, 14.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 900.0),
)
E2E_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
WAIT_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 900.0)
OVERHEAD_BOUNDS = (*(0.00005, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005), *(0.01, 0.025, 0.1, 0.5, 1.0))
LENGTH_BOUNDS = tuple(float(2**power) for power in range(4, 21))  # 16 .. 1,048,576
STALL_BOUNDS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0)
ESTIMATE_BOUNDS = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
WORKER_FIRST_TOKEN_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 900.0)  # with +Inf: 10 buckets
WORKER_TPOT_BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 1.0, 900.0)


def _counter(name: str, scope: Scope, text: str, *labels: str, writer: Writer = Writer.SERVING) -> Family:
    return Family(name=f"ridgeline_{name}", kind=Kind.COUNTER, scope=scope, help=text, labels=labels, writer=writer)


def _gauge(
    name: str, scope: Scope, text: str, *, writer: Writer = Writer.SERVING, start: float = 0.0, is_per_process: bool = False
) -> Family:
    return Family(
        name=f"ridgeline_{name}",
        kind=Kind.GAUGE,
        scope=scope,
        help=text,
        writer=writer,
        start=start,
        is_per_process=is_per_process,
    )


def _histogram(name: str, scope: Scope, bounds: tuple[float, ...], text: str, *labels: str) -> Family:
    return Family(name=f"ridgeline_{name}", kind=Kind.HISTOGRAM, scope=scope, help=text, labels=labels, bounds=bounds)


CATALOG: tuple[Family, ...] = (
    # Latency, per pool
    _histogram(
        "ttft_seconds",
        Scope.POOL,
        FIRST_TOKEN_BOUNDS,
        "Time to first token: request fully received to first generated token of any kind (text, reasoning, tool call); "
        "streams only, a retry does not restart it.",
    ),
    _histogram(
        "ttft_visible_seconds",
        Scope.POOL,
        FIRST_TOKEN_BOUNDS,
        "Request fully received to first visible text; streams only.",
    ),
    _histogram(
        "upstream_ttft_seconds",
        Scope.POOL,
        FIRST_TOKEN_BOUNDS,
        "Request sent to the worker that answered to first generated token; streams only.",
    ),
    _histogram(
        "tpot_seconds",
        Scope.POOL,
        TOKEN_GAP_BOUNDS,
        "Time per output token of a stream: (last token - first token) / (completion tokens - 1), tokens from usage; "
        "leaves out streams of several choices, below two tokens, or slowed down by their client.",
    ),
    _histogram(
        "itl_seconds",
        Scope.POOL,
        TOKEN_GAP_BOUNDS,
        "Inter-token latency: gap between two events that carry tokens, divided by the tokens of the second where known.",
    ),
    _histogram(
        "chunk_gap_seconds",
        Scope.POOL,
        TOKEN_GAP_BOUNDS,
        "Gap between two events that carry tokens, where the number of tokens in the second is not known.",
    ),
    _histogram("stall_ratio", Scope.POOL, STALL_BOUNDS, "Largest gap between token events of a stream over its median gap."),
    _histogram(
        "e2e_seconds",
        Scope.POOL,
        E2E_BOUNDS,
        "Request fully received to last byte handed over to the client, streaming or not.",
        "endpoint",
    ),
    _histogram("queue_seconds", Scope.POOL, WAIT_BOUNDS, "Time spent in the gateway's own admission queue."),
    _histogram(
        "connect_seconds", Scope.POOL, WAIT_BOUNDS, "Time to get a connection to the worker; 0 for one that was kept open."
    ),
    _histogram(
        "client_wait_seconds",
        Scope.POOL,
        WAIT_BOUNDS,
        "Time in which the client's connection took no more bytes of its answer.",
    ),
    _histogram(
        "overhead_seconds",
        Scope.POOL,
        OVERHEAD_BOUNDS,
        "The gateway's own work: (sent to worker - fully received - queue - connect) + "
        "(first byte written to the client - first byte arrived from the worker).",
    ),
    # Sizes, per pool
    _histogram("prompt_length_tokens", Scope.POOL, LENGTH_BOUNDS, "Prompt tokens of a request, as the worker reported them."),
    _histogram(
        "completion_length_tokens", Scope.POOL, LENGTH_BOUNDS, "Completion tokens of a request, as the worker reported them."
    ),
    _histogram(
        "estimate_error_ratio",
        Scope.POOL,
        ESTIMATE_BOUNDS,
        "Prompt tokens that the worker reported over prompt tokens that were estimated; above 1 the estimate was too low.",
    ),
    # How requests end
    _counter("requests_total", Scope.ROUTE, "Requests that ended, by how they ended.", "endpoint", "outcome"),
    _counter("rejections_total", Scope.ROUTE, "Requests that the gateway refused before a worker was asked.", "reason"),
    _counter("client_gone_total", Scope.ROUTE, "Requests whose client left, by where the request was then.", "phase"),
    _counter("no_token_total", Scope.ROUTE, "Streamed requests without a first token, by cause.", "reason"),
    # Tokens and choices, per pool
    _counter(
        "prompt_tokens_total",
        Scope.POOL,
        "Prompt tokens, as workers reported them or estimated for streams that ended before they did.",
    ),
    _counter(
        "completion_tokens_total", Scope.POOL, "Completion tokens, as workers reported them or counted where they did not."
    ),
    _counter("cached_tokens_total", Scope.POOL, "Prompt tokens that workers took from their prefix cache, where they said so."),
    _counter(
        "cache_known_prompt_tokens_total",
        Scope.POOL,
        "Prompt tokens of the requests whose cached tokens are known: the denominator of the hit share.",
    ),
    _counter("cache_unknown_requests_total", Scope.POOL, "Requests whose worker did not say how many tokens were cached."),
    _gauge("queued_requests", Scope.POOL, "Requests that wait in the gateway for a worker with room."),
    _counter("routes_total", Scope.POOL, "Choices of a worker, by policy and by what decided.", "policy", "reason"),
    # Workers
    _histogram(
        "worker_ttft_seconds",
        Scope.WORKER,
        WORKER_FIRST_TOKEN_BOUNDS,
        "Request sent to this worker to first generated token, in coarse buckets; streams only.",
    ),
    _histogram(
        "worker_tpot_seconds", Scope.WORKER, WORKER_TPOT_BOUNDS, "Time per output token at this worker, in coarse buckets."
    ),
    _counter("attempts_total", Scope.WORKER, "Times a worker was asked, by what came of it.", "result"),
    _counter(
        "worker_restarts_total",
        Scope.WORKER,
        "Times a worker was found to be another process than at the scrape before; its prefix cache began empty.",
        writer=Writer.CONTROL,
    ),
    _counter("scrape_failures_total", Scope.WORKER, "Reads of the worker's metrics page that failed.", writer=Writer.CONTROL),
    _gauge("in_flight_requests", Scope.WORKER, "Requests that this gateway has running at the worker."),
    _gauge(
        "in_flight_tokens",
        Scope.WORKER,
        "Estimated prompt and output tokens of the requests that this gateway has running at the worker.",
    ),
    _gauge(
        "worker_up", Scope.WORKER, "1 while the worker's health check succeeds, 0 while not.", writer=Writer.CONTROL, start=nan
    ),
    _gauge("worker_running_requests", Scope.WORKER, "Requests running, as the worker says.", writer=Writer.CONTROL, start=nan),
    _gauge("worker_waiting_requests", Scope.WORKER, "Requests waiting, as the worker says.", writer=Writer.CONTROL, start=nan),
    _gauge(
        "worker_kv_usage_ratio",
        Scope.WORKER,
        "Share of the KV cache in use, 0 to 1, as the worker says; the largest of its engines.",
        writer=Writer.CONTROL,
        start=nan,
    ),
    # Keys
    _counter("key_tokens_total", Scope.KEY, "Tokens by API key; cached ones are among the prompt tokens.", "kind"),
    _counter("key_requests_total", Scope.KEY, "Requests that ended, by API key.", "outcome"),
    # The gateway itself
    _counter("parse_errors_total", Scope.PROCESS, "Parts of workers' answers that could not be read and were passed on as is."),
    _counter("records_dropped_total", Scope.PROCESS, "Request records lost because the control process was away or behind."),
    _counter("spans_sent_total", Scope.PROCESS, "Spans that the OTLP receiver took.", writer=Writer.CONTROL),
    _counter(
        "spans_dropped_total",
        Scope.PROCESS,
        "Spans lost because the OTLP receiver was away, slow or refused them.",
        writer=Writer.CONTROL,
    ),
    _counter(
        "reloads_total",
        Scope.PROCESS,
        "Configurations read after a change or SIGHUP; a failed one changed nothing.",
        "result",
        writer=Writer.CONTROL,
    ),
    _counter(
        "slow_client_streams_total",
        Scope.PROCESS,
        "Streams left out of TPOT because over 5 % of their time went into waiting for the client.",
    ),
    _gauge(
        "loop_lag_seconds",
        Scope.PROCESS,
        "How late a serving process's event loop runs what is due.",
        start=nan,
        is_per_process=True,
    ),
    _gauge(
        "control_lag_seconds",
        Scope.PROCESS,
        "How late the control process's event loop runs what is due.",
        writer=Writer.CONTROL,
        start=nan,
    ),
    Family(
        name="ridgeline_build_info",
        kind=Kind.GAUGE,
        scope=Scope.PROCESS,
        help="Always 1; the version is in the label.",
        labels=("version",),
        writer=Writer.EXPOSITION,
    ),
)
