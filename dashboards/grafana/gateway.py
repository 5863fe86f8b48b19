"""The board of the gateway itself: what it adds, whether its processes keep up, and how requests end in detail."""

from __future__ import annotations

from dashboards import thresholds
from dashboards.grafana import links, panels, words
from dashboards.grafana.colours import Colour
from dashboards.grafana.values import Board, Form, Panel, Query, Row, State, Step, Unit


def _plain_minute(name: str, *by: str) -> str:
    return words.per_minute(name, *by, selector="")


def _own() -> Row:
    def lag(at: float) -> tuple[Step, ...]:
        return Step(at=None, colour=Colour.PLAIN), Step(at=at, colour=Colour.WARNING)

    return Row(
        title="What the gateway adds",
        panels=(
            Panel(
                title="The gateway's own work",
                description="(Sent to the worker - fully received - queue - connect) + (first byte to the client - first "
                "byte from the "
                "worker).",
                unit=Unit.SECONDS,
                queries=panels.distribution("ridgeline_overhead_seconds"),
            ),
            Panel(
                title="Event loops of serving processes",
                description="How late each serving process runs what is due. Above the line it has too much to do: requests "
                "of all "
                "pools are late by that much.",
                unit=Unit.SECONDS,
                queries=(Query(expr="ridgeline_loop_lag_seconds", legend="{{instance}} {{process}}"),),
                steps=lag(thresholds.LOOP_LAG_SECONDS),
            ),
            Panel(
                title="Event loop of the control process",
                alerts=("RidgelineControlBehind",),
                description="How late the control process runs what is due. Requests do not wait for it; health and "
                "judgement do.",
                unit=Unit.SECONDS,
                queries=(Query(expr="ridgeline_control_lag_seconds", legend="{{instance}}"),),
                steps=lag(thresholds.CONTROL_LAG_SECONDS),
            ),
            Panel(
                title="Connecting to workers",
                description="Time to get a connection to the worker; 0 for one that was kept open.",
                unit=Unit.SECONDS,
                queries=panels.distribution("ridgeline_connect_seconds"),
            ),
            Panel(
                title="Waiting for clients",
                description="Time in which the client's connection took no more bytes of its answer.",
                unit=Unit.SECONDS,
                queries=panels.distribution("ridgeline_client_wait_seconds"),
            ),
            Panel(
                title="Streams slowed down by their client",
                description="Streams left out of TPOT because over 5 % of their time went into waiting for the client, per "
                "minute.",
                unit=Unit.PER_MINUTE,
                queries=(Query(expr=_plain_minute("ridgeline_slow_client_streams_total"), legend="Streams"),),
            ),
        ),
    )


def _processes() -> Row:
    return Row(
        title="Its processes",
        panels=(
            Panel(
                title="Processors",
                alerts=("RidgelineGatewaySaturated",),
                description="Processor time of the gateway's processes per second, by role. A serving process uses one core "
                "and no "
                "more: where their sum nears their number, start more of them.",
                unit=Unit.RATIO,
                queries=(
                    Query(
                        expr="sum by (instance, role) (rate(ridgeline_process_cpu_seconds_total[$__rate_interval]))",
                        legend="{{instance}} {{role}}",
                    ),
                ),
            ),
            Panel(
                title="Memory",
                description="Memory of the gateway's processes that is in use, by role; what they share is counted in each.",
                unit=Unit.BYTES,
                queries=(
                    Query(expr="sum by (instance, role) (ridgeline_process_resident_bytes)", legend="{{instance}} {{role}}"),
                ),
            ),
            Panel(
                title="File descriptors",
                description="Share of the file descriptors that are open, of those that the process nearest to its limit may "
                "have, by role. A stream takes two; at 1 new connections fail.",
                unit=Unit.RATIO,
                queries=(
                    Query(
                        expr="max by (instance, role) "
                        "(ridgeline_process_open_descriptors / ridgeline_process_most_descriptors)",
                        legend="{{instance}} {{role}}",
                    ),
                ),
            ),
            Panel(
                title="Processes that ended by themselves",
                alerts=("RidgelineProcessRestarts",),
                description="And were started again, in the last ten minutes, by role. Requests of a serving process end "
                "with it.",
                unit=Unit.COUNT,
                queries=(
                    Query(
                        expr="sum by (instance, role) (increase(ridgeline_process_restarts_total[10m]))",
                        legend="{{instance}} {{role}}",
                    ),
                ),
            ),
            Panel(
                title="Configuration refused",
                alerts=("RidgelineConfigurationRefused",),
                description="1 while an older configuration is in force than the one that was read last, because that one "
                "is bad: "
                "`ridgeline check` says why.",
                unit=Unit.RATIO,
                queries=(Query(expr="max by (instance) (ridgeline_configuration_refused)", legend="{{instance}}"),),
                form=Form.STATES,
                states=(State(0, "In force", Colour.GOOD), State(1, "Refused", Colour.BAD)),
            ),
            Panel(
                title="Series exported",
                alerts=("RidgelineSeriesNearLimit",),
                description="Series that the metrics page has at most, with the pools, workers and keys of now.",
                unit=Unit.COUNT,
                queries=(Query(expr="max by (instance) (ridgeline_exported_series)", legend="{{instance}}"),),
            ),
            Panel(
                title="Versions",
                alerts=("RidgelineAbsent",),
                description="How many gateways run which version.",
                unit=Unit.COUNT,
                queries=(Query(expr="count by (version) (ridgeline_build_info)", legend="{{version}}"),),
                form=Form.NUMBER,
            ),
        ),
    )


