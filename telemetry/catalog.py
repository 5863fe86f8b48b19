"""The one place that knows a metric's name: what each family counts, its labels, its buckets, and who writes it.

`telemetry.layout` gives every family its cells, `telemetry.exposition` writes them out and ``docs/reference/metrics.md``
is generated from here, so a new metric is one entry in `CATALOG` and the line that counts it.

Labels come from closed sets, because each combination is a series that exists at 0 from the start, but for those that cannot
occur. The budget is 50,000 series for 600 workers in 30 pools; what is fine-grained is therefore kept per pool, and a worker
gets few coarse buckets. What is about the gateway itself is in `telemetry.catalog_gateway`.
"""

from __future__ import annotations

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
from telemetry.catalog_gateway import GATEWAY
from telemetry.catalog_of_hedging import HEDGING
from telemetry.catalog_of_quotas import QUOTAS
from telemetry.family import SCOPE_LABELS, Family, Kind, Scope, Writer, counter, gauge, histogram
from telemetry.labels import USUAL_ATTEMPTS, USUAL_DEVIATIONS, USUAL_ROUTES

__all__ = ["CATALOG", "EXPOSED", "SCOPE_LABELS", "Family", "Kind", "Scope", "Writer"]


CATALOG: tuple[Family, ...] = (
    # Latency, per pool
    histogram(
        "ttft_seconds",
        Scope.POOL,
        FIRST_TOKEN_BOUNDS,
        "Time to first token: request fully received to first generated token of any kind (text, reasoning, tool call); "
        "streams only, a retry does not restart it.",
    ),
    histogram(
        "ttft_visible_seconds",
        Scope.POOL,
        FIRST_TOKEN_BOUNDS,
        "Request fully received to first visible text; streams only.",
    ),
    histogram(
        "upstream_ttft_seconds",
        Scope.POOL,
        FIRST_TOKEN_BOUNDS,
        "Request sent to the worker that answered to first generated token; streams only.",
    ),
    histogram(
        "tpot_seconds",
        Scope.POOL,
        TOKEN_GAP_BOUNDS,
        "Time per output token of a stream: (last token - first token) / (completion tokens - 1), tokens from usage; "
        "leaves out streams of several choices, below two tokens, or slowed down by their client.",
    ),
    histogram(
        "itl_seconds",
        Scope.POOL,
        TOKEN_GAP_BOUNDS,
        "Inter-token latency: gap between two events that carry tokens, divided by the tokens of the second where known.",
    ),
    histogram(
        "chunk_gap_seconds",
        Scope.POOL,
        TOKEN_GAP_BOUNDS,
        "Gap between two events that carry tokens, where the number of tokens in the second is not known.",
    ),
    histogram("stall_ratio", Scope.POOL, STALL_BOUNDS, "Largest gap between token events of a stream over its median gap."),
    histogram(
        "e2e_seconds",
        Scope.POOL,
        E2E_BOUNDS,
        "Request fully received to last byte handed over to the client, streaming or not.",
        "endpoint",
    ),
    histogram("queue_seconds", Scope.POOL, WAIT_BOUNDS, "Time spent in the gateway's own admission queue."),
    histogram(
        "connect_seconds", Scope.POOL, WAIT_BOUNDS, "Time to get a connection to the worker; 0 for one that was kept open."
    ),
    histogram(
        "client_wait_seconds",
        Scope.POOL,
        WAIT_BOUNDS,
        "Time in which the client's connection took no more bytes of its answer.",
    ),
    histogram(
        "overhead_seconds",
        Scope.POOL,
        OVERHEAD_BOUNDS,
        "The gateway's own work: (sent to worker - fully received - queue - connect) + "
        "(first byte written to the client - first byte arrived from the worker).",
    ),
    # Sizes, per pool
    histogram("prompt_length_tokens", Scope.POOL, LENGTH_BOUNDS, "Prompt tokens of a request, as the worker reported them."),
    histogram(
        "completion_length_tokens", Scope.POOL, LENGTH_BOUNDS, "Completion tokens of a request, as the worker reported them."
    ),
    histogram(
        "estimate_error_ratio",
        Scope.POOL,
        ESTIMATE_BOUNDS,
        "Prompt tokens that the worker reported over prompt tokens that were estimated; above 1 the estimate was too low.",
    ),
    # How requests end
    counter("requests_total", Scope.ROUTE, "Requests that ended, by how they ended.", "endpoint", "outcome"),
    counter("rejections_total", Scope.ROUTE, "Requests that the gateway refused before a worker was asked.", "reason"),
    counter("client_gone_total", Scope.ROUTE, "Requests whose client left, by where the request was then.", "phase"),
    counter("no_token_total", Scope.ROUTE, "Streamed requests without a first token, by cause.", "reason"),
    # Tokens and choices, per pool
    counter(
        "prompt_tokens_total",
        Scope.POOL,
        "Prompt tokens, as workers reported them or estimated for streams that ended before they did.",
    ),
    counter(
        "completion_tokens_total", Scope.POOL, "Completion tokens, as workers reported them or counted where they did not."
    ),
    counter(
        "cached_tokens_total",
        Scope.POOL,
        "Prompt tokens that workers took from their prefix cache, where they said so; none that came from a prefill stage.",
    ),
    counter(
        "cache_known_prompt_tokens_total",
        Scope.POOL,
        "Prompt tokens of the requests whose cached tokens are known: the denominator of the hit share.",
    ),
    counter("cache_unknown_requests_total", Scope.POOL, "Requests whose worker did not say how many tokens were cached."),
    Family(
        name="ridgeline_routes_total",
        kind=Kind.COUNTER,
        scope=Scope.POOL,
        help="Choices of a worker, by policy and by what decided; `overflow` and `borrowed` are requests of another pool.",
        labels=("policy", "reason"),
        usual=USUAL_ROUTES,
    ),
    counter(
        "prefix_drift_total",
        Scope.POOL,
        "Times the system prompt of requests that used to be cached was found to have changed, by what was done to it.",
        "kind",
        writer=Writer.CONTROL,
    ),
    counter(
        "prefix_drift_missed_seconds_total",
        Scope.POOL,
        "Expected prefill of prompt tokens that would have been cached, had the system prompt not changed.",
        writer=Writer.CONTROL,
    ),
    counter(
        "cache_lost_total",
        Scope.POOL,
        "Requests that did not get the hit that others with the same system prompt get, by what lost it.",
        "reason",
        writer=Writer.CONTROL,
    ),
    # Against the limits
    histogram(
        "ttft_attained_ratio",
        Scope.POOL,
        ATTAINED_BOUNDS,
        "Expected TTFT over measured, of what the worker took, by prompt length; only requests whose cached tokens are known.",
        "length",
        writer=Writer.CONTROL,
    ),
    histogram(
        "tpot_attained_ratio",
        Scope.POOL,
        ATTAINED_BOUNDS,
        "Expected TPOT over measured, by prompt length.",
        "length",
        writer=Writer.CONTROL,
    ),
    histogram(
        "e2e_attained_ratio",
        Scope.POOL,
        ATTAINED_BOUNDS,
        "Expected time of a whole plain answer over measured, of what the worker took; only where cached tokens are known.",
        writer=Writer.CONTROL,
    ),
    Family(
        name="ridgeline_deviations_total",
        kind=Kind.COUNTER,
        scope=Scope.POOL,
        help="Figures of requests that are far from what was expected, by the cause that explains most of it.",
        labels=("figure", "cause"),
        writer=Writer.CONTROL,
        usual=USUAL_DEVIATIONS,
    ),
    counter(
        "deviation_seconds_total",
        Scope.POOL,
        "Seconds that requests which are far from what was expected took beyond it, by cause; each counts all of its causes.",
        "cause",
        writer=Writer.CONTROL,
    ),
    gauge(
        "discovered_workers",
        Scope.POOL,
        "Workers that are found now by a file, DNS or Kubernetes; absent for a pool whose workers are listed.",
        writer=Writer.CONTROL,
        start=nan,
    ),
    counter(
        "misroutes_total",
        Scope.POOL,
        "Requests whose true prompt tokens belong into another pool than the one chosen by the estimate, by how that compares.",
        "direction",
    ),
    counter(
        "exact_counts_total",
        Scope.POOL,
        "Prompts that were to be counted exactly because a choice of pool depended on it, by what came of it.",
        "result",
    ),
    counter(
        "retries_refused_total",
        Scope.POOL,
        "Requests that no further worker was asked for because the retry budget was spent.",
    ),
    *HEDGING,
    counter(
        "prefill_legs_total",
        Scope.POOL,
        "Requests of a pool with a prefill stage, by what became of the leg there; the pool computes all but `computed`.",
        "result",
    ),
    histogram(
        "prefill_leg_seconds",
        Scope.POOL,
        WORKER_FIRST_TOKEN_BOUNDS,
        "Prefill worker chosen to its answer complete, in coarse buckets; part of the TTFT.",
    ),
    gauge("queued_requests", Scope.POOL, "Requests that wait in the gateway for a worker with room."),
    # Workers
    counter(
        "floor_beaten_total",
        Scope.WORKER,
        "Figures below their physical floor: model, GPU, number format or cached tokens are not what is believed.",
        "figure",
        writer=Writer.CONTROL,
    ),
    gauge(
        "worker_attained_ratio",
        Scope.WORKER,
        "Expected over measured, median of the worker's recent requests; of TTFT, of cold ones (hit below 0.5).",
        "figure",
        writer=Writer.CONTROL,
        start=nan,
    ),
    histogram(
        "worker_ttft_seconds",
        Scope.WORKER,
        WORKER_FIRST_TOKEN_BOUNDS,
        "Request sent to this worker to first generated token, in coarse buckets; streams only.",
    ),
    histogram(
        "worker_tpot_seconds", Scope.WORKER, WORKER_TPOT_BOUNDS, "Time per output token at this worker, in coarse buckets."
    ),
    Family(
        name="ridgeline_attempts_total",
        kind=Kind.COUNTER,
        scope=Scope.WORKER,
        help="Times a worker was asked, by what came of it: what `attempts` of the records adds up to, less lookups of "
        "answers, and beside them the legs at a prefill stage, which count at its workers. "
        "A stale connection counts as `stale`, and the request that follows on a fresh one by its own result.",
        labels=("result",),
        usual=USUAL_ATTEMPTS,
    ),
    counter(
        "worker_restarts_total",
        Scope.WORKER,
        "Times a worker was found to be another process than at the scrape before; its prefix cache began empty.",
        writer=Writer.CONTROL,
    ),
    counter("scrape_failures_total", Scope.WORKER, "Reads of the worker's metrics page that failed.", writer=Writer.CONTROL),
    gauge("in_flight_requests", Scope.WORKER, "Requests that this gateway has running at the worker."),
    gauge(
        "in_flight_tokens",
        Scope.WORKER,
        "Estimated prompt and output tokens of the requests that this gateway has running at the worker.",
    ),
    gauge(
        "worker_up", Scope.WORKER, "1 while the worker's health check succeeds, 0 while not.", writer=Writer.CONTROL, start=nan
    ),
    Family(
        name="ridgeline_worker_left_out",
        kind=Kind.GAUGE,
        scope=Scope.WORKER,
        help="1 while the worker gets no new requests, with the first reason that holds; absent while it gets them.",
        labels=("reason",),
        writer=Writer.CONTROL,
        start=nan,
        has_one=True,
    ),
    Family(
        name="ridgeline_worker_ejected",
        kind=Kind.GAUGE,
        scope=Scope.WORKER,
        help="Serving processes that leave the worker out because its requests fail or it has fallen silent.",
        is_exposed=False,
    ),
    Family(
        name="ridgeline_worker_condition",
        kind=Kind.GAUGE,
        scope=Scope.WORKER,
        help="What a serving process makes of the worker, as a number of `routing.health.Condition`.",
        is_exposed=False,
    ),
    gauge("worker_running_requests", Scope.WORKER, "Requests running, as the worker says.", writer=Writer.CONTROL, start=nan),
    gauge("worker_waiting_requests", Scope.WORKER, "Requests waiting, as the worker says.", writer=Writer.CONTROL, start=nan),
    gauge(
        "worker_kv_usage_ratio",
        Scope.WORKER,
        "Share of the KV cache in use, 0 to 1, as the worker says; the largest of its engines.",
        writer=Writer.CONTROL,
        start=nan,
    ),
    # What gateways that share workers know of each other.
    Family(
        name="ridgeline_in_flight_further_sequences",
        kind=Kind.GAUGE,
        scope=Scope.WORKER,
        help="Beyond one for each request in flight, the sequences that they are to a worker: prompts times choices.",
        is_exposed=False,
    ),
    Family(
        name="ridgeline_worker_crowding_tokens",
        kind=Kind.GAUGE,
        scope=Scope.WORKER,
        help="By how many tokens the worker is above its share of what all gateways have in flight; 0: it is not.",
        writer=Writer.CONTROL,
        start=nan,
        is_exposed=False,
    ),
    Family(
        name="ridgeline_crowding_at_seconds",
        kind=Kind.GAUGE,
        scope=Scope.PROCESS,
        help="When that was looked at last, by the machine's monotonic clock.",
        writer=Writer.CONTROL,
        start=nan,
        is_exposed=False,
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
    counter("key_tokens_total", Scope.KEY, "Tokens by API key; cached ones are among the prompt tokens.", "kind"),
    counter("key_requests_total", Scope.KEY, "Requests that ended, by API key.", "outcome"),
    *QUOTAS,
    *GATEWAY,
)

EXPOSED: tuple[Family, ...] = tuple(family for family in CATALOG if family.is_exposed)
"""What is exported; the other cells are for the gateway's own processes."""
