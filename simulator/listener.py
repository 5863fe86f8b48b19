"""The port a simulated worker listens on."""

from __future__ import annotations

import asyncio
import socket

from simulator.sockets import Connection, Handler


class Listener:
    """A port that can be given up and taken again, and the connections that came in through it."""

    def __init__(self, handle: Handler, host: str, port: int) -> None:
        self.host = host
        self.port = port  # 0: a free one is taken with the first `open`, and kept
        self.connections: set[Connection] = set()
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._placeholder: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<Listener {self.url} {'open' if self.is_open else 'closed'}, {len(self.connections)} connections>"

    @property
    def is_open(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None

    @property
    def url(self) -> str:
        """The base URL, once it is open."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    async def open(self) -> None:
        """Accept connections. ``OSError`` if the address cannot be had."""
        if self._server is not None:
            return
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._handle, self.connections), self.host, self.port, backlog=2048
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Have new connections refused, and end those that are idle; the port stays ours."""
        if self._server is None:
            return
        family = self._server.sockets[0].family
        self._server.close()
        self._server = None
        for connection in [one for one in self.connections if one.is_idle]:
            connection.close()
        self._placeholder = socket.socket(family)
        self._placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._placeholder.bind((self.host, self.port))  # bound and not listening: the kernel refuses

    def drop(self) -> None:
        """Be gone at once, as a killed process is: connections are reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self.connections):
            connection.reset()

    async def close(self) -> None:
        """Give the port up and end all connections; what is under way is cut."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None
        for connection in tuple(self.connections):
            connection.close()
        for _ in range(3):  # until the transports have told their protocols
            await asyncio.sleep(0)
