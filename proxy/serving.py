"""The serving process: takes requests, sends them to workers, counts what happened, and does nothing that may take time.

Run by the supervisor as ``python -m proxy.serving``; it logs only its own faults, and never a request.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import monotonic as clock
from time import time as wall_clock
from typing import TYPE_CHECKING

import msgspec

from proxy.config import load_config
from proxy.errors import ClientFault, ProxyError
from proxy.records import RecordSender
from proxy.upstream import WorkerConnections
from proxy.wiring import build_topology
from routing.policy import Decision, Snapshot
from routing.topology import Key, Model, Pool, Topology, Worker
from telemetry.catalog import LABELS, Scope, Writer
from telemetry.cells import Cells, create_cells, map_cells, reset_gauges
from telemetry.layout import Layout, offset, slot
from telemetry.meter import Measurements
from telemetry.record import RequestRecord
from telemetry.recorder import Recorder

if TYPE_CHECKING:
    from proxy.client import ClientConnection
    from proxy.exchange import Exchange
    from proxy.request_head import RequestHead

_log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
"""How often limits are checked; a request may overrun one by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One path of the API: its label, where a worker has it, or how it is answered here."""

    name: str
    method: bytes
    path: bytes
    has_usage: bool = False  # streams can be asked for usage
    answer: Callable[[Exchange], bytes] | None = None  # answered by the gateway itself
    fault: Callable[[], ProxyError] | None = None


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


class _Loads(Sequence[float]):
    """Tokens in flight by worker index, over all serving processes."""

    __slots__ = ("views",)

    def __init__(self, own: memoryview[float]) -> None:
        self.views = [own]

    def __getitem__(self, index: int) -> float:  # type: ignore[override]
        views = self.views
        return views[0][index] if len(views) == 1 else sum(view[index] for view in views)

    def __len__(self) -> int:
        return len(self.views[0])


class Serving:
    """Everything that the connections of one serving process share. Made once, when the process is wired."""

    def __init__(self, topology: Topology, run_dir: Path, number: int, processes: int, loop: asyncio.AbstractEventLoop) -> None:
        self.topology = topology
        self.loop = loop
        self.is_draining = False
        self.clients: set[ClientConnection] = set()
        self.exchanges: set[Exchange] = set()
        self.reports_cached: set[int] = set()  # workers that have said how much they had cached
        self.keys: dict[bytes, Key] = {key.sha256: key for key in topology.keys}
        self.layout = Layout.of(topology)
        self._cells = create_cells(run_dir / f"serving-{number}.cells", self.layout)
        reset_gauges(self._cells, self.layout, Writer.SERVING)
        values = self._cells.values
        self.recorder = Recorder(values, self.layout, topology)
        self._values = values
        self._run_dir = run_dir
        self._peers: dict[int, Cells | None] = {peer: None for peer in range(processes) if peer != number}
        self._control: Cells | None = None
        self._worker_bases = [self.layout.worker_base(worker.index) for worker in topology.workers]
        self._pool_bases = [self.layout.pool_base(pool.index) for pool in topology.pools]
        self._loads = _Loads(self._by_worker(values, "ridgeline_in_flight_tokens"))
        self._is_up: Sequence[float] = [1.0] * len(topology.workers)
        self._turn = number
        self._models = {name: model for model in topology.models for name in (model.name, *model.aliases)}
        limits = topology.limits
        self.connections = [
            WorkerConnections(worker, loop, connect_seconds=limits.connect_seconds, idle_seconds=limits.worker_idle_seconds)
            for worker in topology.workers
        ]
        pool_of = {worker.index: pool for pool in topology.pools for worker in pool.workers}
        self.worker_lines = [
            b"x-ridgeline-worker: %b\r\nx-ridgeline-pool: %b\r\n"
            % (_header_text(worker.name), _header_text(pool_of[worker.index].name))
            for worker in topology.workers
        ]
        self.no_endpoint = Endpoint(
            name="other", method=b"", path=b"", fault=lambda: ClientFault("not_found", "There is no such path.", status=404)
        )
        self._endpoints = self._make_endpoints()
        self._prefixes: dict[tuple[int, str], bytes] = {}
        self._id_prefix = os.urandom(8).hex()
        self._ids = 0
        self.sender = RecordSender(run_dir / "records.sock", on_drop=self._count_dropped)
        self._lag = Lag()
        self._tick_at = clock() + TICK_SECONDS
        self._started_unix_seconds = int(wall_clock())

    def _by_worker(self, values: memoryview[float], name: str) -> memoryview[float]:
        """A live view of one worker family, by worker index."""
        blocks = self.layout.blocks(Scope.WORKER)
        first = blocks.start + offset(name)
        return values[first : blocks.stop : blocks.step]

    def _make_endpoints(self) -> dict[bytes, Endpoint]:
        endpoints = [
            Endpoint(name="chat", method=b"POST", path=b"/v1/chat/completions", has_usage=True),
            Endpoint(name="completions", method=b"POST", path=b"/v1/completions", has_usage=True),
            Endpoint(name="models", method=b"GET", path=b"/v1/models", answer=self._list_models),
        ]
        endpoints += [
            Endpoint(name="models", method=b"GET", path=b"/v1/models/" + name.encode(), answer=partial(self._show_model, model))
            for name, model in self._models.items()
        ]
        return {endpoint.path: endpoint for endpoint in endpoints}

    # What connections and exchanges ask for

    def new_request_id(self) -> str:
        """An id that no other request of this gateway has."""
        self._ids += 1
        return f"{self._id_prefix}{self._ids:08x}"

    def endpoint(self, method: bytes, path: bytes) -> Endpoint:
        """What answers this method on this path; one whose `fault` says why nothing does."""
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            return self.no_endpoint
        if endpoint.method != method:
            return Endpoint(
                name=endpoint.name,
                method=method,
                path=path,
                fault=lambda: ClientFault("method_not_allowed", f"Use {endpoint.method.decode()} here.", status=405),
            )
        return endpoint

    def answer_probe(self, client: ClientConnection, head: RequestHead, rest: bytes) -> bool:
        """Answer a probe of the process itself at once, without a record; False if ``head`` is none."""
        if head.path not in (b"/livez", b"/readyz", b"/health") or head.method not in (b"GET", b"HEAD"):
            return False
        is_ready = not self.is_draining or head.path == b"/livez"
        client.reply_to_probe(200 if is_ready else 503, b"ok\n" if is_ready else b"draining\n", head, rest)
        return True

    def find_key(self, given: bytes | None) -> Key | None:
        """The key whose text this is. Only hashes are compared, so the time taken tells nothing about any key."""
        return None if given is None else self.keys.get(sha256(given).digest())

    def find_model(self, name: str | None) -> Model:
        """The model that is asked for; the only one if none is named. Raises `ClientFault` for an unknown name."""
        if name is None:
            if len(self.topology.models) == 1:
                return self.topology.models[0]
            raise ClientFault("model_missing", "Name a model in the field 'model'; GET /v1/models lists them.")
        model = self._models.get(name)
        if model is None:
            raise ClientFault("model_not_found", "The model does not exist; GET /v1/models lists those that do.", status=404)
        return model

    def snapshot(self) -> Snapshot:
        """What a decision may look at, now."""
        self._turn += 1
        return Snapshot(self._is_up, self._loads, self._turn)

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

    def begin_work(self, decision: Decision, tokens: int) -> None:
        """A request goes to a worker and adds to its load."""
        base = self._worker_bases[decision.worker.index]
        values = self._values
        values[base + _IN_FLIGHT] += 1
        values[base + _IN_FLIGHT_TOKENS] += tokens
        values[self._pool_bases[decision.pool.index] + _ROUTES[decision.policy, decision.reason]] += 1

    def end_work(self, decision: Decision, tokens: int, result: str) -> None:
        """The worker has no more to do with it."""
        base = self._worker_bases[decision.worker.index]
        values = self._values
        values[base + _IN_FLIGHT] -= 1
        values[base + _IN_FLIGHT_TOKENS] -= tokens
        values[base + _ATTEMPTS[result]] += 1

    def count_attempt(self, worker: Worker, result: str) -> None:
        """One more attempt at a worker that came to nothing, while the request stays there."""
        self._values[self._worker_bases[worker.index] + _ATTEMPTS[result]] += 1

    def cancel(self, task: object) -> None:
        """A connection that is being made is not wanted any more."""
        assert isinstance(task, asyncio.Task)
        task.cancel()

    def finished(
        self, exchange: Exchange, record: RequestRecord, pool: Pool | None, worker: Worker | None, found: Measurements | None
    ) -> None:
        """An exchange has ended: count its record and pass it on."""
        self.exchanges.discard(exchange)
        self.recorder.count(record, pool, worker, found)
        self.sender.put(record)

    def _count_dropped(self, count: int) -> None:
        self._values[_DROPPED] += count

    # Models, answered here

    def _model_object(self, model: Model, name: str) -> dict[str, object]:
        largest = model.pools[-1].max_total_tokens
        shown: dict[str, object] = {
            "id": name,
            "object": "model",
            "created": self._started_unix_seconds,
            "owned_by": "ridgeline",
        }
        if largest is not None:
            shown["max_model_len"] = largest
        return shown

    def _list_models(self, exchange: Exchange) -> bytes:
        allowed = exchange.key.models if exchange.key is not None else None
        data = [
            self._model_object(model, name) for name, model in self._models.items() if allowed is None or model.name in allowed
        ]
        return msgspec.json.encode({"object": "list", "data": data})

    def _show_model(self, model: Model, exchange: Exchange) -> bytes:
        allowed = exchange.key.models if exchange.key is not None else None
        if allowed is not None and model.name not in allowed:
            raise ClientFault("model_not_found", "The model does not exist; GET /v1/models lists those that do.", status=404)
        return msgspec.json.encode(self._model_object(model, exchange.head.path.removeprefix(b"/v1/models/").decode()))

    # Time

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
        if self._control is None:
            self._control = map_cells(self._run_dir / "control.cells", self.layout)
            if self._control is not None:
                self._is_up = self._by_worker(self._control.values, "ridgeline_worker_up")
        for peer, cells in self._peers.items():
            if cells is None:
                found = map_cells(self._run_dir / f"serving-{peer}.cells", self.layout)
                if found is not None:
                    self._peers[peer] = found
                    self._loads.views.append(self._by_worker(found.values, "ridgeline_in_flight_tokens"))
        self._tick_at = clock() + TICK_SECONDS
        self.loop.call_later(TICK_SECONDS, self.tick)


_IN_FLIGHT = offset("ridgeline_in_flight_requests")
_IN_FLIGHT_TOKENS = offset("ridgeline_in_flight_tokens")
_ATTEMPTS = {result: slot("ridgeline_attempts_total", result=result) for result in LABELS["result"]}
_ROUTES = {
    (policy, reason): slot("ridgeline_routes_total", policy=policy, reason=reason)
    for policy in LABELS["policy"]
    for reason in LABELS["ridgeline_routes_total.reason"]
}
_DROPPED = offset("ridgeline_records_dropped_total")
_LOOP_LAG = offset("ridgeline_loop_lag_seconds")


def _header_text(text: str) -> bytes:
    """A name from the configuration as a header value: what is not printable ASCII becomes ``?``."""
    return bytes(byte if 0x20 <= byte < 0x7F else 0x3F for byte in text.encode())


# The process


async def serve(topology: Topology, run_dir: Path, number: int, processes: int, listen_fd: int, parent_fd: int | None) -> None:
    """Serve on an inherited listening socket until told to stop, then let running requests finish."""
    from proxy.client import ClientConnection

    loop = asyncio.get_running_loop()
    serving = Serving(topology, run_dir, number, processes, loop)
    stop = asyncio.Event()
    for number_of_signal in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number_of_signal, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    if parent_fd is not None:
        loop.add_reader(parent_fd, stop.set)  # readable when the supervisor is gone
    listener = socket.socket(fileno=listen_fd)
    listener.setblocking(False)
    server = await loop.create_server(lambda: ClientConnection(serving), sock=listener, backlog=4096)
    serving.tick()
    await stop.wait()
    if parent_fd is not None:
        loop.remove_reader(parent_fd)
    await drain(serving, server)


async def drain(serving: Serving, server: asyncio.Server) -> None:
    """Take no more connections, wait for running requests as long as configured, then end them."""
    serving.is_draining = True
    server.close()
    deadline = clock() + serving.topology.limits.drain_seconds
    while serving.exchanges and clock() < deadline:
        await asyncio.sleep(0.05)
    for exchange in list(serving.exchanges):
        exchange.shut_down()
    for client in list(serving.clients):
        client.close()
    for connections in serving.connections:
        connections.close()
    await serving.sender.close(2.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m proxy.serving", description="A serving process; started by the supervisor."
    )
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--slot", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--parent-fd", type=int)
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s serving: %(message)s")
    import uvloop

    topology = build_topology(load_config(options.config, os.environ))
    gc.set_threshold(20_000, 50, 100)
    uvloop.run(serve(topology, options.run_dir, options.slot, options.processes, options.listen_fd, options.parent_fd))
    return 0


if __name__ == "__main__":
    sys.exit(main())
