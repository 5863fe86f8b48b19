"""A name server on loopback that says what a test tells it to, over UDP and, when an answer is too long for that, TCP."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

_MOST_UDP_BYTES = 1232


class NameServer:
    """An async context. `answers` is by name and type; what is absent has no records, `failing` are types it cannot answer."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, Sequence[str]]] = {}  # TTL in seconds, and the records as text
        self.unknown: set[str] = set()  # names that do not exist
        self.failing: set[str] = set()
        self.is_silent = False
        self.asked: list[tuple[float, str, str]] = []  # monotonic instant, name, type
        self.over_tcp = 0
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<NameServer 127.0.0.1:{self.port} {self.answers}>"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def says(self, name: str, *records: str, kind: str = "A", ttl: int = 1) -> None:
        """From now on."""
        self.answers[name, kind] = (ttl, records)

    async def __aenter__(self) -> NameServer:
        with socket.socket() as free:
            free.bind(("127.0.0.1", self.port))
            self.port = free.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: _Udp(self), local_addr=("127.0.0.1", self.port))
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._transport is not None
        assert self._server is not None
        self._transport.close()
        self._server.close()
        await self._server.wait_closed()

    def answer(self, wire: bytes, most_bytes: int = 65535) -> bytes | None:
        query = dns.message.from_wire(wire)
        (question,) = query.question
        name, kind = question.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(question.rdtype)
        self.asked.append((time.monotonic(), name, kind))
        if self.is_silent:
            return None
        answer = dns.message.make_response(query, recursion_available=True)
        if kind in self.failing:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif name in self.unknown:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif found := self.answers.get((name, kind)):
            ttl, records = found
            if records:
                answer.answer.append(dns.rrset.from_text_list(question.name, ttl, "IN", kind, list(records)))
        whole = answer.to_wire(max_size=65535)
        if len(whole) > most_bytes:
            answer.answer.clear()
            answer.flags |= dns.flags.TC
            whole = answer.to_wire()
        return whole

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = int.from_bytes(await reader.readexactly(2), "big")
            answer = self.answer(await reader.readexactly(size))
            if answer is not None:
                self.over_tcp += 1
                writer.write(len(answer).to_bytes(2, "big") + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._server.answer(data, _MOST_UDP_BYTES)
        if answer is not None and self._transport is not None:
            self._transport.sendto(answer, addr)
