"""A client's connection: requests one after another, in their order, whenever their bytes come."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proxy.config.settings import parse_config
from proxy.config.wiring import build_topology
from proxy.serving.client import ClientConnection
from proxy.serving.state import ServingState
from proxy.upstream.connections import WorkerConnection

CONFIG = "models: [{name: m, workers: [http://127.0.0.1:9]}]\nlisten: 127.0.0.1:8080\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_aborted = False
        self.is_closed = False
        self.has_ended_writing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_closed = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended_writing = True

    def get_write_buffer_size(self) -> int:
        return 0


class Scene:
    """A client's connection, and the one worker's connection that its requests go to."""

    def __init__(self, run_dir: Path) -> None:
        topology = build_topology(parse_config(CONFIG, {}, "test"))
        self.state = ServingState(topology, run_dir, 0, 1, asyncio.get_running_loop())
        self.to_client, self.to_worker = Wire(), Wire()
        self.client = ClientConnection(self.state)
        self.client.connection_made(self.to_client)
        connections = self.state.connections_to(topology.workers[0])
        self.worker = WorkerConnection(connections)
        self.worker.connection_made(self.to_worker)
        connections.give_back(self.worker)

    def answer(self) -> None:
        self.worker.data_received(ANSWER)

    @property
    def asked(self) -> list[bytes]:
        """The bodies that the worker got."""
        return [request.partition(b"\r\n\r\n")[2] for request in self.to_worker.written]


@pytest.fixture
async def scene(tmp_path) -> Scene:
    return Scene(tmp_path)


def body(number: int) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"%d"}]}' % number


def request(number: int) -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body(number)), body(number))


async def test_a_request_that_comes_while_the_next_is_about_to_be_read_stays_behind_it(scene):
    """Bytes that arrive between an answer and the look at what came ahead of it are later bytes, and stay so."""
    scene.client.data_received(request(1))
    scene.client.data_received(request(2))
    scene.answer()
    scene.client.data_received(request(3))
    for _ in range(2):
        await asyncio.sleep(0)
        scene.answer()
    await asyncio.sleep(0)

    assert scene.asked == [body(1), body(2), body(3)]
    assert [answer[:15] for answer in scene.to_client.written] == [b"HTTP/1.1 200 OK"] * 3


@pytest.mark.parametrize("cut", range(1, len(request(2)), 7))
async def test_a_request_in_two_pieces_around_an_answer_is_one_request(scene, cut):
    """However it is cut: no byte is lost, and no byte of a body is taken for a head."""
    second = request(2)
    scene.client.data_received(request(1) + second[:cut])
    scene.answer()
    scene.client.data_received(second[cut:])
    await asyncio.sleep(0)
    scene.answer()

    assert scene.asked == [body(1), body(2)]
    assert len(scene.to_client.written) == 2


async def test_a_client_that_sends_without_end_while_it_is_answered_is_left(scene):
    """Its next requests may come early, but not without bound."""
    scene.client.data_received(request(1))
    scene.client.data_received(b"x" * (1024 * 1024 + 1))

    assert scene.to_client.is_aborted


async def test_a_worker_that_said_anything_is_not_asked_again(scene):
    """A kept connection that closes after an interim answer was no stale one: the request may be under way."""
    scene.client.data_received(request(1))
    scene.answer()
    scene.client.data_received(request(2))
    scene.worker.data_received(b"HTTP/1.1 102 Processing\r\n\r\n")
    scene.worker.connection_lost(None)

    assert scene.asked == [body(1), body(2)]
    assert scene.to_client.written[-1].startswith(b"HTTP/1.1 502 ")


async def test_a_length_that_was_promised_is_owed(scene):
    """A stream with a length that ends before it, even behind its end marker, ends the client's connection."""
    events = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    scene.client.data_received(request(1))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % (len(events) + 400)
    scene.worker.data_received(head + events)
    scene.worker.connection_lost(None)

    assert scene.to_client.is_closed or scene.to_client.is_aborted


async def test_a_cut_does_not_look_like_an_end_without_chunks(scene):
    """An old client is told where the body ends by the end of the connection: a cut one is reset."""
    old = request(1).replace(b"HTTP/1.1", b"HTTP/1.0")
    scene.client.data_received(old)
    scene.worker.data_received(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    event = b'data: {"choices":[{"index":0,"delta":{"content":"abc"}}]}\n\n'
    scene.worker.data_received(b"%x\r\n%b\r\n" % (len(event), event))
    scene.worker.connection_lost(ConnectionResetError())

    assert scene.to_client.is_aborted


@pytest.mark.parametrize(
    "framing", [b"content-length: %d\r\n\r\n%b", b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("path", [b"/livez", b"/readyz", b"/health"])
@pytest.mark.parametrize("is_cut", [False, True], ids=["at once", "behind its head"])
async def test_the_body_of_a_probe_is_no_request(scene, path, framing, is_cut):
    """What a client hides in the body of a probe is never read as the next request on a connection that others may share."""
    probe = b"GET %b HTTP/1.1\r\nhost: x\r\n" % path + framing % (len(request(1)), request(1))
    end = probe.index(b"\r\n\r\n") + 4 if is_cut else len(probe)
    scene.client.data_received(probe[:end])
    scene.client.data_received(probe[end:])
    await asyncio.sleep(0)

    assert scene.asked == []
    assert len(scene.to_client.written) == 1
    assert b"connection: close\r\n" in scene.to_client.written[0]
    assert scene.to_client.has_ended_writing


async def test_probes_without_a_body_keep_their_connection(scene):
    """One after another, and then a request."""
    scene.client.data_received(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 2 + request(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [answer[:15] for answer in scene.to_client.written] == [b"HTTP/1.1 200 OK"] * 2
    assert scene.asked == [body(1)]
