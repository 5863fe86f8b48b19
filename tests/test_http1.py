"""Messages are read the same however their bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http1 import Message, chunk, last_chunk

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"one\r\n") + chunk(b"two") + last_chunk()
WITH_LENGTH = b"POST /x HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"


@pytest.mark.parametrize(("is_request", "text", "body"), [(False, CHUNKED, b"one\r\ntwo"), (True, WITH_LENGTH, b"hello")])
@given(cuts=st.lists(st.integers(0, 100)))
def test_cuts_do_not_matter(cuts: list[int], *, is_request: bool, text: bytes, body: bytes) -> None:
    """A message with a second one behind it gives its body and leaves exactly the second, wherever the bytes are cut."""
    message = Message(is_request=is_request)
    whole = text + b"GET /next"
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]

    for start, end in pairwise(edges):
        message.feed(whole[start:end])

    assert message.is_complete
    assert (bytes(message.body), bytes(message.rest)) == (body, b"GET /next")


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (CHUNKED.removesuffix(last_chunk()), b"one\r\ntwo"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", b"hel"),
        (b"HTTP/1.1 200 OK\r\n", b""),
    ],
)
def test_a_cut_answer_is_not_complete(text: bytes, body: bytes) -> None:
    """An answer that ends before its framing says so is incomplete, also once the connection is closed."""
    message = Message(is_request=False)

    message.feed(text)
    message.closed()

    assert not message.is_complete
    assert message.body == body


def test_an_answer_without_framing_ends_with_the_connection() -> None:
    """Without a length and without chunks, the end of the connection is the end of the body."""
    message = Message(is_request=False)

    message.feed(b"HTTP/1.0 200 OK\r\n\r\nall of it")

    assert not message.is_complete
    message.closed()
    assert message.is_complete
    assert message.body == b"all of it"


def test_a_request_without_framing_has_no_body() -> None:
    """A request that declares nothing ends with its head; trailers of a chunked one are stepped over."""
    bare = Message(is_request=True)
    bare.feed(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    trailed = Message(is_request=True)
    trailed.feed(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"a") + b"0\r\nX-Sum: 1\r\n\r\nrest")

    assert bare.is_complete
    assert (trailed.is_complete, bytes(trailed.body), bytes(trailed.rest)) == (True, b"a", b"rest")
