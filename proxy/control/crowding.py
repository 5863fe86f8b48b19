"""The part of control that tells serving processes which workers have more than their share, all gateways together.

A gateway knows its own requests to the request, and of those of others what workers said of themselves at the last scrape.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic

from proxy.control.fleet import Fleet
from proxy.control.view import GatewayView
from routing.crowding import crowding
from routing.demand import ASSUMED_OUTPUT_TOKENS
from telemetry.layout import Layout, slot
from telemetry.record import RequestRecord

_log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
_MEMORY_REQUESTS = 500  # over which the mean of what a request counts for is taken
_CROWDING = slot("ridgeline_worker_crowding_tokens")
_AT = slot("ridgeline_crowding_at_seconds")


class CrowdingWatch:
    """One per control process."""

    def __init__(self, view: GatewayView) -> None:
        self._view = view
        self._usual: dict[tuple[str, str], tuple[int, float]] = {}  # by model and pool: requests seen, and their mean load

    def __repr__(self) -> str:
        return f"<CrowdingWatch, usual loads of {len(self._usual)} pools>"

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Learn what a request of each pool counts for in flight, in tokens: one of others is taken to be like those."""
        for record in records:
            if record.load_tokens:
                where = (record.model, record.pool)
                count, mean = self._usual.get(where, (0, 0.0))
                count += 1
                self._usual[where] = count, mean + (record.load_tokens - mean) / min(count, _MEMORY_REQUESTS)

    async def run(self, fleet: Fleet) -> None:
        """Look every second until cancelled. A fault of ours in one look is logged and does not end it."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            try:
                self.look(fleet, monotonic())
            except Exception:
                _log.exception("what other gateways have running could not be looked at")

    def look(self, fleet: Fleet, now: float) -> None:
        """Say of each worker how far it is above its share."""
        topology, values, others = fleet.topology, fleet.cells.values, fleet.others()
        layout = Layout.of(topology)
        own = self._view.in_flight_reader()
        pools = {(pool.model, pool.name) for pool in topology.pools}
        self._usual = {where: usual for where, usual in self._usual.items() if where in pools}
        for pool in topology.pools:
            _, request_tokens = self._usual.get((pool.model, pool.name), (0, float(ASSUMED_OUTPUT_TOKENS)))
            above = crowding(
                [own(worker.name)[1] for worker in pool.workers],
                # One that drains has less and less, and would make the rest look full.
                [None if worker.is_draining else others.get(worker.name) for worker in pool.workers],
                request_tokens,
            )
            for worker, tokens in zip(pool.workers, above, strict=True):
                values[layout.worker_base(worker.index) + _CROWDING] = tokens
        values[_AT] = now
