"""Alerts about workers: dead, hung, slow, full, and pools that have nobody left."""

from __future__ import annotations

from dashboards import thresholds
from dashboards.rules.promql import POOL, WORKER, increase, number
from dashboards.rules.rule import Alert, Clock, Group, Severity

_POOL = "{{ $labels.model }}/{{ $labels.pool }}"
_WORKER = "{{ $labels.worker }} of {{ $labels.model }}/{{ $labels.pool }}"
_MEAN = "model_pool_worker:ridgeline_worker_tpot_seconds:mean_rate10m"
_STREAMS = "ridgeline_worker_tpot_seconds_count"


def workers(clock: Clock) -> Group:
    """Per worker, or per pool."""
    five, ten, hour = clock("5m"), clock("10m"), clock("1h")
    return Group(
        "ridgeline-workers",
        (
            Alert(
                name="RidgelinePoolDown",
                expr=(
                    f"count by (instance, {POOL}) (ridgeline_worker_left_out) >= "
                    f"count by (instance, {POOL}) (ridgeline_in_flight_requests)"
                ),
                hold="30s",
                severity=Severity.CRITICAL,
                summary=f"Nobody serves {_POOL}",
                description=(
                    "All {{ $value }} workers of the pool get no requests from the gateway {{ $labels.instance }}. Requests "
                    "are answered with 503, or by another pool where that is configured."
                ),
            ),
            Alert(
                name="RidgelineWorkerDown",
                expr=f'max by ({WORKER}) (ridgeline_worker_left_out{{reason=~"down|errors"}}) == 1',
                hold="1m",
                keep="2m",
                severity=Severity.WARNING,
                summary=f"{_WORKER} is down",
                description=(
                    "Its health check fails, or its requests do. The gateway sends it nothing; the others of its pool have its "
                    "share."
                ),
            ),
            Alert(
                name="RidgelineWorkerHung",
                expr=f'max by ({WORKER}) (ridgeline_worker_left_out{{reason="silence"}}) == 1',
                hold="30s",
                keep="2m",
                severity=Severity.WARNING,
                summary=f"{_WORKER} takes requests and says nothing",
                description=(
                    "Its API server answers health checks, its engine stands still. The gateway has moved what had not begun "
                    "and sends it nothing new; it does not come back by itself."
                ),
            ),
            Alert(
                name="RidgelineWorkerRestarts",
                expr=(
                    f"max by ({WORKER}) (increase(ridgeline_worker_restarts_total[{hour}])) > "
                    f"{number(thresholds.RESTARTS_OF_A_WORKER)} - 0.5"
                ),
                hold="0s",
                severity=Severity.WARNING,
                summary=f"{_WORKER} starts again and again",
                description='{{ $value | printf "%.0f" }} times within an hour, each time with an empty prefix cache.',
            ),
            Alert(
                name="RidgelineWorkerSlow",
                expr=(
                    f"{_MEAN} > on ({POOL}) group_left () {number(thresholds.OUTLIER_RATIO)} * "
                    f"quantile by ({POOL}) (0.25, {_MEAN})\n"
                    f"and {_MEAN} > {number(thresholds.TPOT_NOTICED_SECONDS)}\n"
                    f"and {increase(_STREAMS, ten, WORKER)} >= {number(thresholds.LEAST_REQUESTS)}"
                ),
                hold="5m",
                keep="10m",
                severity=Severity.WARNING,
                summary=f"{_WORKER} is slower than its peers",
                description=(
                    "A token takes {{ $value | humanizeDuration }} there on average, more than "
                    f"{number(thresholds.OUTLIER_RATIO)} times what it takes at the faster ones of the pool."
                ),
            ),
            Alert(
                name="RidgelineKvPressure",
                expr=(
                    f"max by ({WORKER}) (avg_over_time(ridgeline_worker_kv_usage_ratio[{ten}])) > "
                    f"{number(1 - thresholds.KV_RESERVE_RATIO)}"
                ),
                hold="10m",
                keep="10m",
                severity=Severity.WARNING,
                summary=f"The KV cache of {_WORKER} has no reserve",
                description=(
                    "{{ $value | humanizePercentage }} are in use on average; "
                    f"{number(100 * thresholds.KV_RESERVE_RATIO)} % are better kept free for long answers and bursts."
                ),
            ),
            Alert(
                name="RidgelineKvFull",
                expr=(
                    f"max by ({WORKER}) (avg_over_time(ridgeline_worker_kv_usage_ratio[{five}])) > "
                    f"{number(thresholds.KV_FULL_RATIO)}\n"
                    f"and max by ({WORKER}) (avg_over_time(ridgeline_worker_waiting_requests[{five}])) > 0"
                ),
                hold="5m",
                keep="5m",
                severity=Severity.CRITICAL,
                summary=f"The KV cache of {_WORKER} is full",
                description=(
                    "{{ $value | humanizePercentage }} are in use and requests wait. Running ones are thrown out and computed "
                    "again, which makes it worse."
                ),
            ),
            Alert(
                name="RidgelineWorkerUnread",
                expr=(
                    f"max by ({WORKER}) (rate(ridgeline_scrape_failures_total[{ten}])) > "
                    f"{number(thresholds.UNREAD_PER_SECOND)}\n"
                    f"unless on ({WORKER}) ridgeline_worker_left_out"
                ),
                hold="10m",
                severity=Severity.INFO,
                summary=f"The metrics of {_WORKER} cannot be read",
                description=(
                    "It serves, but its queue and its KV cache are not known: load is judged by what this gateway has sent, "
                    "and alerts about full caches cannot fire."
                ),
            ),
            Alert(
                name="RidgelineRetryBudgetSpent",
                expr=f"{increase('ridgeline_retries_refused_total', ten)} > 0",
                hold="5m",
                severity=Severity.WARNING,
                summary=f"So many requests of {_POOL} fail that not all are tried elsewhere",
                description=(
                    '{{ $value | printf "%.0f" }} requests in ten minutes ended with the first worker\'s failure because too '
                    "many others were being tried again."
                ),
            ),
        ),
    )
