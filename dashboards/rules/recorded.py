"""What is computed ahead: shares of the objectives over every window that alerts look at, and what dashboards show most."""

from __future__ import annotations

from dashboards import thresholds
from dashboards.rules.promql import POOL, WORKER, quantile, rate, share, share_above
from dashboards.rules.rule import Clock, Group, Recording

BURN_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
OBJECTIVES = {
    "ridgeline_ttft_seconds": thresholds.TTFT_SECONDS,
    "ridgeline_tpot_seconds": thresholds.TPOT_SECONDS,
}
FAILED = 'ridgeline_requests_total{outcome=~"worker_error|truncated|stalled|timeout|aborted|internal_error"}'
"""Requests that failed and were not at fault."""
JUDGED = 'ridgeline_requests_total{outcome!~"client_error|client_gone|shutdown"}'
"""Requests that the gateway and its workers had to answer."""


def recordings(clock: Clock) -> Group:
    """All of them. The windows in their names are those of an unshortened clock."""
    return Group(
        "ridgeline-recording",
        (
            *(
                Recording(
                    record=f"model_pool:{histogram}:slow_ratio_rate{window}",
                    expr=share_above(histogram, objective, clock(window)),
                )
                for histogram, objective in OBJECTIVES.items()
                for window in BURN_WINDOWS
            ),
            *(
                Recording(
                    record=f"model_pool:{histogram}:p{round(100 * which)}_rate5m",
                    expr=quantile(which, histogram, clock("5m")),
                )
                for histogram in OBJECTIVES
                for which in (0.5, 0.95, 0.99)
            ),
            Recording(
                record="model_pool:ridgeline_prefix_hit:ratio_rate10m",
                expr=share("ridgeline_cached_tokens_total", "ridgeline_cache_known_prompt_tokens_total", clock("10m")),
            ),
            Recording(
                record="model_pool:ridgeline_requests:rate5m",
                expr=rate("ridgeline_requests_total", clock("5m")),
            ),
            *(
                Recording(
                    record=f"model_pool:ridgeline_requests:failed_ratio_rate{window}",
                    expr=f"{share(FAILED, JUDGED, clock(window))}",
                )
                for window in ("5m", "30m")
            ),
            Recording(
                record="model_pool_worker:ridgeline_worker_tpot_seconds:mean_rate10m",
                expr=share("ridgeline_worker_tpot_seconds_sum", "ridgeline_worker_tpot_seconds_count", clock("10m"), WORKER),
            ),
            Recording(
                record="model_pool:ridgeline_worker_waiting_requests:sum_avg5m",
                expr=_said("ridgeline_worker_waiting_requests", clock("5m")),
            ),
            Recording(
                record="model_pool:ridgeline_worker_running_requests:sum_avg5m",
                expr=_said("ridgeline_worker_running_requests", clock("5m")),
            ),
        ),
    )


def _said(gauge: str, window: str) -> str:
    """What workers say of themselves; every gateway says the same of the same worker, so it counts once."""
    return f"sum by ({POOL}) (max by ({WORKER}) (avg_over_time({gauge}[{window}])))"
