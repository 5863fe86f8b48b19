"""Alerts about what clients get, and about the gateway itself."""

from __future__ import annotations

from dashboards import thresholds
from dashboards.rules.promql import increase, number, share
from dashboards.rules.recorded import FAILED, JUDGED
from dashboards.rules.rule import Alert, Clock, Group, Severity

_POOL = "{{ $labels.model }}/{{ $labels.pool }}"
_GATEWAY = "{{ $labels.instance }}"
_SHED = 'ridgeline_rejections_total{reason=~"queue|no_worker|memory|shortage"}'
_BUSY = 'ridgeline_requests_total{outcome="worker_busy"}'
_LOST = ("ridgeline_records_dropped_total", "ridgeline_log_lines_dropped_total", "ridgeline_spans_dropped_total")


def answers(clock: Clock) -> Group:
    """What clients get."""
    five, thirty = clock("5m"), clock("30m")
    least = number(thresholds.LEAST_REQUESTS)
    return Group(
        "ridgeline-answers",
        (
            Alert(
                name="RidgelineErrors",
                expr=(
                    f"model_pool:ridgeline_requests:failed_ratio_rate5m > {number(thresholds.ERRORS_FAR_OFF_RATIO)}\n"
                    f"and {increase(JUDGED, five)} >= {least}"
                ),
                hold="2m",
                severity=Severity.CRITICAL,
                summary=f"Requests to {_POOL} fail",
                description="{{ $value | humanizePercentage }} of the requests of five minutes were not answered as a whole.",
            ),
            Alert(
                name="RidgelineErrors",
                expr=(
                    f"model_pool:ridgeline_requests:failed_ratio_rate30m > {number(thresholds.ERRORS_RATIO)}\n"
                    f"and {increase(FAILED, thirty)} >= {number(thresholds.LEAST_REQUESTS / 4)}"
                ),
                hold="10m",
                severity=Severity.WARNING,
                summary=f"Some requests to {_POOL} fail",
                description="{{ $value | humanizePercentage }} of the requests of half an hour were not answered as a whole.",
            ),
            Alert(
                name="RidgelineSheddingLoad",
                expr=(
                    f"({share(_SHED, 'ridgeline_requests_total', five, 'model')} > {number(thresholds.SHED_RATIO)}\n"
                    f"or {share(_BUSY, 'ridgeline_requests_total', five, 'model')} > {number(thresholds.SHED_RATIO)})\n"
                    f"and {increase('ridgeline_requests_total', five, 'model')} >= {least}"
                ),
                hold="5m",
                severity=Severity.CRITICAL,
                summary="Requests to {{ $labels.model }} are refused because nobody has room",
                description="{{ $value | humanizePercentage }} of the requests get 429 or 503.",
            ),
        ),
    )


def gateway(clock: Clock) -> Group:
    """The gateway's own processes, configuration and books."""
    two, five, ten, fifteen = clock("2m"), clock("5m"), clock("10m"), clock("15m")
    return Group(
        "ridgeline-gateway",
        (
            Alert(
                name="RidgelineAbsent",
                expr="absent(ridgeline_build_info)",
                hold="2m",
                severity=Severity.CRITICAL,
                summary="No gateway is seen by Prometheus",
                description="Either none runs, or its observer listener is not scraped. All other alerts are silent meanwhile.",
            ),
            Alert(
                name="RidgelineGatewaySaturated",
                expr=(
                    f'sum by (instance) (rate(ridgeline_process_cpu_seconds_total{{role="serving"}}[{five}])) > '
                    f"{number(thresholds.CPU_RATIO)} * count by (instance) (ridgeline_loop_lag_seconds)\n"
                    f"or max by (instance) (min_over_time(ridgeline_loop_lag_seconds[{two}])) > "
                    f"{number(thresholds.LOOP_LAG_SECONDS)}"
                ),
                hold="5m",
                keep="5m",
                severity=Severity.CRITICAL,
                summary=f"The gateway {_GATEWAY} has too much to do",
                description=(
                    "Its serving processes use all of their cores, or are late by more than "
                    f"{number(1000 * thresholds.LOOP_LAG_SECONDS)} ms. Every token of every stream waits for that."
                ),
            ),
            Alert(
                name="RidgelineControlBehind",
                expr=f"min_over_time(ridgeline_control_lag_seconds[{two}]) > {number(thresholds.CONTROL_LAG_SECONDS)}",
                hold="5m",
                severity=Severity.WARNING,
                summary=f"The control process of {_GATEWAY} is late",
                description=(
                    "By {{ $value | humanizeDuration }}. Requests are served as before; probes, figures, the log and new "
                    "configurations come late."
                ),
            ),
            Alert(
                name="RidgelineRecordsLost",
                expr="\nor ".join(f"sum by (instance) (increase({name}[{ten}])) > 0" for name in _LOST),
                hold="0s",
                keep="10m",
                severity=Severity.WARNING,
                summary=f"Records of requests at {_GATEWAY} were lost",
                description=(
                    '{{ $value | printf "%.0f" }} records, log lines or spans in ten minutes. Counters and histograms are '
                    "complete; the log, traces and diagnoses are not."
                ),
            ),
            Alert(
                name="RidgelineProcessRestarts",
                expr=f"sum by (instance, role) (increase(ridgeline_process_restarts_total[{fifteen}])) > 0",
                hold="0s",
                severity=Severity.WARNING,
                summary=f"A {{{{ $labels.role }}}} process of {_GATEWAY} died and was started again",
                description=(
                    "The streams of a serving process end with it; those of others go on. Standard error says what it died of."
                ),
            ),
            Alert(
                name="RidgelineConfigurationRefused",
                expr="max by (instance) (ridgeline_configuration_refused) == 1",
                hold="1m",
                severity=Severity.WARNING,
                summary=f"The configuration file of {_GATEWAY} is bad; an older one is in force",
                description="It would not start with this file. What is wrong is on standard error and in `ridgeline check`.",
            ),
            Alert(
                name="RidgelineFileUnwritten",
                expr="max by (instance, file) (ridgeline_unwritten_files) == 1",
                hold="2m",
                severity=Severity.WARNING,
                summary=f"{_GATEWAY} cannot write its {{{{ $labels.file }}}}",
                description="Its disk is full or read-only. Requests are served; what is not written is lost.",
            ),
            Alert(
                name="RidgelineDiscoveryFails",
                expr=f"sum by (instance, source) (increase(ridgeline_discovery_failures_total[{ten}])) > 3",
                hold="5m",
                severity=Severity.WARNING,
                summary=f"{_GATEWAY} cannot look up its workers ({{{{ $labels.source }}}})",
                description="Those known last stay. New ones get nothing, and those that have gone are found out by failing.",
            ),
            Alert(
                name="RidgelineSeriesNearLimit",
                expr=f"max by (instance) (ridgeline_exported_series) > {number(thresholds.SERIES_RATIO * thresholds.SERIES)}",
                hold="15m",
                severity=Severity.INFO,
                summary=f"{_GATEWAY} exports very many series",
                description=f"{{{{ $value }}}} of the {number(thresholds.SERIES)} that it is made for.",
            ),
        ),
    )
