"""The HTTP server of simulated workers, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from simulator.listener import Listener
from simulator.sockets import KEEP_ALIVE_SECONDS, Connection, Reply, Request
from tests.integration.raw_client import End, RawClient, request_bytes

pytestmark = pytest.mark.integration

Handler = Callable[[Request, Reply], None]
HTML = [("content-type", "text/html")]


@asynccontextmanager
async def a_server(handle: Handler) -> AsyncIterator[Listener]:
    listener = Listener(handle, "127.0.0.1", 0)
    await listener.open()
    try:
        yield listener
    finally:
        await listener.close()


def echo(request: Request, reply: Reply) -> None:
    """Answer with what was asked."""
    reply.answer(200, f"{request.method} {request.path} {request.headers.get('x-a')} ".encode() + request.body, HTML)


def stream(request: Request, reply: Reply) -> None:
    """Two chunks."""
    reply.begin(HTML)
    reply.send(b"one")
    reply.send(b"two")
    reply.end()


async def test_a_request_is_read_and_answered():
    """Method, path without query, headers and body come through; the head is in uvicorn's order."""
    async with a_server(echo) as server, await RawClient.connect(server.url) as client:
        answer = await client.request("POST", "/a/b?c=d", b"body", [("X-A", "1")])

    assert (answer.status, answer.body) == (200, b"POST /a/b 1 body")
    assert answer.head is not None
    assert [name for name, _ in answer.head.headers] == ["date", "server", "content-length", "content-type"]


async def test_a_body_may_come_in_any_pieces():
    """A request is complete when its body is, declared by length or chunked, however it is cut."""
    request = request_bytes("POST", "/x", b"abcdef")
    chunked = request_bytes("POST", "/x", None, [("Transfer-Encoding", "chunked")]) + b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"
    async with a_server(echo) as server, await RawClient.connect(server.url) as client:
        bodies = []
        for raw in (request, chunked):
            for byte in raw:
                await client.send(bytes([byte]))
            bodies.append((await client.read_answer()).body)

    assert bodies == [b"POST /x None abcdef"] * 2


async def test_each_piece_of_a_stream_is_a_chunk():
    """The framing is one chunk a send, and the last chunk at the end."""
    async with a_server(stream) as server, await RawClient.connect(server.url) as client:
        answer = await client.request("GET", "/")

    assert answer.raw.endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
    assert answer.end is End.COMPLETE


async def test_pipelined_requests_are_answered_in_order():
    """What was sent before an answer came is answered afterwards, one after another."""
    async with a_server(echo) as server, await RawClient.connect(server.url) as client:
        await client.send(b"".join(request_bytes("GET", f"/{number}") for number in range(100)))
        bodies = [(await client.read_answer()).body for _ in range(100)]

    assert bodies == [f"GET /{number} None ".encode() for number in range(100)]


async def test_a_request_waits_for_the_one_before_it():
    """The handler is not called for a pipelined request while the first has no answer."""
    replies: list[Reply] = []
    async with a_server(lambda _, reply: replies.append(reply)) as server, await RawClient.connect(server.url) as client:
        await client.send(request_bytes("GET", "/1") + request_bytes("GET", "/2"))
        await becomes(lambda: bool(replies))
        assert len(replies) == 1
        replies[0].answer(200, b"", HTML)
        await client.read_answer()
        await becomes(lambda: len(replies) == 2)
        replies[1].answer(200, b"", HTML)
        await client.read_answer()


@pytest.mark.parametrize(
    "raw",
    [
        request_bytes("GET", "/", None, [("Connection", "close")]),
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ],
)
async def test_the_connection_is_closed_where_it_has_to_be(raw):
    """After an answer to a client that says so, or is of an old version, the connection ends, and the head says so."""
    async with a_server(stream) as server, await RawClient.connect(server.url) as client:
        await client.send(raw)
        answer = await client.read_answer()
        assert answer.head is not None
        assert answer.head.get("connection") == "close"
        assert answer.head.get("transfer-encoding") == "chunked"
        assert await client.read_some() == b""


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"\x16\x03\x01\x02\x00"])
async def test_what_is_no_request_is_refused(raw):
    """A 400 in uvicorn's words, and the end of the connection."""
    async with a_server(echo) as server, await RawClient.connect(server.url) as client:
        await client.send(raw)
        answer = await client.read_answer()
        assert (answer.status, answer.body) == (400, b"Invalid HTTP request received.")
        assert await client.read_some() == b""


