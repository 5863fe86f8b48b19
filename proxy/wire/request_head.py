"""Heads of clients' requests: parsed strictly, then reduced to what is needed and what may go on to a worker.

The parser is httptools (llhttp in its strict mode) with the checks that it leaves out. Two readings of one head are how
requests get smuggled, so whatever is not plain is refused.
"""

from __future__ import annotations

import re
from hashlib import sha256

import httptools
import msgspec

from proxy.wire.errors import ClientFault
from proxy.wire.framing import HOP_BY_HOP
from proxy.wire.tracing import TraceContext, parse_traceparent

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128

_PLAIN_QUERY = re.compile(rb"[A-Za-z0-9_.,=&%-]{1,512}")
_SAFE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
# Never sent on: what belongs to this connection, what the gateway writes itself, and what identifies the client to it.
NOT_FORWARDED = HOP_BY_HOP | {
    b"accept-encoding",
    b"api-key",
    b"authorization",
    b"baggage",
    b"content-length",
    b"cookie",
    b"expect",
    b"host",
    b"x-api-key",
    b"x-data-parallel-rank",
    b"x-request-id",
}
_NOTED = NOT_FORWARDED | {b"content-encoding", b"traceparent", b"tracestate"}  # everything that is not simply sent on


class RequestHead(msgspec.Struct, gc=False):
    """One request's head."""

    method: bytes = b""
    path: bytes = b""  # without query
    query: bytes = b""  # what stood behind the question mark, if it is plain; few paths look at it
    is_http11: bool = True
    keeps_alive: bool = True
    content_length: int | None = None
    is_chunked: bool = False
    is_encoded: bool = False  # a Content-Encoding other than identity
    expects_continue: bool = False
    api_key: bytes | None = None  # what came as Bearer, or else as clients of the Anthropic API send it
    key_hash: bytes | None = None  # SHA-256 of that
    request_id: str | None = None  # the client's, if it is safe to repeat
    trace_id: str | None = None  # of `context`, or of the trace that begins here
    context: TraceContext | None = None  # the client's, if it can be read
    has_context_lines: bool = False  # a traceparent or tracestate is among what is forwarded
    forwarded: bytes = b""  # the header lines that a worker gets as they are

    def __repr__(self) -> str:  # without the key
        return f"<RequestHead {self.method!r} {self.path!r}>"


class _Collector:
    __slots__ = ("headers", "target")

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.target = b""

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))


def parse_request_head(data: bytes) -> RequestHead:
    """Read a complete head, blank line included. Raises `ClientFault` with what is wrong; the connection is then of no use."""
    found = _Collector()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # an offer to switch protocols may be ignored; CONNECT fails below for its target
    except httptools.HttpParserError as error:
        raise ClientFault("bad_request", "The request could not be read as HTTP/1.1.") from error
    head = RequestHead()
    head.method = parser.get_method()
    version = parser.get_http_version()
    if version != "1.1":
        if version != "1.0":
            raise ClientFault("http_version_not_supported", "The gateway speaks HTTP/1.1 and HTTP/1.0.", status=505)
        head.is_http11 = head.keeps_alive = False
    if len(found.headers) > MAX_HEADERS:
        raise ClientFault("too_many_headers", f"A request may have {MAX_HEADERS} header fields.", status=431)
    target = found.target
    if target[:1] == b"/" and b"?" not in target:
        head.path = target
    else:
        head.path, head.query = _path_and_query(target)
    _read_headers(head, found.headers)
    return head


def _path_and_query(target: bytes) -> tuple[bytes, bytes]:
    if target.startswith((b"http://", b"https://")):  # absolute form: the host in it decides nothing
        target = b"/" + target.split(b"/", 3)[3] if target.count(b"/") > 2 else b"/"
    if not target.startswith(b"/"):
        raise ClientFault("bad_request", "The request target must be a path.")
    path, _, query = target.partition(b"?")
    return path, query if _PLAIN_QUERY.fullmatch(query) else b""


def _read_headers(head: RequestHead, headers: list[tuple[bytes, bytes]]) -> None:
    lines: list[bytes] = []
    hosts = 0
    other_key: bytes | None = None
    has_credentials = has_parent = False
    named: set[bytes] | None = None  # fields that a Connection header keeps to this connection
    for name, value in headers:
        lowered = name.lower()
        if lowered not in _NOTED:
            lines.append(b"%b: %b\r\n" % (name, value))
        elif lowered == b"host":
            hosts += 1
        elif lowered == b"authorization":
            if has_credentials:
                raise ClientFault("bad_request", "One Authorization header is enough.")
            has_credentials = True
            scheme, _, token = value.partition(b" ")
            head.api_key = token.strip() if scheme.lower() == b"bearer" else None
        elif lowered == b"x-api-key":
            other_key = value.strip() or None
        elif lowered == b"content-length":
            if head.content_length is not None or not value.isdigit() or len(value) > 15:
                raise ClientFault("bad_request", "Content-Length must be one number.")
            head.content_length = int(value)
        elif lowered == b"x-request-id":
            head.request_id = value.decode() if head.request_id is None and _SAFE_ID.fullmatch(value) else None
        elif lowered == b"transfer-encoding":
            if head.is_chunked or value.strip().lower() != b"chunked" or not head.is_http11:
                raise ClientFault("bad_request", "The only transfer coding is chunked.", status=501)
            head.is_chunked = True
        elif lowered == b"connection":
            options = {option.strip().lower() for option in value.split(b",")}
            if b"close" in options:
                head.keeps_alive = False
            elif b"keep-alive" in options and not head.is_http11:
                head.keeps_alive = True
            named = (named or set()) | (options - NOT_FORWARDED - {b"close", b""})
        elif lowered == b"expect":
            head.expects_continue = value.strip().lower() == b"100-continue"
        elif lowered == b"content-encoding":
            head.is_encoded = value.strip().lower() not in (b"", b"identity")
            lines.append(b"%b: %b\r\n" % (name, value))
        elif lowered == b"traceparent":
            # Two of them are no context: there is no telling which one is meant.
            head.context = context = None if has_parent else parse_traceparent(value.strip(b" \t"))
            head.trace_id = context and context.trace_id
            head.has_context_lines = has_parent = True
            lines.append(b"%b: %b\r\n" % (name, value))
        elif lowered == b"tracestate":
            head.has_context_lines = True
            lines.append(b"%b: %b\r\n" % (name, value))
    if head.api_key is None and not has_credentials:
        head.api_key = other_key
    if head.api_key is not None:
        head.key_hash = sha256(head.api_key).digest()
    if head.is_chunked and head.content_length is not None:
        raise ClientFault("bad_request", "Content-Length and Transfer-Encoding exclude each other.")
    if hosts != 1 and (hosts or head.is_http11):
        raise ClientFault("bad_request", "Exactly one Host header is needed.")
    if named:
        lines = [line for line in lines if line.partition(b":")[0].lower() not in named]
    head.forwarded = b"".join(lines)
