"""Connections to a worker: kept while fresh, and fit for another request when they are taken again."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket

import pytest

from proxy.upstream.connections import WorkerConnection, WorkerConnections
from proxy.wire.errors import ProxyError
from tests.routing.topologies import a_worker


class Wire(asyncio.Transport):
    """A transport that knows whether it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.is_aborted = False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.is_aborted = True

    def get_write_buffer_size(self) -> int:
        return 0


@pytest.fixture
async def connections() -> WorkerConnections:
    return WorkerConnections(a_worker(0), asyncio.get_running_loop())


def made(connections: WorkerConnections) -> tuple[WorkerConnection, Wire]:
    connection, wire = WorkerConnection(connections), Wire()
    connection.connection_made(wire)
    return connection, wire


async def test_a_connection_that_was_paused_reads_again_when_it_is_kept(connections):
    """The last bytes of an answer may pause it; the next request on it must not wait for a client that is gone."""
    connection, wire = made(connections)
    connection.pause()
    assert not wire.reads

    connection.release()

    assert wire.reads
    assert connections.take() is connection


async def test_the_one_used_last_is_taken_first(connections):
    """So the others can age and be dropped."""
    first, second = made(connections)[0], made(connections)[0]
    first.release()
    second.release()

    assert connections.take() is second
    assert connections.take() is first
    assert connections.take() is None


async def test_a_connection_that_has_been_idle_too_long_is_closed(connections):
    """The worker is about to close it."""
    connections.idle_seconds = 0.0
    connection, wire = made(connections)
    connection.release()
    connection.idle_at -= 1.0

    assert connections.take() is None
    assert wire.is_aborted


async def test_bytes_that_nobody_asked_for_end_a_kept_connection(connections):
    """They would be taken for the next answer."""
    connection, wire = made(connections)
    connection.release()

    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")

    assert wire.is_aborted
    assert connections.take() is None


async def test_after_the_worker_was_removed_nothing_is_kept(connections):
    """A request that was under way ends; its connection goes with it."""
    connection, wire = made(connections)
    connections.close()

    connection.release()

    assert wire.is_aborted


class Loop:
    """Cannot connect, for a reason."""

    def __init__(self, error: OSError) -> None:
        self.error = error
        self.create_task = asyncio.get_running_loop().create_task

    async def create_connection(self, *_: object) -> None:
        raise self.error


class Waiting:
    """An exchange that waits for a connection."""

    result: str | None = None
    code: str | None = None

    def connect_failed(self, result: str, error: ProxyError | None = None) -> None:
        self.result, self.code = result, None if error is None else error.code


@pytest.mark.parametrize(
    ("number", "result", "code"),
    [
        (errno.ECONNREFUSED, "connect_failed", None),
        (errno.EHOSTUNREACH, "connect_failed", None),
        (errno.EMFILE, "abandoned", "gateway_out_of_descriptors"),
        (errno.ENOBUFS, "abandoned", "gateway_out_of_memory"),
        (errno.EADDRNOTAVAIL, "abandoned", "gateway_out_of_ports"),
    ],
)
async def test_a_shortage_of_our_own_is_not_the_workers(number, result, code):
    """Without descriptors, memory or ports no connection can be made to anyone: that is held against nobody."""
    waiting = Waiting()

    await WorkerConnections(a_worker(0), Loop(OSError(number, "no"))).connect(waiting)

    assert (waiting.result, waiting.code) == (result, code)


@pytest.mark.parametrize("error", [socket.gaierror(socket.EAI_AGAIN, "try again"), OSError("ca.pem cannot be read")])
async def test_a_name_or_file_that_no_descriptor_was_left_for_is_not_the_workers_either(error):
    """Neither error says why; with descriptors they are the worker's, without them ours."""
    waiting = Waiting()
    connections = WorkerConnections(a_worker(0), Loop(error))

    await connections.connect(waiting)
    assert waiting.result == "connect_failed"

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        await connections.connect(waiting)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (waiting.result, waiting.code) == ("abandoned", "gateway_out_of_descriptors")
