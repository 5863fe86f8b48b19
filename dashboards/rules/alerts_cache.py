"""Alerts about the prefix cache, about where requests go, and about what is believed of the workers."""

from __future__ import annotations

from dashboards import thresholds
from dashboards.rules.promql import POOL, WORKER, increase, number, rate, share
from dashboards.rules.rule import Alert, Clock, Group, Severity

_WHERE = "{{ $labels.model }}/{{ $labels.pool }}"
_HIT = "model_pool:ridgeline_prefix_hit:ratio_rate10m"


def cache(clock: Clock) -> Group:
    """Per model and pool, and per worker where a worker is wrong about itself."""
    ten, fifteen, thirty, hours = clock("10m"), clock("15m"), clock("30m"), clock("6h")
    baseline = f"avg_over_time({_HIT}[{hours}] offset {thirty})"
    known = rate("ridgeline_cache_known_prompt_tokens_total", ten)
    return Group(
        "ridgeline-cache-and-routing",
        (
            Alert(
                name="RidgelineHitShareDrop",
                expr=(
                    f"{_HIT} < {number(thresholds.HIT_DROP_RATIO)} * {baseline}\n"
                    f"and {baseline} > {number(thresholds.HIT_LEAST_RATIO)}\n"
                    f"and {known} > {number(thresholds.HIT_LEAST_TOKENS_PER_SECOND)}"
                ),
                hold="10m",
                keep="10m",
                severity=Severity.WARNING,
                summary=f"The prefix cache of {_WHERE} gives less than half of what it used to",
                description=(
                    "{{ $value | humanizePercentage }} of the prompt tokens come from the cache now, less than half of the "
                    "average of the last six hours. Every other one has to be computed: first tokens come later."
                ),
            ),
            Alert(
                name="RidgelineHitShareUnknown",
                expr=(
                    f"{share('ridgeline_cache_known_prompt_tokens_total', 'ridgeline_prompt_tokens_total', thirty)} < "
                    f"{number(thresholds.HIT_KNOWN_RATIO)}\n"
                    f"and {increase('ridgeline_cache_unknown_requests_total', thirty)} >= {number(thresholds.LEAST_REQUESTS)}"
                ),
                hold="30m",
                severity=Severity.INFO,
                summary=f"Workers of {_WHERE} do not say what their prefix cache gave",
                description=(
                    "Only of {{ $value | humanizePercentage }} of the prompt tokens it is known whether they were cached. TTFT "
                    "can be judged roughly only, and a lost cache is not seen."
                ),
            ),
            Alert(
                name="RidgelinePrefixDrift",
                expr=f"{increase('ridgeline_prefix_drift_total', fifteen, f'{POOL}, kind')} > 0",
                hold="0s",
                severity=Severity.WARNING,
                summary=f"A system prompt that used to be cached at {_WHERE} has changed",
                description=(
                    "Text was {{ $labels.kind }}. Where, since when and by whose key is at /api/drifts on the admin listener."
                ),
            ),
            Alert(
                name="RidgelineMisroutes",
                expr=(
                    f"{share('ridgeline_misroutes_total', 'ridgeline_requests_total', thirty)} > "
                    f"{number(thresholds.MISROUTES_RATIO)}\n"
                    f"and {increase('ridgeline_requests_total', thirty)} >= {number(thresholds.LEAST_REQUESTS)}"
                ),
                hold="15m",
                severity=Severity.WARNING,
                summary=f"Requests of {_WHERE} belong into another pool",
                description=(
                    "{{ $value | humanizePercentage }} of the requests turned out longer or shorter than their estimate said. "
                    "Long ones among short ones slow them all down."
                ),
            ),
            Alert(
                name="RidgelineFloorBeaten",
                expr=(
                    f"{increase('ridgeline_floor_beaten_total', thirty, WORKER)} > {number(thresholds.FLOOR_BEATEN_RATIO)} * "
                    f"{increase('ridgeline_worker_ttft_seconds_count', thirty, WORKER)}\n"
                    f"and {increase('ridgeline_floor_beaten_total', thirty, WORKER)} >= {number(thresholds.LEAST_REQUESTS)}"
                ),
                hold="5m",
                severity=Severity.WARNING,
                summary="{{ $labels.worker }} is faster than its GPU can be",
                description=(
                    '{{ $value | printf "%.0f" }} figures in half an hour are below the physical floor: model, GPU, number '
                    "format or tensor parallelism in the configuration is not what runs there. No limit of the pool holds."
                ),
            ),
        ),
    )
