"""What the gateway says itself: whole HTTP messages, in the API's shape, without anything that is not the client's."""

from __future__ import annotations

import json

import pytest

from proxy.wire.answers import answer_lines, error_answer, error_body, error_event, json_answer, status_line
from proxy.wire.errors import ClientFault, ProxyError, Refusal, WorkerFault, wrong_method
from proxy.wire.framing import AnswerHead, Framing, parse_answer_head
from telemetry.dialects import MESSAGES, RESPONSES
from telemetry.record import Outcome
from tests.http1 import Message


def read(answer: bytes) -> Message:
    message = Message(is_request=False)
    message.feed(answer)
    assert message.is_complete
    assert not message.rest
    return message


def a_head(*lines: bytes, status: int = 200) -> AnswerHead:
    return parse_answer_head(b"\r\n".join((b"HTTP/1.1 %d X" % status, *lines, b"", b"")))


@pytest.mark.parametrize(("status", "line"), [(200, b"OK"), (413, b"Content Too Large"), (418, b"Unknown"), (599, b"Unknown")])
def test_status_lines(status, line):
    """Every status has a line, also one that a worker made up."""
    assert status_line(status) == b"HTTP/1.1 %d %b\r\n" % (status, line)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ClientFault("c", "t"), "invalid_request_error"),
        (ClientFault("c", "t", status=404), "not_found_error"),
        (ClientFault("c", "t", status=415), "invalid_request_error"),
        (Refusal(401, "c", "t", reason="auth"), "authentication_error"),
        (Refusal(403, "c", "t", reason="auth"), "permission_error"),
        (Refusal(429, "c", "t", reason="rate"), "rate_limit_error"),
        (Refusal(503, "c", "t", reason="no_worker"), "server_error"),
        (WorkerFault("c", "t"), "server_error"),
    ],
)
def test_errors_have_the_shape_of_the_api(error, kind):
    """Message, type, param and code, as official clients read them."""
    message = read(error_answer(error, "id-1", closes=False))

    assert message.head is not None
    assert message.head.status == error.status
    assert json.loads(message.body) == {"error": {"message": "t", "type": kind, "param": None, "code": "c"}}
    assert message.head.get("x-request-id") == "id-1"
    assert message.head.get("content-type") == "application/json"
    assert message.head.get("connection") is None
    assert (message.head.get("www-authenticate") == "Bearer") is (error.status == 401)


def test_when_to_come_back():
    """An error that passes by itself says when, in whole seconds."""
    error = Refusal(503, "no_worker", "t", reason="no_worker", retry_after_seconds=2)

    head = read(error_answer(error, "id", closes=True)).head

    assert head is not None
    assert head.get("retry-after") == "2"
    assert not head.keeps_alive


def test_an_error_in_a_stream_is_an_event():
    """The same object behind the status that has gone out."""
    event = error_event(WorkerFault("worker_disconnected", 'a "quoted"\nline'))

    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:])["error"]["code"] == "worker_disconnected"


def test_errors_of_other_formats():
    """A message stream and a response stream have named events; a client of either finds type, code and text."""
    error = WorkerFault("worker_disconnected", "t")
    message, response = error_event(error, MESSAGES), error_event(error, RESPONSES)
    plain = json.loads(error_body(error, MESSAGES))

    assert message.startswith(b"event: error\ndata: {")
    assert response.startswith(b"event: error\ndata: {")
    assert plain == json.loads(message.split(b"data: ")[1])
    assert (plain["type"], plain["error"]["type"], plain["error"]["code"]) == ("error", "api_error", "worker_disconnected")
    assert json.loads(response.split(b"data: ")[1]) == {
        "type": "error",
        "code": "worker_disconnected",
        "message": "t",
        "param": None,
    }
    assert json.loads(error_body(error, RESPONSES)) == json.loads(error_body(error))


def test_a_wrong_method_is_told_the_right_one():
    """The answer has the header that goes with its status."""
    head = read(error_answer(wrong_method("GET"), "id", closes=False)).head

    assert head is not None
    assert (head.first_line.split(" ")[1], head.get("allow")) == ("405", "GET")


def test_kinds_of_errors():
    """Each kind has the outcome that its record will have."""
    errors: list[ProxyError] = [ClientFault("c", "t"), Refusal(503, "c", "t", reason="r"), WorkerFault("c", "t")]

    assert [error.outcome for error in errors] == [Outcome.CLIENT_ERROR, Outcome.REJECTED, Outcome.WORKER_ERROR]
    assert [error.reason for error in errors] == ["c", "r", "c"]
    assert [str(error) for error in errors] == ["t"] * 3


def test_json_answers_with_more_headers():
    """Additional headers stand in the head, and the length is that of the body."""
    message = read(json_answer(200, "é".encode(), "id", closes=False, extra=[(b"allow", b"POST")]))

    assert message.head is not None
    assert (message.head.get("allow"), message.head.get("content-length")) == ("POST", "2")


@pytest.mark.parametrize(
    ("framing", "line"),
    [
        (Framing.LENGTH, b"content-length: 7\r\n"),
        (Framing.CHUNKED, b"transfer-encoding: chunked\r\n"),
        (Framing.CLOSE, b""),
    ],
)
@pytest.mark.parametrize("closes", [False, True])
def test_heads_of_relayed_answers(framing, line, closes):
    """A worker's head goes on with our framing, the request's id and the gateway's own timing in milliseconds."""
    head = a_head(b"Content-Type: application/json", b"X-A: 1", b"Content-Length: 7")

    lines = answer_lines(head, framing, request_id="id-1", closes=closes, timing=(0.0015, 0.25, 1.0))

    assert lines == (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-a: 1\r\nx-request-id: id-1\r\n"
        b"server-timing: upload;dur=1.5, connect;dur=250.0, wait;dur=1000.0\r\n"
        + line
        + (b"connection: close\r\n" if closes else b"")
    )
