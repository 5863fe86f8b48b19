"""The part of the catalogue that is about the gateway itself: its processes, its configuration, what it loses."""

from __future__ import annotations

from math import nan

from telemetry.family import Family, Kind, Scope, Writer, counter, gauge

GATEWAY: tuple[Family, ...] = (
    counter("parse_errors_total", Scope.PROCESS, "Parts of workers' answers that could not be read and were passed on as is."),
    counter("records_dropped_total", Scope.PROCESS, "Request records lost because the control process was away or behind."),
    counter(
        "log_lines_dropped_total",
        Scope.PROCESS,
        "Lines of the request log lost because they could not be written, or not in time.",
        writer=Writer.CONTROL,
    ),
    gauge(
        "unwritten_files",
        Scope.PROCESS,
        "1 while the control process cannot write this file, as at its last try; requests are served all the same.",
        "file",
        writer=Writer.CONTROL,
    ),
    counter("spans_sent_total", Scope.PROCESS, "Spans that the OTLP receiver took.", writer=Writer.CONTROL),
    counter(
        "spans_dropped_total",
        Scope.PROCESS,
        "Spans lost because the OTLP receiver was away, slow or refused them.",
        writer=Writer.CONTROL,
    ),
    counter(
        "reloads_total",
        Scope.PROCESS,
        "Configurations read after a change or SIGHUP; a failed one changed nothing.",
        "result",
        writer=Writer.CONTROL,
    ),
    gauge(
        "configuration_refused",
        Scope.PROCESS,
        "1 while an older configuration is in force than the one that was read last, because that one is bad.",
        writer=Writer.CONTROL,
        start=nan,
    ),
    counter(
        "process_restarts_total",
        Scope.PROCESS,
        "Times a process of the gateway ended by itself and was started again.",
        "role",
        writer=Writer.CONTROL,
    ),
    counter(
        "process_cpu_seconds_total",
        Scope.PROCESS,
        "Processor time of the gateway's processes; of one that ends by itself up to a second is not counted.",
        "role",
        writer=Writer.CONTROL,
    ),
    gauge(
        "process_resident_bytes",
        Scope.PROCESS,
        "Memory of the gateway's processes that is in use; what they share is counted in each.",
        "role",
        writer=Writer.CONTROL,
        start=nan,
    ),
    gauge(
        "process_open_descriptors",
        Scope.PROCESS,
        "File descriptors that are open in the process of this role that is nearest to its limit.",
        "role",
        writer=Writer.CONTROL,
        start=nan,
    ),
    gauge(
        "process_most_descriptors",
        Scope.PROCESS,
        "File descriptors that this process may have open; without one, new connections fail.",
        "role",
        writer=Writer.CONTROL,
        start=nan,
    ),
    gauge(
        "exported_series",
        Scope.PROCESS,
        "Series that this page has at most, with the pools, workers and keys of now.",
        writer=Writer.CONTROL,
        start=nan,
    ),
    counter(
        "discovery_changes_total",
        Scope.PROCESS,
        "Times that another set of workers of a pool was put in force because it was found, by what found it.",
        "source",
        writer=Writer.CONTROL,
    ),
    counter(
        "discovery_failures_total",
        Scope.PROCESS,
        "Times that workers could not be looked up, so that those known last stayed, by what was asked.",
        "source",
        writer=Writer.CONTROL,
    ),
    counter(
        "slow_client_streams_total",
        Scope.PROCESS,
        "Streams left out of TPOT because over 5 % of their time went into waiting for the client.",
    ),
    gauge(
        "loop_lag_seconds",
        Scope.PROCESS,
        "How late a serving process's event loop runs what is due.",
        start=nan,
        is_per_process=True,
    ),
    gauge(
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
