"""Connections to one worker: kept ones, new ones, and what arrives on them.

An unused connection is dropped before the worker would close it; the one used last is taken first, so the others can age.
"""

from __future__ import annotations

import asyncio
import socket
from time import monotonic as clock
from typing import TYPE_CHECKING, cast

from proxy.tls import SHUTDOWN_SECONDS, WorkerContexts, why_untrusted
from proxy.wire.errors import ProxyError, own_shortage, worker_not_trusted
from routing.topology import Worker, WorkerTls

if TYPE_CHECKING:
    from proxy.serving.exchange import Exchange


class WorkerConnection(asyncio.Protocol):
    """One connection; while `exchange` is set, everything that happens on it is that exchange's business."""

    __slots__ = ("_connections", "_is_paused", "exchange", "idle_at", "is_open", "is_reused", "transport")

    transport: asyncio.Transport  # once it is made

    def __init__(self, connections: WorkerConnections) -> None:
        self._connections = connections
        self.exchange: Exchange | None = None
        self._is_paused = False
        self.is_open = False
        self.is_reused = False  # has carried an exchange before
        self.idle_at = 0.0  # since when it has been unused, while it is

    def __repr__(self) -> str:
        return f"<WorkerConnection {'open' if self.is_open else 'closed'}, {self.exchange!r}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self.transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the exchange at once; bytes that nobody asked for end the connection."""
        now = clock()
        exchange = self.exchange
        if exchange is None:
            self.close()
        else:
            exchange.worker_data(data, now)

    def eof_received(self) -> bool:
        """The worker will send no more; nothing is kept half open."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, by the worker's doing or after `close`."""
        self.is_open = False
        self._connections.forget(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.worker_lost(exc)

    @property
    def has_sent_all(self) -> bool:
        """Whether the worker has taken the whole request; one that answers earlier may not read the rest."""
        return self.transport.get_write_buffer_size() == 0

    def pause(self) -> None:
        """Read no more until `resume`: the client is slower than the worker."""
        if self.is_open and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self.is_open and self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()

    def release(self) -> None:
        """The exchange is over and the worker keeps the connection: it can carry another."""
        self.resume()  # the last bytes of an answer may have been too many for its client at once
        self._connections.give_back(self)

    def close(self) -> None:
        """End the connection at once; the worker notices and stops generating."""
        self.is_open = False
        self._connections.forget(self)
        self.transport.abort()


class WorkerConnections:
    """All connections to one worker."""

    __slots__ = ("_contexts", "_idle", "_is_closed", "_loop", "_tasks", "connect_seconds", "idle_seconds", "tls", "worker")

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop, contexts: WorkerContexts | None = None) -> None:
        self.worker = worker
        self.tls = WorkerTls()  # of the pool, as the two below
        self._contexts = contexts or WorkerContexts()
        self.connect_seconds = 5.0  # limits of the pool, set by whoever wires it
        self.idle_seconds = 4.0
        self._loop = loop
        self._idle: list[WorkerConnection] = []  # the one used last is last
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<WorkerConnections {self.worker.name}, {len(self._idle)} idle>"

    def take(self) -> WorkerConnection | None:
        """A kept connection that is still fresh, or None."""
        idle = self._idle
        if not idle:
            return None
        connection = idle.pop()
        if clock() - connection.idle_at <= self.idle_seconds:
            return connection
        idle.append(connection)
        self.drop_old(clock())
        return None

    def connect(self, exchange: Exchange) -> asyncio.Task[None]:
        """Make a new connection and tell the exchange: `connected`, or `connect_failed` with the attempt's result."""
        task = self._loop.create_task(self._connect(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(self, exchange: Exchange) -> None:
        try:
            async with asyncio.timeout(self.connect_seconds):
                if self.worker.is_tls:
                    context, name = self._contexts.find(self.tls), self.tls.server_name or self.worker.host
                    _, connection = await self._loop.create_connection(
                        lambda: WorkerConnection(self),
                        *(self.worker.host, self.worker.port),
                        ssl=context,
                        server_hostname=name,
                        ssl_shutdown_timeout=SHUTDOWN_SECONDS,
                    )
                else:
                    _, connection = await self._loop.create_connection(
                        lambda: WorkerConnection(self), self.worker.host, self.worker.port
                    )
        except TimeoutError:
            exchange.connect_failed("connect_timeout")
        except OSError as error:
            why, shortage = why_untrusted(error), _shortage(error)
            if shortage is not None:  # it says nothing of the worker
                exchange.connect_failed("abandoned", shortage)
            elif why is None:
                exchange.connect_failed("connect_failed")
            else:
                exchange.fault = why
                exchange.connect_failed("connect_failed", worker_not_trusted())
        else:
            exchange.connected(connection)

    def give_back(self, connection: WorkerConnection) -> None:
        """Keep a connection for the next exchange."""
        if self._is_closed:
            connection.close()
        elif connection.is_open:
            connection.is_reused = True
            connection.idle_at = clock()
            self._idle.append(connection)

    def forget(self, connection: WorkerConnection) -> None:
        """It is closed, or about to be."""
        if connection in self._idle:
            self._idle.remove(connection)

    def drop_old(self, now: float) -> None:
        """Close what has been unused for too long."""
        idle = self._idle
        while idle and now - idle[0].idle_at > self.idle_seconds:
            idle[0].close()

    def close(self) -> None:
        """Close all that is unused now, and the others when their exchanges end."""
        self._is_closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close all that is unused now."""
        while self._idle:
            self._idle[-1].close()


def _shortage(error: OSError) -> ProxyError | None:
    """What this machine lacked, if that is why. Looking a name up or reading a certificate does not say it, so it is tried."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        try:
            socket.socket().close()
        except OSError as own:
            error = own
    return own_shortage(error.errno)
