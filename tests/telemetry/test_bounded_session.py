"""A receiver that drips or floods its answer, or sends elsewhere, is let go in time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import requests

from telemetry.sinks.bounded_session import MOST_ANSWER_BYTES, BoundedSession

DEADLINE_SECONDS = 0.4
Talk = Callable[[socket.socket, threading.Event], None]


@contextmanager
def receiver(talk: Talk) -> Iterator[str]:
    """Its URL; `talk` gets each connection after the request, and an event that says that the test is over."""
    is_over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    while connection.recv(65536):
                        talk(connection, is_over)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def dripping(first: bytes) -> Talk:
    def talk(connection: socket.socket, is_over: threading.Event) -> None:
        connection.sendall(first)
        while not is_over.wait(0.05):
            connection.sendall(b"x")

    return talk


def saying(answer: bytes) -> Talk:
    return lambda connection, _: connection.sendall(answer)


def post(session: BoundedSession, url: str) -> requests.Response:
    return session.request("POST", url, data=b"x", timeout=10)


@pytest.mark.parametrize(
    "first",
    [b"", b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"],
)
def test_the_deadline_is_for_the_whole_exchange(first: bytes) -> None:
    """Bytes that keep coming, in the head or the body, do not put it off."""
    began_at = time.monotonic()
    with receiver(dripping(first)) as url, BoundedSession(DEADLINE_SECONDS) as session:
        with pytest.raises(requests.RequestException, match="no whole answer within"):
            post(session, url)
        assert time.monotonic() - began_at < 5


def test_the_callers_time_is_kept_where_it_is_shorter() -> None:
    """What is left of an export's time bounds a second attempt."""
    began_at = time.monotonic()
    with receiver(dripping(b"")) as url, BoundedSession() as session:
        with pytest.raises(requests.RequestException):
            session.request("POST", url, data=b"x", timeout=0.2)
        assert time.monotonic() - began_at < 5


@pytest.mark.parametrize("framing", [b"", b"content-length: 1000000000\r\n"])
def test_a_flood_is_not_read(framing: bytes) -> None:
    """Of an answer no more than the bound is kept, and the call fails."""

    def talk(connection: socket.socket, is_over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n")
        while not is_over.is_set():
            connection.sendall(b"x" * 65536)

    with receiver(talk) as url, BoundedSession() as session, pytest.raises(requests.RequestException, match="over 65536"):
        post(session, url)


def test_an_answer_within_the_bound() -> None:
    """It is there as ever, and the connection goes on being used."""
    body = b"y" * MOST_ANSWER_BYTES
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    with receiver(saying(answer)) as url, BoundedSession() as session:
        found = [post(session, url) for _ in range(2)]

    assert [(each.status_code, each.content) for each in found] == [(200, body)] * 2


def test_redirects_are_not_followed() -> None:
    """Nor is one taken for a success."""
    answer = b"HTTP/1.1 307 x\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    with receiver(saying(answer)) as url, BoundedSession() as session, pytest.raises(requests.TooManyRedirects, match="307"):
        post(session, url)


def test_closing_ends_what_is_under_way() -> None:
    """From another thread, long before the deadline."""
    began_at = time.monotonic()
    with receiver(dripping(b"")) as url, BoundedSession() as session:
        closer = threading.Timer(0.2, session.close)
        closer.start()
        with pytest.raises(requests.RequestException):
            post(session, url)
        closer.join()

    assert time.monotonic() - began_at < 5
