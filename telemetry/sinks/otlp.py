"""Spans to an OTLP receiver: HTTP with protobuf, by OpenTelemetry's own exporter, in a thread of the control process.

OpenTelemetry is imported in that thread and only when a receiver is configured: it takes a quarter of a second and 12 MB.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from telemetry.record import RequestRecord
from telemetry.sinks.outbox import Outbox
from telemetry.spans import Span

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext

MOST_WAITING_SPANS = 8192
BATCH_RECORDS = 256
DELAY_SECONDS = 1.0
SCOPE = "ridgeline"
_LONGEST_CAUSE = 300  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Where telemetry goes, and as whose."""

    endpoint: str  # base URL, or that of traces
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: str = ""  # of the gateway
    instance: str = ""  # tells this gateway from its replicas

    def url(self, signal: str) -> str:
        """The URL of a signal, ``traces`` or ``metrics``: below the base, or beside the other signal's."""
        base = self.endpoint.rstrip("/")
        for known in ("traces", "metrics"):
            base = base.removesuffix(f"/v1/{known}")
        return f"{base}/v1/{signal}"

    @property
    def place(self) -> str:
        """Host and port, for messages."""
        return urlsplit(self.endpoint).netloc


def span_outbox(
    receiver: Receiver,
    spans_of: Callable[[RequestRecord], tuple[Span, ...]],
    *,
    on_fault: Callable[[str], None] | None = None,
    most: int = MOST_WAITING_SPANS,
) -> Outbox[RequestRecord]:
    """An outbox for sampled records, which are counted by their spans."""
    return Outbox(
        f"traces to {receiver.place}",
        lambda: _SpanCourier(receiver, spans_of),
        most=most,
        batch=BATCH_RECORDS,
        delay_seconds=DELAY_SECONDS,
        weigh=_spans_in,
        on_fault=on_fault,
    )


def _spans_in(record: RequestRecord) -> int:
    return 0 if record.trace is None else 1 + len(record.trace.attempts)


class Complaints(logging.Handler):
    """Keeps what one of OpenTelemetry's exporters says of a batch, which is all it tells about why it failed."""

    def __init__(self, exporter: str) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        logger = logging.getLogger(f"opentelemetry.exporter.otlp.proto.http.{exporter}")
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Called by the logger."""
        self.text = self.text or record.getMessage()  # the first has the cause, the last only that it was given up

    def take(self) -> str:
        """What was said since the last call, shortened, on one line."""
        text, self.text = self.text, ""
        return " ".join(text.split())[:_LONGEST_CAUSE] or "the receiver did not take a batch"


def open_session() -> requests.Session:
    """A session that goes to the receiver directly and nowhere else, whatever the environment says for others."""
    import requests  # noqa: PLC0415

    session = requests.Session()
    session.trust_env = False  # no proxies, and no passwords from ~/.netrc
    session.max_redirects = 0
    return session


def resource_of(receiver: Receiver) -> Resource:
    """Who sends: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before our own names."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415

    own = {"service.name": SCOPE, "service.version": receiver.version, "service.instance.id": receiver.instance}
    return Resource(own).merge(OTELResourceDetector().detect())


class _SpanCourier:
    def __init__(self, receiver: Receiver, spans_of: Callable[[RequestRecord], tuple[Span, ...]]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

        self._complaints = Complaints("trace_exporter")
        self._spans_of = spans_of
        self._resource = resource_of(receiver)
        self._scope = InstrumentationScope(SCOPE, receiver.version)
        self._exporter = OTLPSpanExporter(receiver.url("traces"), headers=dict(receiver.headers), session=open_session())

    def deliver(self, batch: Sequence[RequestRecord]) -> str | None:
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

        spans = [readable_span(span, self._resource, self._scope) for record in batch for span in self._spans_of(record)]
        is_taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        why = self._complaints.take()
        return None if is_taken else why

    def stop(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def readable_span(span: Span, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """The span as the exporter wants it."""
    from opentelemetry.sdk.trace import Event, ReadableSpan  # noqa: PLC0415
    from opentelemetry.trace import SpanKind, Status, StatusCode  # noqa: PLC0415

    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id, is_remote=False),
        parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id, is_remote=span.parent_is_remote),
        resource=resource,
        attributes=_attributes(span),
        events=[Event(event.name, timestamp=event.unix_ns) for event in span.events],
        kind=SpanKind.SERVER if span.is_server else SpanKind.CLIENT,
        status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
        start_time=span.started_unix_ns,
        end_time=span.ended_unix_ns,
        instrumentation_scope=scope,
    )


def _attributes(span: Span) -> dict[str, str | bool | int | float | Sequence[str]]:
    return dict(span.attributes)


def _context(trace_id: str, span_id: str, *, is_remote: bool) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))
