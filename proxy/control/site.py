"""An application of the control process on a listener, whatever its callers do."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from contextlib import suppress
from ssl import SSLContext

from aiohttp import web
from aiohttp.http import HttpProcessingError

from proxy.tls import HANDSHAKE_SECONDS, SHUTDOWN_SECONDS

# Per listener. Probes must not be short of descriptors, nor this process of memory, because of who connects here: one that
# is in its handshake has taken 300 kB.
MAX_CONNECTIONS = 256
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_SHORTAGE_SECONDS = 0.2  # until it is tried again
_SHUTDOWN_SECONDS = 0.2  # for answers on their way


def _is_news(record: logging.LogRecord) -> bool:
    """Whether what the server logs is a fault of ours. What callers send badly is answered with 400, and anybody can do it."""
    error = None if record.exc_info is None else record.exc_info[1]
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


_server_log = logging.getLogger("proxy.control.site.server")
_server_log.addFilter(_is_news)


class Site:
    """One app on one listener, with a bound on its connections, those that have not ended their TLS handshake included."""

    def __init__(self, app: web.Application, tls: SSLContext | None = None) -> None:
        self._tls = tls
        self._runner = web.AppRunner(
            app, access_log=None, logger=_server_log, shutdown_timeout=_SHUTDOWN_SECONDS, auto_decompress=False
        )
        self._accepting: asyncio.Task[None] | None = None
        self._beginning: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket) -> None:
        """Serve; the socket belongs to the site from now on."""
        await self._runner.setup()
        protocol = self._runner.server
        assert protocol is not None  # noqa: S101 -- set up above
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listener, protocol))

    async def _accept(self, listener: socket.socket, protocol: web.Server) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:
                    await asyncio.sleep(_SHORTAGE_SECONDS if error.errno in _SHORTAGES else 0)
                    continue
                if len(self._beginning) + len(protocol.connections) >= MAX_CONNECTIONS:
                    connection.close()
                    continue
                task = asyncio.create_task(self._begin(connection, protocol))
                self._beginning.add(task)
                task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket, protocol: web.Server) -> None:
        with suppress(OSError):  # it has left, speaks no TLS, or none in time
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=None if self._tls is None else SHUTDOWN_SECONDS,
            )

    async def stop(self) -> None:
        """Stop listening and end the connections."""
        if self._accepting is not None:
            ending = (self._accepting, *self._beginning)
            for task in ending:
                task.cancel()
            await asyncio.wait(ending, timeout=_SHUTDOWN_SECONDS)
        await self._runner.cleanup()
