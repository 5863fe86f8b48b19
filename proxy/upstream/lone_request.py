"""One request to a worker on a connection of its own, for what no client gets: a prompt's first leg, a count of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from ssl import SSLContext

from proxy.wire.framing import FramingError, take_answer_head
from routing.topology import Pool, Worker

_READ_BYTES = 64 * 1024


class UnreachableError(OSError):
    """No connection could be made."""


async def ask(
    worker: Worker, pool: Pool, tls: SSLContext | None, pieces: Iterable[bytes], most_bytes: int
) -> tuple[int, bytes]:
    """Send a whole request, head and body, and give back status and body of the answer, which has at most ``most_bytes``.

    Cancelling it ends the connection, so that the worker stops. Raises `UnreachableError`, another OSError, `FramingError` for
    an answer that is too long, has no length or cannot be read, or `asyncio.IncompleteReadError` for one that was cut.
    """
    try:
        async with asyncio.timeout(pool.limits.connect_seconds):
            name = None if tls is None else pool.worker_tls.server_name
            reader, writer = await asyncio.open_connection(worker.host, worker.port, ssl=tls, server_hostname=name)
    except OSError as error:
        raise UnreachableError from error
    try:
        writer.writelines(pieces)
        await writer.drain()
        data = b""
        while True:
            answer, rest = take_answer_head(data)
            if answer is not None:
                break
            more = await reader.read(_READ_BYTES)
            if not more:
                raise FramingError("no answer")
            data += more
        length = answer.content_length
        if length is None or length > most_bytes:
            raise FramingError("an answer without a length, or too long")
        if len(rest) < length:
            rest += await reader.readexactly(length - len(rest))
        return answer.status, rest[:length]
    finally:
        writer.transport.abort()