async def test_nonsense_behind_a_request_ends_the_connection():
    """While an answer is under way nothing else can be said."""
    async with a_server(lambda _, reply: reply.begin(HTML)) as server, await RawClient.connect(server.url) as client:
        await client.send(request_bytes("GET", "/"))
        await client.read_until(b"\r\n\r\n")
        await client.send(b"nonsense\r\n\r\n")
        assert await client.read_some() == b""


async def test_a_head_request_gets_no_body():
    """The length is that of the answer to GET."""
    async with a_server(echo) as server, await RawClient.connect(server.url) as client:
        await client.send(request_bytes("HEAD", "/") + request_bytes("GET", "/"))
        data = await client.read_until(b"GET / None ")

    assert data.count(b"HTTP/1.1 200 OK") == 2
    assert data.count(b"HEAD / None") == 0


async def test_a_client_that_waits_is_told_to_go_on():
    """``Expect: 100-continue`` is answered before the body has come."""
    async with a_server(echo) as server, await RawClient.connect(server.url) as client:
        await client.send(request_bytes("POST", "/", None, [("Expect", "100-continue"), ("Content-Length", "2")]))
        assert await client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"ok")
        assert (await client.read_answer()).body == b"POST / None ok"


@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
async def test_a_client_that_leaves_is_noticed(how):
    """However the connection ends, whoever was to be answered is told once that it is over."""
    told: list[str] = []

    def handle(_: Request, reply: Reply) -> None:
        reply.on_gone = lambda: told.append("gone")
        reply.on_over = lambda: told.append("over")
        reply.begin(HTML)

    async with a_server(handle) as server:
        client = await RawClient.connect(server.url)
        await client.send(request_bytes("GET", "/"))
        await client.read_until(b"\r\n\r\n")
        getattr(client, how)()
        await becomes(lambda: told == ["gone", "over"])
        assert not server.connections
        client.close()


async def test_an_answer_is_over_once():
    """The end of the answer is told, and what is done to it later is no second end."""
    told: list[str] = []

    def handle(_: Request, reply: Reply) -> None:
        reply.on_over = lambda: told.append("over")
        reply.on_gone = lambda: told.append("gone")
        reply.answer(200, b"", HTML)
        reply.end()

    async with a_server(handle) as server, await RawClient.connect(server.url) as client:
        await client.request("GET", "/")
        await client.request("GET", "/")

    assert told == ["over", "over"]


async def test_an_answer_may_come_byte_by_byte():
    """Each byte is a write of its own, the whole is the same, and the connection can be used again."""

    def handle(request: Request, reply: Reply) -> None:
        reply.is_bytewise = True
        stream(request, reply)

    async with a_server(handle) as server, await RawClient.connect(server.url) as client:
        first = await client.request("GET", "/")
        second = await client.request("GET", "/")

    assert (first.body, second.body) == (b"onetwo", b"onetwo")
    assert len(first.reads) > 20


async def test_a_connection_may_end_in_the_middle():
    """A FIN comes after what was sent, a RST at once; both cut an answer that promised more."""
    ends = []
    for how in (Reply.close, Reply.reset):
        replies: list[Reply] = []
        async with a_server(lambda _, reply, replies=replies: replies.append(reply)) as server:
            client = await RawClient.connect(server.url)
            await client.send(request_bytes("GET", "/"))
            await becomes(lambda replies=replies: bool(replies))
            replies[0].promise(10, HTML)
            replies[0].raw(b"12345")
            start = await client.read_until(b"12345")
            how(replies[0])
            ends.append((await client.read_answer(start=start)).end)
            client.close()

    assert ends == [End.CUT, End.RESET]


