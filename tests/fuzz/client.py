"""A client's connection: the requests that the gateway reads are those that h11 reads, however their bytes are cut."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import h11

from proxy.serving.client import ClientConnection
from proxy.serving.endpoints import NO_ENDPOINT, Endpoint
from proxy.wire.errors import ProxyError
from proxy.wire.known_heads import KnownHeads
from proxy.wire.request_head import RequestHead, parse_request_head
from routing.topology import Limits
from tests.fuzz.inputs import in_several_ways, take_apart
from tests.integration.two_parsers import requests_in

WORDS = (
    *(b"\r\n", b"\r\n\r\n", b"Host: x\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    *(b"Connection: close\r\n", b"Expect: 100-continue\r\n", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"POST /a", b"GET /livez"),
    *(b"http://x/", b"Connection: keep-alive, X-A\r\n", b"X-A: ", b"5\r\nabcde\r\n", b";a=b", b"\t", b"\n", b"identity"),
    *(b"Content-Encoding: gzip\r\n", b"Authorization: Bearer k\r\n", b"X-Request-Id: a\r\n", b"?a=b", b"traceparent: 00-"),
)
LONGEST = 600


Taken = tuple[RequestHead, bytes | None]
"""A request with its body; None where nobody looks at one, as behind a probe."""


class _Wire(asyncio.Transport):
    """Takes everything, and remembers whether it was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.has_ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.has_ended
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.has_ended = True

    abort = close


class _Exchange:
    """Answers every request at once, and keeps it."""

    def __init__(self, state: Any, client: ClientConnection, head: RequestHead, endpoint: Endpoint, since: float) -> None:
        self._state, self._client, self.head = state, client, head

    def admit(self) -> None:
        """Everybody may."""

    def hold(self, size: int) -> None:
        """There is room."""

    def check_size(self, size: int) -> None:
        """There is no limit."""

    def run(self, body: bytes, now: float) -> None:
        self._state.requests.append((self.head, body))
        self._client.answer_done(True)

    def fail(self, error: ProxyError) -> None:
        self._state.faults += 1
        self._client.refuse(error, "id")


class _Connection(ClientConnection):
    __slots__ = ()

    def _reply_to_probe(self, head: RequestHead, rest: bytes) -> None:
        has_body = head.is_chunked or bool(head.content_length)
        self._shared.requests.append((head, None if has_body else b""))  # type: ignore[attr-defined]
        super()._reply_to_probe(head, rest)


def _read(pieces: list[bytes], parse: Callable[[bytes], RequestHead]) -> tuple[list[Taken], int]:
    calls: deque[Callable[[], None]] = deque()
    state: Any = SimpleNamespace(
        clients=set(),
        exchanges=set(),
        exchange_type=_Exchange,
        requests=[],
        faults=0,
        is_draining=False,
        is_closing=False,
        request_heads=KnownHeads(parse),
        endpoints=SimpleNamespace(find=lambda method, path: NO_ENDPOINT),
        topology=SimpleNamespace(is_settled=True, limits=Limits()),
        loop=SimpleNamespace(call_soon=calls.append),
    )
    wire = _Wire()
    connection = _Connection(state)
    connection.connection_made(wire)
    for piece in pieces:
        if wire.has_ended:
            break
        connection.data_received(piece)
        while calls:
            calls.popleft()()
    return state.requests, state.faults


def check(data: bytes, parse: Callable[[bytes], RequestHead] = parse_request_head) -> None:
    """Each request is the one that h11 reads in its place, and what goes on to a worker holds one request for h11."""
    _, pieces = take_apart(data)
    stream = b"".join(pieces)
    whole, _ = _read([stream] if stream else [], parse)
    cut, _ = _read(pieces, parse)

    assert [_plain(*one) for one in cut] == [_plain(*one) for one in whole]
    expected = requests_in(stream)
    kept = _before_a_kept_old_one(whole)
    for (head, body), one in zip_longest(kept, expected[: len(kept)]):
        if body is not None:
            assert one is not None
            assert (head.method, head.path, body) == (one.method, _path(one.target), one.body)
        _check_forwarded(head, body or b"")


def _before_a_kept_old_one(whole: list[Taken]) -> list[Taken]:
    """Up to the first request of HTTP/1.0, behind which h11 always closes, also where both sides want to go on."""
    old = next((at for at, (head, _) in enumerate(whole) if not head.is_http11), len(whole))
    return whole[: old + 1]


def _plain(head: RequestHead, body: bytes | None) -> tuple[object, ...]:
    return (head.method, head.path, head.query, head.keeps_alive, head.content_length, head.forwarded, head.api_key, body)


def _path(target: bytes) -> bytes:
    """The path of a target as the gateway understands it: the host of the absolute form decides nothing."""
    if target.startswith((b"http://", b"https://")):
        _, _, behind = target.partition(b"://")
        target = b"/" + behind.partition(b"/")[2]
    return target.partition(b"?")[0]


def _check_forwarded(head: RequestHead, body: bytes) -> None:
    lines = head.forwarded
    written = b"POST /x HTTP/1.1\r\nhost: w\r\n%bcontent-length: %d\r\n\r\n%b" % (lines, len(body), body)
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(written)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    names = [name for name, _ in request.headers]
    assert names.count(b"host") == names.count(b"content-length") == 1
    assert not {b"connection", b"transfer-encoding", b"authorization", b"cookie", b"x-api-key", b"te", b"upgrade"} & {*names}


def seeds() -> list[bytes]:
    """Requests of each framing, one after another, and some that are refused."""
    body = b'{"model":"m"}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n%b\r\n8;a=b\r\n%b\r\n0\r\nX-T: 1\r\n\r\n" % (body[:5], body[5:])
    closes = b"GET /v1/models?a=b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    odd = (
        head
        + b"Connection: X-A, keep-alive\r\nX-A: 1\r\nCookie: a\r\nX-B: 2\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}"
    )
    probe = b"GET http://h/livez HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n\r\n"
    both = head + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    return in_several_ways([whole + whole, chunked + whole, closes + closes, odd + whole, probe + whole, both, b"\r\n" + whole])
