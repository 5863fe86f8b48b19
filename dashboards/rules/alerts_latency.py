"""Alerts about how long requests take: objectives, spread, limits, queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dashboards import thresholds
from dashboards.rules.promql import increase, number, share_above, share_upto
from dashboards.rules.recorded import OBJECTIVES
from dashboards.rules.rule import Alert, Clock, Group, Severity


class _Pair(NamedTuple):
    long: str
    short: str
    factor: float  # on the budget
    hold: str
    severity: Severity


# A budget of 30 days is gone in two days, five days, ten days, thirty days at these rates.
_PAIRS = (
    _Pair("1h", "5m", 14.4, "2m", Severity.CRITICAL),
    _Pair("6h", "30m", 6.0, "15m", Severity.CRITICAL),
    _Pair("1d", "2h", 3.0, "1h", Severity.WARNING),
    _Pair("3d", "6h", 1.0, "3h", Severity.WARNING),
)
_NAMES = {"ridgeline_ttft_seconds": "Ttft", "ridgeline_tpot_seconds": "Tpot"}
_WHAT = {
    "ridgeline_ttft_seconds": f"a first token later than {number(thresholds.TTFT_SECONDS)} s",
    "ridgeline_tpot_seconds": f"tokens slower than {number(1000 * thresholds.TPOT_SECONDS)} ms each",
}
_WHERE = "{{ $labels.model }}/{{ $labels.pool }}"


def latency(clock: Clock) -> Group:
    """Per model and pool."""
    five, ten = clock("5m"), clock("10m")
    return Group(
        "ridgeline-latency",
        (
            *(alert for histogram in OBJECTIVES for alert in _burns(histogram, clock)),
            Alert(
                name="RidgelineTpotSpike",
                expr=(
                    f"model_pool:ridgeline_tpot_seconds:p99_rate5m > {number(thresholds.TPOT_JITTER_RATIO)} * "
                    "model_pool:ridgeline_tpot_seconds:p50_rate5m\n"
                    f"and model_pool:ridgeline_tpot_seconds:p99_rate5m > {number(thresholds.TPOT_NOTICED_SECONDS)}\n"
                    f"and {increase('ridgeline_tpot_seconds_count', five)} >= {number(thresholds.LEAST_REQUESTS_FOR_P99)}"
                ),
                hold="5m",
                keep="10m",
                severity=Severity.WARNING,
                summary=f"Some streams of {_WHERE} are much slower than most",
                description=(
                    "P99 of the time per output token is {{ $value | humanizeDuration }}, more than "
                    f"{number(thresholds.TPOT_JITTER_RATIO)} times the median. People feel that as stutter."
                ),
            ),
            *_attained("ttft", "first tokens", clock),
            *_attained("tpot", "tokens", clock),
            Alert(
                name="RidgelineStreamsStall",
                expr=(
                    f"{share_above('ridgeline_stall_ratio', thresholds.STALL_RATIO, ten)} > "
                    f"{number(thresholds.STALLED_STREAMS_RATIO)}\n"
                    f"and {increase('ridgeline_stall_ratio_count', ten)} >= {number(thresholds.LEAST_REQUESTS)}"
                ),
                hold="10m",
                severity=Severity.WARNING,
                summary=f"Streams of {_WHERE} stand still in between",
                description=(
                    "{{ $value | humanizePercentage }} of the streams have a gap of more than "
                    f"{number(thresholds.STALL_RATIO)} times their usual one."
                ),
            ),
            Alert(
                name="RidgelineQueueAtGateway",
                expr=(
                    f"{share_above('ridgeline_queue_seconds', thresholds.QUEUE_SECONDS, five)} > "
                    f"{number(thresholds.QUEUED_REQUESTS_RATIO)}\n"
                    f"and {increase('ridgeline_queue_seconds_count', five)} >= {number(thresholds.LEAST_REQUESTS)}"
                ),
                hold="5m",
                severity=Severity.WARNING,
                summary=f"Requests wait in the gateway for {_WHERE}",
                description=(
                    "{{ $value | humanizePercentage }} of the requests wait for more than "
                    f"{number(thresholds.QUEUE_SECONDS)} s because every worker has as much as it may."
                ),
            ),
            Alert(
                name="RidgelineQueueAtWorkers",
                expr=(
                    "model_pool:ridgeline_worker_waiting_requests:sum_avg5m > "
                    f"{number(thresholds.WAITING_RATIO)} * model_pool:ridgeline_worker_running_requests:sum_avg5m\n"
                    "and model_pool:ridgeline_worker_waiting_requests:sum_avg5m >= 1"
                ),
                hold="10m",
                severity=Severity.WARNING,
                summary=f"Requests wait inside the workers of {_WHERE}",
                description='{{ $value | printf "%.1f" }} requests wait on average that no worker has begun to compute.',
            ),
        ),
    )


def _burns(histogram: str, clock: Clock) -> Iterator[Alert]:
    budget = 1.0 - thresholds.OBJECTIVE_RATIO
    for pair in _PAIRS:
        most = number(pair.factor * budget)
        yield Alert(
            name=f"Ridgeline{_NAMES[histogram]}BudgetBurn",
            expr=(
                f"model_pool:{histogram}:slow_ratio_rate{pair.long} > {most}\n"
                f"and model_pool:{histogram}:slow_ratio_rate{pair.short} > {most}\n"
                f"and {increase(f'{histogram}_count', clock(pair.long))} >= {number(thresholds.LEAST_REQUESTS)}"
            ),
            hold=pair.hold,
            severity=pair.severity,
            labels={"long": pair.long, "short": pair.short},
            summary=f"Too many requests to {_WHERE} get {_WHAT[histogram]}",
            description=(
                f"{{{{ $value | humanizePercentage }}}} over {pair.long}, and over {pair.short} as well. The objective leaves "
                f"{number(100 * budget)} %; at {number(pair.factor)} times that, the budget of 30 days lasts "
                f"{number(round(30 / pair.factor, 1))} days."
            ),
        )


def _attained(figure: str, what: str, clock: Clock) -> Iterator[Alert]:
    for bound, severity, hold in (
        (thresholds.ATTAINED_RATIO, Severity.WARNING, "10m"),
        (thresholds.ATTAINED_FAR_OFF_RATIO, Severity.CRITICAL, "5m"),
    ):
        histogram = f"ridgeline_{figure}_attained_ratio"
        yield Alert(
            name=f"Ridgeline{figure.capitalize()}FarFromLimit",
            expr=(
                f"{share_upto(histogram, bound, clock('10m'))} > 0.5\n"
                f"and {increase(f'{histogram}_count', clock('10m'))} >= {number(thresholds.LEAST_REQUESTS)}"
            ),
            hold=hold,
            keep="10m",
            severity=severity,
            summary=f"Most {what} of {_WHERE} are far slower than its GPUs can be",
            description=(
                f"{{{{ $value | humanizePercentage }}}} of the requests get less than {number(100 * bound)} % of the speed "
                "that is expected of a healthy worker with the batch that ran."
            ),
        )
