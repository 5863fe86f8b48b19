"""What h11, a strict parser that many programs use, reads in the bytes of a client or of a worker."""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11

_MORE_BLANKS = re.compile(rb"\A([A-Z]+) +([^ \r\n]+) +(HTTP/)")
LARGEST_HEAD_BYTES = 128 * 1024  # more than the gateway takes


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request."""

    method: bytes
    target: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; interim ones before it are not told."""

    status: int
    body: bytes


def requests_in(data: bytes) -> list[Request]:
    """The whole requests at the beginning of ``data``, up to where h11 refuses, waits, or would close.

    Two liberties that RFC 9112 gives (sections 2.2 and 3), and that the gateway's parser takes, are taken for h11 beforehand:
    line ends before a request are skipped, and so are more blanks than one around its target.
    """
    found: list[Request] = []
    while data:
        data = _MORE_BLANKS.sub(rb"\1 \2 \3", data.lstrip(b"\r\n"), count=1)
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST_HEAD_BYTES)
        try:
            connection.receive_data(data)
            read = _message(connection)
        except h11.RemoteProtocolError:
            break
        if read is None:
            break
        head, body = read
        assert isinstance(head, h11.Request)
        found.append(Request(head.method, head.target, body))
        if connection.their_state not in (h11.DONE, h11.MIGHT_SWITCH_PROTOCOL):  # an offer to switch is not taken
            break
        data = connection.trailing_data[0]
    return found


def answer_in(data: bytes, *, closes: bool) -> Answer | None:
    """The whole answer to a POST at the beginning of ``data``, or None. With ``closes`` the connection ends behind it."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD_BYTES)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    try:
        connection.receive_data(data)
        if closes:
            connection.receive_data(b"")
        read = _message(connection)
    except h11.RemoteProtocolError:
        return None
    return Answer(read[0].status_code, read[1]) if read and isinstance(read[0], h11.Response) else None


def _message(connection: h11.Connection) -> tuple[h11.Request | h11.Response, bytes] | None:
    """The next whole message, or None where there is none yet."""
    head: h11.Request | h11.Response | None = None
    body = b""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request | h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return head, body
        elif not isinstance(event, h11.InformationalResponse):  # waits, pauses or ends
            return None
