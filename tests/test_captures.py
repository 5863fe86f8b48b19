"""The captured exchanges are whole, and load as they were recorded."""

from __future__ import annotations

import json

import pytest

from tests import captures

INCOMPLETE = {
    "chat_while_paused",
    "midstream_server_sigkill",
    "sigterm_chat_nonstream",
    "sigterm_default_chat_nonstream",
    "sigterm_default_chat_stream",
    "sigterm_default_completion_stream",
    "sigterm_keepalive_chat_nonstream",
    "sigterm_keepalive_chat_stream",
    "sigterm_keepalive_completion_stream",
}


@pytest.mark.parametrize("name", captures.names())
def test_a_capture_loads(name: str) -> None:
    """Every file has a request, a response whose framing is whole unless it is known not to be, and reads that cover it."""
    capture = captures.load(name)

    assert capture.request.split(b" ")[0] in {b"GET", b"POST"}
    assert capture.complete is (name not in INCOMPLETE)
    assert capture.response.startswith(capture.response_head)
    assert sum(count for _, _, count in capture.reads) in {0, len(capture.response)}
    assert [offset for _, offset, _ in capture.reads] == sorted(offset for _, offset, _ in capture.reads)


def test_bytes_are_as_captured() -> None:
    """Request and response keep their line ends, and the payload is the events without chunk sizes."""
    capture = captures.load("chat_stream")
    head, _, body = capture.request.partition(b"\r\n\r\n")

    assert b"Content-Length: 155" in head
    assert len(body) == 155
    assert json.loads(body)["stream"] is True
    assert capture.response_head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert capture.response.endswith(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    assert capture.payload.startswith(b'data: {"id":')
    assert capture.payload.endswith(b"\n\ndata: [DONE]\n\n")
    assert capture.response_body.startswith(b"101\r\ndata: ")


def test_a_request_that_was_left_out_is_empty() -> None:
    """Where the file kept no request body, none is made up."""
    assert captures.load("err_too_long").request.endswith(b"\r\n\r\n")


def test_a_missing_capture_is_an_error() -> None:
    """A name that is not there raises, so that a test cannot pass on nothing."""
    with pytest.raises(FileNotFoundError):
        captures.load("chat_straem")
