"""What the control process does with records beyond logging them: chains, exemplars, and OpenTelemetry if configured."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, time_ns
from typing import Any

from proxy.config.settings import Config
from proxy.control.fleet import Fleet
from proxy.control.steady_clock import SteadyClock
from proxy.control.view import GatewayView
from proxy.serving.endpoints import Endpoints
from routing.topology import Topology
from telemetry.chains import ChainTable
from telemetry.exemplars import Exemplars
from telemetry.layout import slot
from telemetry.record import RequestRecord
from telemetry.sinks.otlp import Receiver, span_outbox
from telemetry.sinks.otlp_metrics import Batch, Instants, metric_outbox
from telemetry.sinks.outbox import Outbox
from telemetry.spans import Semconv, Span, spans_of

CLOSE_SECONDS = 2.0
_COUNT_SECONDS = 0.5  # how often the figures of the outbox go into cells
_SENT, _DROPPED = slot("ridgeline_spans_sent_total"), slot("ridgeline_spans_dropped_total")
_BEGAN = "counting-since"


class Followers:
    """One per control process. `take` comes first for every record; to be closed."""

    def __init__(
        self,
        config: Config,
        topology: Topology,
        *,
        version: str,
        run_dir: Path,
        on_fault: Callable[[str], None],
        clock: SteadyClock | None = None,
    ) -> None:
        self.chains = ChainTable()
        self._clock = clock or SteadyClock()
        self.exemplars = Exemplars()
        self._routes = Endpoints(topology, 0).routes
        self._addresses: Mapping[str, tuple[str, int]] = {}
        self._seen: Topology | None = None
        self._see(topology)
        self._spans: Outbox[RequestRecord] | None = None
        self._metrics: Outbox[Batch] | None = None
        self._semconv = Semconv(config.tracing.semconv)
        self._interval_seconds = config.tracing.metrics_interval_seconds
        self._began_unix_ns = _began(run_dir)
        settings = config.tracing
        if settings.otlp_endpoint is None:
            return
        receiver = Receiver(
            endpoint=settings.otlp_endpoint,
            headers={name: value.get_secret_value() for name, value in settings.headers.items()},
            version=version,
            instance=f"{socket.gethostname()}:{config.listen.rpartition(':')[2]}",
        )
        self._spans = span_outbox(receiver, self._spans_of, on_fault=on_fault)
        if settings.metrics:
            self._metrics = metric_outbox(receiver, self._semconv, on_fault=on_fault)

    def __repr__(self) -> str:
        return f"<Followers {self.chains}, {self.exemplars}, {self._spans}>"

    def take(self, records: list[RequestRecord]) -> list[RequestRecord]:
        """Take records in, and give them back with what is known only here."""
        records = [
            record if record.chain_id is None else self.chains.follow(record, self._clock.at(record.ended_unix_seconds))
            for record in records
        ]
        sampled = [record for record in records if record.trace is not None]
        if sampled:
            for record in sampled:
                self.exemplars.add(record)
            if self._spans is not None:
                self._spans.put_all(sampled)
        return records

    def view_of_chains(self) -> dict[str, Any]:
        """The call chains of now."""
        return self.chains.view(self._clock.now())

    async def run(self, fleet: Fleet, view: GatewayView) -> None:
        """Count what became of spans, and send metrics when they are due, until cancelled."""
        counted = [0, 0]
        due_at = monotonic() + self._interval_seconds
        while self._spans is not None:
            await asyncio.sleep(_COUNT_SECONDS)
            self._see(fleet.topology)
            now = [self._spans.sent, self._spans.dropped]
            for cell, new, old in zip((_SENT, _DROPPED), now, counted, strict=True):
                fleet.cells.values[cell] += new - old
            counted = now
            if monotonic() >= due_at:
                due_at += self._interval_seconds
                self.send_metrics(view)

    def send_metrics(self, view: GatewayView) -> None:
        """Hand over what is shown now, if metrics are sent at all. Does not block."""
        if self._metrics is not None:
            self._metrics.put_all([(view.snapshot(), Instants.of(self._began_unix_ns, time_ns()))])

    async def close(self) -> None:
        """Send what waits, for at most `CLOSE_SECONDS`."""
        outboxes = [outbox for outbox in (self._spans, self._metrics) if outbox is not None]
        await asyncio.gather(*(asyncio.to_thread(outbox.close, CLOSE_SECONDS) for outbox in outboxes))

    def _see(self, topology: Topology) -> None:
        if topology is not self._seen:  # read in the outbox's thread: replaced, never changed
            self._seen = topology
            self._addresses = {worker.name: (worker.host, worker.port) for worker in topology.workers}

    def _spans_of(self, record: RequestRecord) -> tuple[Span, ...]:
        return spans_of(record, self._routes, self._addresses, self._semconv)


def _began(run_dir: Path) -> int:
    """When this gateway's counters began, in nanoseconds: they outlive a control process, and so does this."""
    path = run_dir / _BEGAN
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(str(time_ns()))
    except FileExistsError:
        pass
    return int(path.read_text(encoding="ascii") or time_ns())
