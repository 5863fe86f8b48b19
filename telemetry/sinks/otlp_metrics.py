"""Metrics to an OTLP receiver: the families of the catalogue under their own names, and those of the GenAI conventions.

All are cumulative, histograms with the bounds of the catalogue, made from the same arrays as the text for Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from telemetry.catalog import Family, Kind
from telemetry.points import Point, Reading, Snapshot, readings
from telemetry.sinks.otlp import SCOPE, Complaints, Receiver, open_session, resource_of
from telemetry.sinks.outbox import Outbox
from telemetry.spans import METRIC_NAMES, PROVIDER, SERVER_HISTOGRAMS, Semconv, operation_of

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Gauge, Histogram, Metric, MetricsData, Sum
    from opentelemetry.sdk.resources import Resource

_UNITS = {"seconds": "s", "tokens": "{token}", "ratio": "1", "requests": "{request}", "bytes": "By"}
_USAGE_HISTOGRAMS = {"ridgeline_prompt_length_tokens": "input", "ridgeline_completion_length_tokens": "output"}


@dataclass(frozen=True, slots=True)
class Instants:
    """When the counters began, and when they were read. Nanoseconds of the wall clock."""

    began_unix_ns: int
    read_unix_ns: int

    @classmethod
    def of(cls, began_unix_ns: int, read_unix_ns: int) -> Instants:
        """These, in order: a clock that was set back must not have counters end before they began."""
        return cls(min(began_unix_ns, read_unix_ns), read_unix_ns)


Batch = tuple[Snapshot, Instants]


def metric_outbox(receiver: Receiver, semconv: Semconv, *, on_fault: Callable[[str], None] | None = None) -> Outbox[Batch]:
    """An outbox for snapshots. Two at most wait: the next one has all that a dropped one had."""
    return Outbox(
        f"metrics to {receiver.place}",
        lambda: _MetricCourier(receiver, semconv),
        most=2,
        batch=1,
        delay_seconds=0.0,
        on_fault=on_fault,
    )


class _MetricCourier:
    def __init__(self, receiver: Receiver, semconv: Semconv) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415

        self._complaints = Complaints("metric_exporter")
        self._semconv = semconv
        self._receiver = receiver
        self._resource = resource_of(receiver)
        self._exporter = OTLPMetricExporter(receiver.url("metrics"), headers=dict(receiver.headers), session=open_session())

    def deliver(self, batch: Sequence[Batch]) -> str | None:
        from opentelemetry.sdk.metrics.export import MetricExportResult  # noqa: PLC0415

        for snapshot, instants in batch:
            data = metrics_data(snapshot, instants, self._semconv, self._resource)
            is_taken = self._exporter.export(data) is MetricExportResult.SUCCESS
            why = self._complaints.take()
            if not is_taken:
                return why
        return None

    def stop(self) -> None:
        self._exporter.shutdown()


def metrics_data(snapshot: Snapshot, instants: Instants, semconv: Semconv, resource: Resource) -> MetricsData:
    """Everything that a snapshot shows, as the exporter wants it."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    found = {reading.family.name: reading for reading in readings(snapshot)}
    metrics = [_metric(reading.family.name, reading, instants) for reading in found.values() if reading.points]
    metrics += _gen_ai(found, instants, semconv)
    scope = InstrumentationScope(SCOPE, snapshot.version)
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _gen_ai(found: Mapping[str, Reading], instants: Instants, semconv: Semconv) -> Iterator[Metric]:
    names = METRIC_NAMES[semconv]
    for own, name in (*SERVER_HISTOGRAMS.items(), *names.usage_counters.items()):
        if own in found:
            yield _metric(name, _renamed(found[own]), instants)
    if names.usage_histogram is not None:
        points = tuple(
            point
            for own, kind in _USAGE_HISTOGRAMS.items()
            for point in _renamed(found[own], {"gen_ai.token.type": kind}).points
        )
        yield _metric(names.usage_histogram, Reading(found["ridgeline_prompt_length_tokens"].family, points), instants)


def _renamed(reading: Reading, more: Mapping[str, str] | None = None) -> Reading:
    """The same points with the attributes of the conventions. What operation a figure is of is known only for some."""

    def labels(point: Point) -> dict[str, str]:
        given = {"gen_ai.provider.name": PROVIDER, "gen_ai.request.model": point.labels["model"], **(more or {})}
        if "endpoint" in point.labels:
            given["gen_ai.operation.name"] = operation_of(point.labels["endpoint"])
        return {**given, "ridgeline.pool": point.labels["pool"]}

    return Reading(reading.family, tuple(Point(labels(point), point.values, point.sum) for point in reading.points))


def _metric(name: str, reading: Reading, instants: Instants) -> Metric:
    from opentelemetry.sdk.metrics.export import Metric  # noqa: PLC0415

    return Metric(name, reading.family.help, _unit(reading.family), _data(reading, instants))


def _data(reading: Reading, instants: Instants) -> Sum | Gauge | Histogram:
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        NumberDataPoint,
        Sum,
    )

    began, read, family = instants.began_unix_ns, instants.read_unix_ns, reading.family
    if family.kind is Kind.HISTOGRAM:
        return Histogram(
            [
                HistogramDataPoint(
                    attributes=dict(point.labels),
                    start_time_unix_nano=began,
                    time_unix_nano=read,
                    count=int(sum(point.values)),
                    sum=point.sum,
                    bucket_counts=[int(value) for value in point.values],
                    explicit_bounds=family.bounds,
                    min=None,  # type: ignore[arg-type]  # optional in the protocol, and not known here
                    max=None,  # type: ignore[arg-type]
                )
                for point in reading.points
            ],
            AggregationTemporality.CUMULATIVE,
        )
    points = [NumberDataPoint(dict(point.labels), began, read, point.values[0]) for point in reading.points]
    return Gauge(points) if family.kind is Kind.GAUGE else Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)


def _unit(family: Family) -> str:
    return _UNITS.get(family.name.removesuffix("_total").rpartition("_")[2], "1" if family.kind is Kind.GAUGE else "{count}")
