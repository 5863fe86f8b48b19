"""A real receiver for OTLP over HTTP with protobuf: keeps what it gets, and can be slow or refuse."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as it arrived; ids in hexadecimal digits, `parent_id` empty for none."""

    name: str
    kind: int  # 2: server, 3: client
    trace_id: str
    span_id: str
    parent_id: str
    parent_is_remote: bool
    started_unix_ns: int
    ended_unix_ns: int
    attributes: dict[str, Any]
    events: dict[str, int]  # instants by name
    status: int  # 0: unset, 2: error
    resource: dict[str, Any]


@dataclass(slots=True)
class OtlpReceiver:
    """`start` and `stop`, or an async context manager."""

    status: int = 200
    delay_seconds: float = 0.0
    posts: int = 0
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)  # of each post: data by name, as protobuf
    port: int = 0
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The base URL, also before and after it listens."""
        return f"http://127.0.0.1:{self.port}"

    def reserve(self) -> None:
        """Choose a port without listening there."""
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]

    async def start(self) -> None:
        """Listen; on the port chosen before, if there is one."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/{tail:.*}", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        if not self.port:
            self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Refuse connections from now on."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> OtlpReceiver:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def spans_when(
        self, holds: Callable[[list[ReceivedSpan]], object], timeout_seconds: float = 8.0
    ) -> list[ReceivedSpan]:
        """Wait until what has arrived is so, and return it. TimeoutError otherwise."""
        await self.when(lambda: holds(self.spans), timeout_seconds)
        return self.spans

    async def when(self, holds: Callable[[], object], timeout_seconds: float = 8.0) -> None:
        """Wait until it is so. TimeoutError otherwise."""
        ends_at = time.monotonic() + timeout_seconds
        while not holds():
            if time.monotonic() > ends_at:
                raise TimeoutError(f"never held: {self.posts} posts, {len(self.spans)} spans {self.spans[-3:]}")
            await asyncio.sleep(0.02)

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.posts += 1
        self.paths.append(request.path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        await asyncio.sleep(self.delay_seconds)
        if self.status == 200 and request.path.endswith("/v1/traces"):
            self.spans += spans_in(ExportTraceServiceRequest.FromString(body))
        elif self.status == 200 and request.path.endswith("/v1/metrics"):
            found = ExportMetricsServiceRequest.FromString(body)
            scopes = [scope for resource in found.resource_metrics for scope in resource.scope_metrics]
            self.metrics.append({metric.name: metric for scope in scopes for metric in scope.metrics})
        return web.Response(status=self.status)


def spans_in(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    """The spans of one request."""
    return [
        ReceivedSpan(
            name=span.name,
            kind=span.kind,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            parent_is_remote=span.flags & 0x200 != 0,
            started_unix_ns=span.start_time_unix_nano,
            ended_unix_ns=span.end_time_unix_nano,
            attributes=attributes(span.attributes),
            events={event.name: event.time_unix_nano for event in span.events},
            status=span.status.code,
            resource=attributes(group.resource.attributes),
        )
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def attributes(pairs: Any) -> dict[str, Any]:
    """Attributes as a dict."""
    found: dict[str, Any] = {}
    pair: KeyValue
    for pair in pairs:
        assert pair.key not in found, pair.key
        found[pair.key] = _plain(pair.value)
    return found


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