async def test_a_byte_by_byte_answer_may_end_in_the_middle():
    """What was written before the end still arrives."""

    def handle(_: Request, reply: Reply) -> None:
        reply.is_bytewise = True
        reply.promise(10, HTML)
        reply.raw(b"12345")
        reply.close()

    async with a_server(handle) as server, await RawClient.connect(server.url) as client:
        answer = await client.request("GET", "/")

    assert (answer.end, answer.body) == (End.CUT, b"12345")


async def test_a_fault_of_ours_is_a_bare_500(caplog):
    """An exception in a handler is told to the log and not to the client; after the head it ends the connection."""
    begins = iter([False, True])

    def handle(_: Request, reply: Reply) -> None:
        if next(begins):
            reply.begin(HTML)
        raise KeyError("secret")

    async with a_server(handle) as server, await RawClient.connect(server.url) as client:
        first = await client.request("GET", "/")
        second = await client.request("GET", "/")

    assert (first.status, first.body) == (500, b"Internal Server Error")
    assert second.end is End.CUT
    assert caplog.text.count("GET / failed") == 2


async def test_a_slow_reader_is_noticed():
    """When the client does not read, the answer is paused, and told when it may go on."""
    replies: list[Reply] = []

    def handle(_: Request, reply: Reply) -> None:
        reply.begin(HTML)
        replies.append(reply)

    async with a_server(handle) as server, await RawClient.connect(server.url, receive_buffer_bytes=4096) as client:
        await client.send(request_bytes("GET", "/"))
        await becomes(lambda: bool(replies))
        resumed = asyncio.Event()
        replies[0].on_resume = resumed.set
        while not replies[0].is_paused:
            replies[0].send(b"x" * 65536)
        while not resumed.is_set():
            await client.read_some()
        assert not replies[0].is_paused


async def test_idle_connections_are_closed():
    """A kept connection without a request is closed by the server in its time, which is uvicorn's five seconds."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(echo, set(), 0.1), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, await RawClient.connect(url) as client:
        await client.request("GET", "/")
        await client.request("GET", "/")
        assert await client.read_some() == b""

    assert KEEP_ALIVE_SECONDS == 5.0


async def test_a_port_can_be_given_up_and_taken_again():
    """While it is, new connections are refused, idle ones ended, and an answer under way goes on."""
    replies: list[Reply] = []

    def handle(request: Request, reply: Reply) -> None:
        if request.path == "/slow":
            reply.begin(HTML)
            replies.append(reply)
        else:
            reply.answer(200, b"", HTML)

    async with a_server(handle) as server:
        idle, busy = [await RawClient.connect(server.url) for _ in range(2)]
        await idle.request("GET", "/")
        await busy.send(request_bytes("GET", "/slow"))
        await becomes(lambda: bool(replies))
        await server.refuse()
        await server.refuse()
        assert not server.is_open
        assert await idle.read_some() == b""
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(server.url)
        replies[0].end()
        assert (await busy.read_answer()).end is End.COMPLETE

        await server.open()
        await server.open()
        async with await RawClient.connect(server.url) as client:
            assert (await client.request("GET", "/")).status == 200
        for client in (idle, busy):
            client.close()


async def test_a_server_that_is_gone_resets_its_connections():
    """What a killed process looks like: resets, and then refusals."""
    async with a_server(lambda _, reply: reply.begin(HTML)) as server:
        client = await RawClient.connect(server.url)
        await client.send(request_bytes("GET", "/"))
        start = await client.read_until(b"\r\n\r\n")
        server.drop()
        assert (await client.read_answer(start=start)).end is End.RESET
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(server.url)
        client.close()


async def becomes(condition: Callable[[], bool]) -> None:
    """Wait until it holds. TimeoutError if it never does."""
    async with asyncio.timeout(5):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)
