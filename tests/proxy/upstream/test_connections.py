"""Connections to a worker: kept while fresh, and fit for another request when they are taken again."""

from __future__ import annotations

import asyncio
import errno

import pytest

from proxy.upstream.connections import WorkerConnection, WorkerConnections
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

    def __init__(self, number: int) -> None:
        self.number = number
        self.create_task = asyncio.get_running_loop().create_task

    async def create_connection(self, *_: object) -> None:
        raise OSError(self.number, "no")


class Waiting:
    """An exchange that waits for a connection."""

    result: str | None = None

    def connect_failed(self, result: str) -> None:
        self.result = result


@pytest.mark.parametrize(
    ("number", "result"),
    [
        (errno.ECONNREFUSED, "connect_failed"),
        (errno.EHOSTUNREACH, "connect_failed"),
        (errno.EMFILE, "abandoned"),
        (errno.ENOBUFS, "abandoned"),
        (errno.EADDRNOTAVAIL, "abandoned"),
    ],
)
async def test_a_shortage_of_our_own_is_not_the_workers(number, result):
    """Without descriptors, memory or ports no connection can be made to anyone: that is held against nobody."""
    waiting = Waiting()

    await WorkerConnections(a_worker(0), Loop(number)).connect(waiting)

    assert waiting.result == result
