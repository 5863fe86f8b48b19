"""The serving process: takes requests, sends them to workers, counts what happened, and does nothing that may take time.

Run by the supervisor as ``python -m proxy.serving.process``; it logs only faults, and never a request.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import select
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic as clock

from proxy.published import TopologyReader
from proxy.serving.client import ClientConnection
from proxy.serving.state import ServingState
from proxy.tls import HANDSHAKE_SECONDS, SHUTDOWN_SECONDS, ListenerTls
from routing.topology import Topology

_BACKLOG = 4096
_SENDER_CLOSE_SECONDS = 2.0
_TOPOLOGY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the supervisor tells a serving process."""

    run_dir: Path
    number: int  # of this process, from 0
    processes: int  # serving processes of the gateway
    listen_fd: int  # an inherited listening socket
    parent_fd: int | None  # reads as ended when the supervisor is gone


async def serve(options: Options) -> None:
    """Serve on an inherited listening socket until told to stop, then let running requests finish."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.parent_fd is not None:
        loop.add_reader(options.parent_fd, stop.set)
    topology = await first_topology(options.run_dir, stop)
    if topology is None:
        return
    state = ServingState(topology, options.run_dir, options.number, options.processes, loop)
    listener = socket.socket(fileno=options.listen_fd)
    listener.setblocking(False)
    state.listener_tls = tls = None if topology.tls is None else ListenerTls(topology.tls)
    server = await loop.create_server(
        lambda: ClientConnection(state),
        sock=listener,
        backlog=_BACKLOG,
        ssl=None if tls is None else tls.context,
        ssl_handshake_timeout=None if tls is None else min(HANDSHAKE_SECONDS, topology.limits.request_head_seconds),
        ssl_shutdown_timeout=None if tls is None else SHUTDOWN_SECONDS,
    )
    state.tick()
    await stop.wait()
    is_orphan = options.parent_fd is not None and _has_ended(options.parent_fd)
    if options.parent_fd is not None:
        loop.remove_reader(options.parent_fd)
    await drain(state, server, is_orphan=is_orphan)


async def first_topology(run_dir: Path, stop: asyncio.Event) -> Topology | None:
    """The topology in force, as soon as control has published one; None if it is told to stop before. Raises TimeoutError."""
    reader = TopologyReader(run_dir)
    async with asyncio.timeout(_TOPOLOGY_SECONDS):
        while (topology := reader.read_news()) is None and not stop.is_set():  # noqa: ASYNC110 -- a file, not an event
            await asyncio.sleep(0.02)
        return topology


async def drain(state: ServingState, server: asyncio.Server, *, is_orphan: bool = False) -> None:
    """Say not ready and serve on for a while; then take no more connections, and end what runs when its time is over.

    An orphan, whose supervisor was killed, lets go of the address at once: whoever starts the gateway anew needs it.
    """
    limits = state.topology.limits
    deadline = clock() + limits.drain_seconds
    state.is_draining = True
    if not is_orphan:
        await asyncio.sleep(min(limits.drain_grace_seconds, limits.drain_seconds))
    state.is_closing = True
    server.close()
    while (state.exchanges or any(client.has_unsent for client in state.clients)) and clock() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.05)  # requests do not have to say that they were the last
    for exchange in list(state.exchanges):
        exchange.shut_down()
    for client in list(state.clients):
        client.close()
    state.close_connections()
    state.counting.close()
    await state.sender.close(_SENDER_CLOSE_SECONDS)


def _has_ended(pipe: int) -> bool:
    return bool(select.select([pipe], [], [], 0)[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m proxy.serving.process", description="A serving process; started by the supervisor."
    )
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--slot", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--parent-fd", type=int)
    parser.add_argument("--event-loop", choices=("uvloop", "asyncio"), default="uvloop")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s serving: %(message)s")
    options = Options(
        run_dir=given.run_dir,
        number=given.slot,
        processes=given.processes,
        listen_fd=given.listen_fd,
        parent_fd=given.parent_fd,
    )
    gc.set_threshold(
        20_000, 50, 100
    )  # most objects of a request die with it; looking for cycles at 700 costs more than it finds
    if given.event_loop == "uvloop":
        import uvloop  # noqa: PLC0415 (the other choice is for where it cannot be had or is not trusted)

        uvloop.run(serve(options))
    else:
        asyncio.run(serve(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
