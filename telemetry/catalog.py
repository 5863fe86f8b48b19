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

from telemetry.buckets import (
    ATTAINED_BOUNDS,
    E2E_BOUNDS,
    ESTIMATE_BOUNDS,
    FIRST_TOKEN_BOUNDS,
    LENGTH_BOUNDS,
    OVERHEAD_BOUNDS,
    STALL_BOUNDS,
    TOKEN_GAP_BOUNDS,
    WAIT_BOUNDS,
    WORKER_FIRST_TOKEN_BOUNDS,
    WORKER_TPOT_BOUNDS,
)
from telemetry.labels import LABELS


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
    is_exposed: bool = True  # False: only the gateway's own processes read it

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


def _counter(name: str, scope: Scope, text: str, *labels: str, writer: Writer = Writer.SERVING) -> Family:
    return Family(name=f"ridgeline_{name}", kind=Kind.COUNTER, scope=scope, help=text, labels=labels, writer=writer)


def _gauge(
    name: str,
    scope: Scope,
    text: str,
    *labels: str,
    writer: Writer = Writer.SERVING,
    start: float = 0.0,
    is_per_process: bool = False,
) -> Family:
    return Family(
        name=f"ridgeline_{name}",
        kind=Kind.GAUGE,
        scope=scope,
        help=text,
        labels=labels,
        writer=writer,
        start=start,
        is_per_process=is_per_process,
    )


def _histogram(
    name: str, scope: Scope, bounds: tuple[float, ...], text: str, *labels: str, writer: Writer = Writer.SERVING
) -> Family:
    return Family(
        name=f"ridgeline_{name}", kind=Kind.HISTOGRAM, scope=scope, help=text, labels=labels, bounds=bounds, writer=writer
    )


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
    _counter(
        "routes_total",
        Scope.POOL,
        "Choices of a worker, by policy and by what decided; `overflow` and `borrowed` are requests of another pool.",
        "policy",
        "reason",
    ),
    _counter(
        "prefix_drift_total",
        Scope.POOL,
        "Times the system prompt of requests that used to be cached was found to have changed, by what was done to it.",
        "kind",
        writer=Writer.CONTROL,
    ),
    _counter(
        "cache_lost_total",
        Scope.POOL,
        "Requests that did not get the hit that others with the same system prompt get, by what lost it.",
        "reason",
        writer=Writer.CONTROL,
    ),
    # Against the limits
    _histogram(
        "ttft_attained_ratio",
        Scope.POOL,
        ATTAINED_BOUNDS,
        "Expected TTFT over measured, of what the worker took, by prompt length; only requests whose cached tokens are known.",
        "length",
        writer=Writer.CONTROL,
    ),
    _histogram(
        "tpot_attained_ratio",
        Scope.POOL,
        ATTAINED_BOUNDS,
        "Expected TPOT over measured, by prompt length.",
        "length",
        writer=Writer.CONTROL,
    ),
    _histogram(
        "e2e_attained_ratio",
        Scope.POOL,
        ATTAINED_BOUNDS,
        "Expected time of a whole plain answer over measured, of what the worker took; only where cached tokens are known.",
        writer=Writer.CONTROL,
    ),
    _counter(
        "deviations_total",
        Scope.POOL,
        "Figures of requests that are far from what was expected, by the cause that explains most of it.",
        "figure",
        "cause",
        writer=Writer.CONTROL,
    ),
    _gauge(
        "discovered_workers",
        Scope.POOL,
        "Workers that are found now by a file, DNS or Kubernetes; absent for a pool whose workers are listed.",
        writer=Writer.CONTROL,
        start=nan,
    ),
    _counter(
        "misroutes_total",
        Scope.POOL,
        "Requests whose true prompt tokens belong into another pool than the one chosen by the estimate, by how that compares.",
        "direction",
    ),
    _counter(
        "exact_counts_total",
        Scope.POOL,
        "Prompts that were to be counted exactly because a choice of pool depended on it, by what came of it.",
        "result",
    ),
    _counter(
        "retries_refused_total",
        Scope.POOL,
        "Requests that no further worker was asked for because the retry budget was spent.",
    ),
    _gauge("queued_requests", Scope.POOL, "Requests that wait in the gateway for a worker with room."),
    # Workers
    _counter(
        "floor_beaten_total",
        Scope.WORKER,
        "Figures below their physical floor: model, GPU, number format or cached tokens are not what is believed.",
        "figure",
        writer=Writer.CONTROL,
    ),
    _gauge(
        "worker_attained_ratio",
        Scope.WORKER,
        "Expected over measured, median of the worker's recent requests.",
        "figure",
        writer=Writer.CONTROL,
        start=nan,
    ),
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
    _gauge(
        "worker_ejected",
        Scope.WORKER,
        "Serving processes that leave the worker out because its requests fail or it has fallen silent.",
    ),
    Family(
        name="ridgeline_worker_condition",
        kind=Kind.GAUGE,
        scope=Scope.WORKER,
        help="What a serving process makes of the worker, as a number of `routing.health.Condition`.",
        is_exposed=False,
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
    # What a worker has had to do, from which a request's surroundings are read; as series they would say nothing new.
    *(
        Family(name=f"ridgeline_ledger_{name}", kind=kind, scope=Scope.WORKER, help=text, is_exposed=False)
        for name, kind, text in (
            ("request_seconds", Kind.COUNTER, "Requests in flight, integrated over time."),
            ("prompt_token_seconds", Kind.COUNTER, "Estimated prompt tokens of the requests in flight, integrated over time."),
            ("sent_prompt_tokens", Kind.COUNTER, "Estimated prompt tokens sent."),
            ("prompt_tokens", Kind.GAUGE, "Estimated prompt tokens of the requests in flight."),
            ("pending_prompt_tokens", Kind.GAUGE, "The same of those whose answer has not begun."),
            (
                "until_seconds",
                Kind.GAUGE,
                "The instant up to which the integrals are counted, by the machine's monotonic clock.",
            ),
        )
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
        "discovery_changes_total",
        Scope.PROCESS,
        "Times that another set of workers of a pool was put in force because it was found, by what found it.",
        "source",
        writer=Writer.CONTROL,
    ),
    _counter(
        "discovery_failures_total",
        Scope.PROCESS,
        "Times that workers could not be looked up, so that those known last stayed, by what was asked.",
        "source",
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

EXPOSED: tuple[Family, ...] = tuple(family for family in CATALOG if family.is_exposed)
"""What is exported; the other cells are for the gateway's own processes."""
