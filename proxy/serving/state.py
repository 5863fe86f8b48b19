"""What all connections of one serving process share. Made once, when the process is wired."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from dataclasses import dataclass
from pathlib import Path
from time import monotonic as clock
from time import time as wall_clock
from typing import TYPE_CHECKING

from proxy.published import GuidanceReader
from proxy.records import RecordSender
from proxy.rundir import RECORDS_SOCKET, serving_cells
from proxy.serving.admission import Admission
from proxy.serving.beginnings import Beginnings
from proxy.serving.counting import CountingProcess
from proxy.serving.endpoints import Endpoint, Endpoints
from proxy.serving.exchange import Exchange
from proxy.serving.following import TopologyFollower
from proxy.serving.hedged import HedgedExchange
from proxy.serving.lookups import Owners
from proxy.serving.quotas import Quotas
from proxy.tls import ListenerTls, WorkerContexts
from proxy.upstream.connections import WorkerConnections
from proxy.upstream.forced_usage import ForcedUsage
from proxy.upstream.load import WorkerLoads
from proxy.upstream.silence import look_for_silence
from proxy.upstream.usage_refusals import UsageRefusals
from proxy.wire.framing import parse_answer_head
from proxy.wire.known_heads import KnownHeads
from proxy.wire.request_head import parse_request_head
from proxy.wire.tracing import Tracer, hash_of, header_pattern
from routing.hedging import HedgeBudget
from routing.policy import Decision
from routing.retry_budget import RetryBudget
from routing.ring import Ring
from routing.topology import Key, Topology, Worker
from telemetry.catalog import Writer
from telemetry.cells import create_cells, reset_gauges
from telemetry.layout import Layout, offset
from telemetry.recorder import Recorder

if TYPE_CHECKING:
    from proxy.serving.client import ClientConnection
    from proxy.wire.request_head import RequestHead

_log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
"""How often limits are checked; a request may overrun one by this much."""

EXPIRED_AT_ONCE = 200
"""So many requests and connections are looked at in one go, in less than a millisecond."""

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
    """The topology in force, the arrays, the connections to workers, and everything that is under way."""

    topology: Topology
    endpoints: Endpoints
    keys: dict[bytes, Key]  # by the hash of their text: only hashes are compared, so the time taken tells nothing about any key
    recorder: Recorder
    loads: WorkerLoads
    exchange_type: type[Exchange]  # what a request becomes

    def __init__(self, topology: Topology, run_dir: Path, number: int, processes: int, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_draining = False  # not ready any more, and every answer ends its connection
        self.is_closing = False  # idle connections of clients end, too
        self.listener_tls: ListenerTls | None = None  # once there is a listener that has one
        self.worker_contexts = WorkerContexts()
        self.clients: set[ClientConnection] = set()
        self.exchanges: set[Exchange] = set()
        self.held_body_bytes = 0  # of large bodies of requests under way
        self.owners = Owners()
        self.usage_refusals = UsageRefusals()
        self.forced_usage = ForcedUsage()
        self.retry_budget = RetryBudget(topology.retries.budget_ratio, topology.retries.budget_per_second, clock())
        self.hedge_budgets: dict[tuple[str, str], HedgeBudget] = {}  # by model and pool
        self.fingerprints: dict[str, str] = {}  # what workers put on the last event of a stream, by their URL
        self.beginnings = Beginnings()
        self.request_heads = KnownHeads(parse_request_head)
        self.answer_heads = KnownHeads(parse_answer_head)
        self.reports_cached: set[str] = set()  # URLs of workers that have said how much they had cached
        self._cells_path = serving_cells(run_dir, number)
        self._connections: dict[tuple[str, str], WorkerConnections] = {}
        self._layout = layout = Layout.of(topology)
        self._cells = create_cells(self._cells_path, layout, Writer.SERVING)
        reset_gauges(self._cells, layout, Writer.SERVING)
        self.loads = WorkerLoads(self._cells.values, layout, topology, run_dir, number, processes, random.getrandbits(32))
        self.sender = RecordSender(run_dir / RECORDS_SOCKET, on_drop=self._count_dropped)
        self.counting = CountingProcess()
        self._follower = TopologyFollower(run_dir, loop, self.loads.rings_for, self.adopt)
        self._guidance_news = GuidanceReader(run_dir)
        self._id_prefix = os.urandom(8).hex()
        self._ids = 0
        self._lag = Lag()
        self._tick_at = clock()
        self._wire(topology)
        self.quotas = Quotas(self._cells.values, layout, topology, self.loads, clock())
        self.admission = Admission(self)

    def adopt(self, topology: Topology, rings: dict[int, Ring]) -> None:
        """Go on with another topology and its rings.

        Requests that are under way end where they began; their figures are counted here.
        """
        layout = Layout.of(topology)
        if layout.digest != self._layout.digest:
            self._cells = create_cells(
                self._cells_path, layout, Writer.SERVING
            )  # takes over what both have, requests in flight included
            self._layout = layout
        self.loads.adopt(self._cells.values, layout, topology, rings)
        self._wire(topology)
        self.quotas.adopt(self._cells.values, layout, topology, self.loads, clock())
        self.admission.adopt()

    def _wire(self, topology: Topology) -> None:
        self.topology = topology
        self.retry_budget.ratio = topology.retries.budget_ratio
        self.retry_budget.floor_per_second = topology.retries.budget_per_second
        hedges = [(pool.model, pool.name) for pool in topology.pools if pool.hedging.is_on]
        self.hedge_budgets = {where: self.hedge_budgets.get(where) or HedgeBudget() for where in hedges}
        self.exchange_type = HedgedExchange if hedges else Exchange  # who does not hedge pays nothing for those who do
        self.keys = {key.sha256: key for key in topology.keys}
        self.keys |= {key.next_sha256: key for key in topology.keys if key.next_sha256 is not None}
        self.endpoints = Endpoints(topology, int(wall_clock()))
        self.recorder = Recorder(self._cells.values, self._layout, topology)
        following = topology.following
        self.tracer = None if following.sample_ratio is None else Tracer(following.sample_ratio)
        self._chain_line = None if following.chain_header is None else header_pattern(following.chain_header)
        self._prefixes: dict[tuple[str, bytes, str | None], bytes] = {}
        before, self._connections = self._connections, {}
        for pool in topology.pools:
            for worker in pool.workers:
                where = (worker.name, worker.url)
                kept = before.pop(where, None) or WorkerConnections(worker, self.loop, self.worker_contexts)
                if kept.tls != pool.worker_tls:
                    kept.close_idle()  # made under other rules
                kept.tls = pool.worker_tls
                kept.connect_seconds = pool.limits.connect_seconds
                kept.idle_seconds = pool.limits.worker_idle_seconds
                self._connections[where] = kept
        for gone in before.values():
            gone.close()
        self._remember_only({worker.url for worker in topology.workers})
        self._worker_lines = {
            worker.name: b"x-ridgeline-worker: %b\r\nx-ridgeline-pool: %b\r\n"
            % (_header_text(worker.name), _header_text(pool.name))
            for pool in topology.pools
            for worker in pool.workers
        }

    def _remember_only(self, urls: set[str]) -> None:
        """What is known of workers that have left is forgotten: where pods come and go, it would grow for ever."""
        self.usage_refusals.keep_only(urls)
        self.fingerprints = {url: text for url, text in self.fingerprints.items() if url in urls}
        self.reports_cached &= urls

    def connections_to(self, worker: Worker) -> WorkerConnections:
        """The connections to a worker. One that a reload has removed meanwhile gets connections for one request each."""
        found = self._connections.get((worker.name, worker.url))
        if found is None:
            found = WorkerConnections(worker, self.loop)
            found.close()
        return found

    def worker_lines(self, decision: Decision) -> bytes:
        """The header lines that name a worker and its pool."""
        return self._worker_lines.get(decision.worker.name, b"")

    def close_connections(self) -> None:
        """Close every connection to a worker that carries no request."""
        for connections in self._connections.values():
            connections.close()

    def new_request_id(self) -> str:
        """An id that no other request of this gateway has."""
        self._ids += 1
        return f"{self._id_prefix}{self._ids:08x}"

    def chain_id(self, head: RequestHead) -> str | None:
        """The call chain that a request says it belongs to, if it says so: by the configured header, else by its trace."""
        if self._chain_line is not None:
            found = self._chain_line.search(head.forwarded)
            if found is not None and (value := found[1].strip()):
                return hash_of(value)
        return None if head.context is None else head.context.trace_id

    def request_prefix(self, decision: Decision, endpoint: Endpoint, query: bytes = b"") -> bytes:
        """The first lines of a request to this worker, up to the client's own headers."""
        if endpoint.response_id is not None:
            return _first_lines(decision, endpoint, b"?" + query if query else b"")
        # By what it is made of: a request may be sent that was decided under an earlier topology.
        key = (decision.worker.url, endpoint.path, decision.pool.worker_key)
        prefix = self._prefixes.get(key)
        if prefix is None:
            prefix = self._prefixes[key] = _first_lines(decision, endpoint, b"")
        return prefix

    def tick(self) -> None:
        """Twice a second: limits, old connections, the loop's lag, and arrays of processes that have appeared."""
        now = clock()
        self._cells.values[_LOOP_LAG] = self._lag.add(max(0.0, now - self._tick_at))
        try:
            self._look_after(now)
        except Exception:
            _log.exception("the regular look at limits and topology failed")
        self._tick_at = clock() + TICK_SECONDS
        self.loop.call_later(TICK_SECONDS, self.tick)

    def _look_after(self, now: float) -> None:
        self._expire([*self.exchanges, *self.clients], 0)
        for connections in self._connections.values():
            connections.drop_old(now)
        self._follower.look()
        guidance = self._guidance_news.read_news()
        if guidance is not None:
            self.loads.follow(guidance)
            self.forced_usage.follow(guidance.workers)
        self.loads.look_around()
        self.quotas.look(now)
        if self.listener_tls is not None:
            self.listener_tls.look(self.topology.tls)
        self.counting.look_after(self.topology, now)
        look_for_silence(self.exchanges, self.loads.health, self.topology.health.silence_seconds, now)
        self.loads.look_at_health(now)
        self.loads.look_at_crowding(now)
        # Another process with other flags may be behind the address now.
        self.reports_cached -= {worker.url for worker in self.loads.restarted()}

    def _expire(self, running: list[Exchange | ClientConnection], start: int) -> None:
        """Look at the limits of some, and in a moment at those of the next: all at once, thousands would hold the loop."""
        end = start + EXPIRED_AT_ONCE
        if end < len(running):
            # Also when one of these fails. All are done within half of the time until the next look.
            self.loop.call_later(TICK_SECONDS / 2 * EXPIRED_AT_ONCE / len(running), self._expire, running, end)
        now = clock()
        for each in running[start:end]:
            each.expire(now)

    def _count_dropped(self, count: int) -> None:
        self._cells.values[_DROPPED] += count


def _first_lines(decision: Decision, endpoint: Endpoint, query: bytes) -> bytes:
    worker, pool = decision.worker, decision.pool
    bearer = b"authorization: Bearer %b\r\n" % pool.worker_key.encode() if pool.worker_key else b""
    return b"%b %b%b%b HTTP/1.1\r\nhost: %b\r\n%baccept-encoding: identity\r\n" % (
        endpoint.method,
        worker.base_path.encode(),
        endpoint.path,
        query,
        worker.authority.encode(),
        bearer,
    )


def _header_text(text: str) -> bytes:
    """A name from the configuration as a header value: what is not printable ASCII becomes ``?``."""
    return bytes(byte if 0x20 <= byte < 0x7F else 0x3F for byte in text.encode())
