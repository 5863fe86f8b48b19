"""Bytes of what the gateway says itself: heads of answers, errors in the API's shape, and requests to workers."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from proxy.wire.errors import ProxyError
from proxy.wire.framing import AnswerHead, Framing
from telemetry.dialects import CHAT, MESSAGES, RESPONSES, Dialect

_PHRASES = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}
_STATUS_LINES = {status: b"HTTP/1.1 %d %s\r\n" % (status, phrase) for status, phrase in _PHRASES.items()}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_LENGTH, _CHUNKED = Framing.LENGTH, Framing.CHUNKED

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def status_line(status: int) -> bytes:
    """The first line of an answer with ``status``."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


def error_body(error: ProxyError, dialect: Dialect = CHAT) -> bytes:
    """The error as the OpenAI API writes one; to a client of the Anthropic API with the ``type`` that it looks for as well."""
    kind = _ERROR_TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "server_error")
    if dialect is MESSAGES and kind == "server_error":
        kind = "api_error"
    body: dict[str, object] = {"type": "error"} if dialect is MESSAGES else {}
    return msgspec.json.encode(body | {"error": {"message": error.text, "type": kind, "param": None, "code": error.code}})


def error_answer(error: ProxyError, request_id: str, *, closes: bool, dialect: Dialect = CHAT) -> bytes:
    """A whole answer for a request that ends here."""
    extra: list[tuple[bytes, bytes]] = []
    if error.retry_after_seconds is not None:
        extra.append((b"retry-after", b"%d" % error.retry_after_seconds))
    if error.allow is not None:
        extra.append((b"allow", error.allow.encode()))
    if error.status == 401:
        extra.append((b"www-authenticate", b"Bearer"))
    return json_answer(error.status, error_body(error, dialect), request_id, closes=closes, extra=extra, lines=error.lines)


def error_event(error: ProxyError, dialect: Dialect = CHAT) -> bytes:
    """The same as a server-sent event, for a stream whose status has gone out, named where the stream's own events are."""
    if dialect is RESPONSES:
        fields = {"type": "error", "code": error.code, "message": error.text, "param": None}
        return b"event: error\ndata: " + msgspec.json.encode(fields) + b"\n\n"
    name = b"event: error\n" if dialect is MESSAGES else b""
    return name + b"data: " + error_body(error, dialect) + b"\n\n"


def framed(payload: bytes, framing: Framing) -> bytes:
    """Bytes of a body of the gateway's own making, as a client with this framing gets them."""
    return b"%x\r\n%b\r\n" % (len(payload), payload) if framing is _CHUNKED else payload


def json_answer(
    status: int,
    body: bytes,
    request_id: str,
    *,
    closes: bool,
    extra: Iterable[tuple[bytes, bytes]] = (),
    lines: bytes = b"",
) -> bytes:
    """A whole answer with a JSON body; ``lines`` are whole lines of its head."""
    more = b"".join(b"%b: %b\r\n" % pair for pair in extra)
    return b"%bcontent-type: application/json\r\nx-request-id: %b\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
        status_line(status),
        request_id.encode(),
        more + lines,
        b"connection: close\r\n" if closes else b"",
        len(body),
        body,
    )


def answer_lines(
    head: AnswerHead,
    framing: Framing,
    *,
    request_id: str,
    closes: bool,
    timing: tuple[float, float, float],
    queue_seconds: float = 0.0,
    more: bytes = b"",
) -> bytes:
    """A worker's head as the client gets it, without the blank line.

    ``timing`` are the seconds of upload, connecting, and waiting for the worker's head, for ``Server-Timing``; a request that
    had to wait in the gateway has ``queue_seconds`` as well. ``more`` are lines that are added.
    """
    if head.status == 204:
        length = b""
    elif framing is _LENGTH:
        length = b"content-length: %d\r\n" % (head.content_length or 0)
    else:
        length = b"transfer-encoding: chunked\r\n" if framing is _CHUNKED else b""
    upload, connect, wait = timing
    return b"%b%bx-request-id: %b\r\nserver-timing: upload;dur=%.1f, %bconnect;dur=%.1f, wait;dur=%.1f\r\n%b%b%b" % (
        status_line(head.status),
        head.passed,
        request_id.encode(),
        1e3 * upload,
        b"queue;dur=%.1f, " % (1e3 * queue_seconds) if queue_seconds else b"",
        1e3 * connect,
        1e3 * wait,
        more,
        length,
        b"connection: close\r\n" if closes else b"",
    )