def _lost() -> Row:
    return Row(
        title="What should not happen",
        panels=(
            Panel(
                title="Records, log lines and spans lost",
                alerts=("RidgelineRecordsLost",),
                description="Records of requests lost because the control process was away or behind, and spans that the "
                "OTLP receiver "
                "did not take, per minute.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(expr=_plain_minute("ridgeline_records_dropped_total"), legend="Records lost", colour=Colour.BAD),
                    Query(
                        expr=_plain_minute("ridgeline_log_lines_dropped_total"), legend="Log lines lost", colour=Colour.LIMIT
                    ),
                    Query(expr=_plain_minute("ridgeline_spans_dropped_total"), legend="Spans lost", colour=Colour.WARNING),
                    Query(expr=_plain_minute("ridgeline_spans_sent_total"), legend="Spans sent", colour=Colour.GOOD),
                ),
            ),
            Panel(
                title="Files that cannot be written",
                alerts=("RidgelineFileUnwritten",),
                description="1 while the control process cannot write this file: the request log, its calibrations, or what it "
                "publishes in the run directory.",
                unit=Unit.COUNT,
                queries=(Query(expr="max by (instance, file) (ridgeline_unwritten_files)", legend="{{instance}} {{file}}"),),
            ),
            Panel(
                title="Answers that could not be read",
                description="Parts of workers' answers that could not be read and were passed on as they are, per minute.",
                unit=Unit.PER_MINUTE,
                queries=(Query(expr=_plain_minute("ridgeline_parse_errors_total"), legend="Parts"),),
            ),
            Panel(
                title="Configurations read",
                description="After a change of the file or SIGHUP, in the last ten minutes; a failed one changed nothing.",
                unit=Unit.COUNT,
                queries=(Query(expr="sum by (result) (increase(ridgeline_reloads_total[10m]))", legend="{{result}}"),),
            ),
            Panel(
                title="Finding workers",
                alerts=("RidgelineDiscoveryFails",),
                description="Sets of workers that were found and put in force, and look-ups that failed so that those known "
                "last stayed, "
                "per minute.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(expr=_plain_minute("ridgeline_discovery_changes_total", "source"), legend="{{source}}: changed"),
                    Query(expr=_plain_minute("ridgeline_discovery_failures_total", "source"), legend="{{source}}: failed"),
                ),
            ),
            Panel(
                title="Metrics pages of workers not read",
                description="Reads of workers' metrics pages that failed, per minute, by pool.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(
                        expr=words.per_minute("ridgeline_scrape_failures_total", "model", "pool"), legend="{{model}} / {{pool}}"
                    ),
                ),
            ),
        ),
    )


def _requests() -> Row:
    return Row(
        title="Requests in detail",
        panels=(
            panels.outcomes(),
            Panel(
                title="Clients that left",
                description="Requests whose client left, per minute, by where the request was then. Many in `wait`: the "
                "first token "
                "takes too long for them.",
                unit=Unit.PER_MINUTE,
                queries=(Query(expr=words.per_minute("ridgeline_client_gone_total", "phase"), legend="{{phase}}"),),
                form=Form.STACKED,
            ),
            Panel(
                title="Streams without a first token",
                description="Streamed requests without a first token, per minute, by cause.",
                unit=Unit.PER_MINUTE,
                queries=(Query(expr=words.per_minute("ridgeline_no_token_total", "reason"), legend="{{reason}}"),),
                form=Form.STACKED,
            ),
            Panel(
                title="Whole requests by endpoint: P95",
                description="Request fully received to last byte handed over to the client, streaming or not.",
                unit=Unit.SECONDS,
                queries=(Query(expr=words.quantile(0.95, "ridgeline_e2e_seconds", "endpoint"), legend="{{endpoint}}"),),
            ),
            Panel(
                title="Gaps between tokens",
                description="Gap between two events that carry tokens, divided by the tokens of the second where known; and "
                "gaps where "
                "their number is not known (chunks).",
                unit=Unit.SECONDS,
                queries=(
                    *panels.distribution("ridgeline_itl_seconds"),
                    Query(
                        expr=words.quantile(0.99, "ridgeline_chunk_gap_seconds"),
                        legend="P99 of chunks",
                        colour=Colour.UNKNOWN,
                        is_dashed=True,
                    ),
                ),
            ),
            Panel(
                title="Largest gap over the median one",
                alerts=("RidgelineStreamsStall",),
                description="Of each stream: how long it stood still, as a multiple of its own pace.",
                unit=Unit.RATIO,
                queries=panels.distribution("ridgeline_stall_ratio"),
            ),
            Panel(
                title="First token and first visible text: P95",
                description="To the first token of any kind, from when the request was received and from when it was sent "
                "to the worker "
                "that answered, and to the first visible text: the rest is reasoning.",
                unit=Unit.SECONDS,
                queries=(
                    Query(expr=words.quantile(0.95, "ridgeline_ttft_seconds"), legend="First token"),
                    Query(expr=words.quantile(0.95, "ridgeline_upstream_ttft_seconds"), legend="First token, of the worker"),
                    Query(expr=words.quantile(0.95, "ridgeline_ttft_visible_seconds"), legend="First text"),
                    panels.HIT_SHARE,
                ),
                width=24,
            ),
        ),
    )


def board() -> Board:
    """For "is it us"."""
    return Board(
        uid=links.GATEWAY,
        title="Ridgeline / Gateway",
        description="What the gateway adds, whether its processes keep up, what it lost, and how requests end in detail.",
        variables=(panels.MODEL, panels.POOL),
        marks=(panels.RELOADS,),
        rows=(_own(), _processes(), _lost(), _requests()),
    )
