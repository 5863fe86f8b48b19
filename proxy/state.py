"""What all connections of one serving process share. Made once, when the process is wired."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic as clock
from time import time as wall_clock
from typing import TYPE_CHECKING

from proxy.endpoints import Endpoint, Endpoints
from proxy.load import WorkerLoads
from proxy.records import RecordSender
from proxy.rundir import RECORDS_SOCKET, serving_cells
from proxy.upstream import WorkerConnections
from routing.policy import Decision
from routing.topology import Key, Topology
from telemetry.catalog import Writer
from telemetry.cells import create_cells, reset_gauges
from telemetry.layout import Layout, offset
from telemetry.recorder import Recorder

if TYPE_CHECKING:
    from proxy.client import ClientConnection
    from proxy.exchange import Exchange

TICK_SECONDS = 0.5
"""How often limits are checked; a request may overrun one by this much."""

_DROPPED = offset("ridgeline_records_dropped_total")
_LOOP_LAG = offset("ridgeline_loop_lag_seconds")


@dataclass(slots=True)
class Lag:
    """How late the event loop runs what is due: the largest lateness of the last ten to twenty ticks."""

    now_seconds: float = 0.0
    before_seconds: float = 0.0
    ticks: int = 0

    def add(self, seconds: float) -> float:
        """Take a lateness in and give back the figure to show."""
        self.ticks += 1
        if self.ticks % 10 == 0:
            self.before_seconds, self.now_seconds = self.now_seconds, 0.0
        self.now_seconds = max(self.now_seconds, seconds)
        return max(self.now_seconds, self.before_seconds)


class ServingState:
    """The topology, the arrays, the connections to workers, and everything that is under way."""

    def __init__(self, topology: Topology, run_dir: Path, number: int, processes: int, loop: asyncio.AbstractEventLoop) -> None:
        self.topology = topology
        self.loop = loop
        self.is_draining = False
        self.clients: set[ClientConnection] = set()
        self.exchanges: set[Exchange] = set()
        self.reports_cached: set[int] = set()  # workers that have said how much they had cached
        self.keys: dict[bytes, Key] = {key.sha256: key for key in topology.keys}
        self.endpoints = Endpoints(topology, int(wall_clock()))
        layout = Layout.of(topology)
        self._cells = create_cells(serving_cells(run_dir, number), layout)
        reset_gauges(self._cells, layout, Writer.SERVING)
        self._values = self._cells.values
        self.recorder = Recorder(self._values, layout, topology)
        self.loads = WorkerLoads(self._values, layout, topology, run_dir, number, processes)
        self.sender = RecordSender(run_dir / RECORDS_SOCKET, on_drop=self._count_dropped)
        pool_of = {worker.index: pool for pool in topology.pools for worker in pool.workers}
        self.connections = [
            WorkerConnections(
                worker,
                loop,
                connect_seconds=pool_of[worker.index].limits.connect_seconds,
                idle_seconds=pool_of[worker.index].limits.worker_idle_seconds,
            )
            for worker in topology.workers
        ]
        self.worker_lines = [
            b"x-ridgeline-worker: %b\r\nx-ridgeline-pool: %b\r\n"
            % (_header_text(worker.name), _header_text(pool_of[worker.index].name))
            for worker in topology.workers
        ]
        self._prefixes: dict[tuple[int, str], bytes] = {}
        self._id_prefix = os.urandom(8).hex()
        self._ids = 0
        self._lag = Lag()
        self._tick_at = clock()

    def new_request_id(self) -> str:
        """An id that no other request of this gateway has."""
        self._ids += 1
        return f"{self._id_prefix}{self._ids:08x}"

    def find_key(self, given: bytes | None) -> Key | None:
        """The key whose text this is. Only hashes are compared, so the time taken tells nothing about any key."""
        return None if given is None else self.keys.get(sha256(given).digest())

    def request_prefix(self, decision: Decision, endpoint: Endpoint) -> bytes:
        """The first lines of a request to this worker, up to the client's own headers."""
        key = (decision.worker.index, endpoint.name)
        prefix = self._prefixes.get(key)
        if prefix is None:
            worker, pool = decision.worker, decision.pool
            bearer = b"authorization: Bearer %b\r\n" % pool.worker_key.encode() if pool.worker_key else b""
            prefix = self._prefixes[key] = b"%b %b%b HTTP/1.1\r\nhost: %b\r\n%baccept-encoding: identity\r\n" % (
                endpoint.method,
                worker.base_path.encode(),
                endpoint.path,
                worker.authority.encode(),
                bearer,
            )
        return prefix

    def tick(self) -> None:
        """Twice a second: limits, old connections, the loop's lag, and arrays of processes that have appeared."""
        now = clock()
        self._values[_LOOP_LAG] = self._lag.add(max(0.0, now - self._tick_at))
        for exchange in list(self.exchanges):
            exchange.expire(now)
        for client in list(self.clients):
            client.expire(now)
        for connections in self.connections:
            connections.drop_old(now)
        self.loads.look_around()
        self._tick_at = clock() + TICK_SECONDS
        self.loop.call_later(TICK_SECONDS, self.tick)

    def _count_dropped(self, count: int) -> None:
        self._values[_DROPPED] += count


def _header_text(text: str) -> bytes:
    """A name from the configuration as a header value: what is not printable ASCII becomes ``?``."""
    return bytes(byte if 0x20 <= byte < 0x7F else 0x3F for byte in text.encode())
