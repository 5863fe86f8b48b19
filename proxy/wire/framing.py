"""Where an HTTP/1.1 message ends: heads of answers, and bodies in chunks.

Sans-IO. Bytes of a peer go in, payload comes out; whatever cannot be read the same way by everybody raises `FramingError`,
because two parsers that disagree about the end of a message are how requests get smuggled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

import httptools
import msgspec

MAX_HEAD_BYTES = 64 * 1024
MAX_INTERIM_HEADS = 16  # before an answer, in one read
MAX_SIZE_LINE_BYTES = 256  # of a chunk, with its extensions
MAX_TRAILER_BYTES = 8 * 1024

_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")
_FRAMING_FIELDS = (b"content-length:", b"transfer-encoding:")  # which no trailer may have (RFC 9110, 6.5.1)
_RETRY_AFTER = re.compile(rb"^retry-after:[ \t]*(\d{1,6})[ \t]*\r$", re.MULTILINE)
_PLAIN_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}")
_SIZES = {b"%x" % size: size for size in range(2048)}  # as nearly all chunks write theirs
# Headers that belong to one connection (RFC 9110, 7.6.1).
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_PASSED = HOP_BY_HOP | {
    b"alt-svc",  # for the whole origin, as the two like it; that is the gateway's
    b"clear-site-data",
    b"content-length",
    b"server-timing",
    b"set-cookie",
    b"strict-transport-security",
    b"x-accel-buffering",
    b"x-request-id",
    b"x-ridgeline-pool",
    b"x-ridgeline-worker",
}
_NOTED = _NOT_PASSED | {b"cache-control", b"content-encoding", b"content-type"}  # everything that is not simply passed on


class FramingError(Exception):
    """The peer's bytes have no agreed meaning. The text names what is wrong and holds none of the peer's data."""


class Framing(Enum):
    """How the client is told where the body ends."""

    LENGTH = "length"  # the worker's Content-Length
    CHUNKED = "chunked"
    CLOSE = "close"  # by the end of the connection, for HTTP/1.0


class AnswerHead(msgspec.Struct, eq=False, gc=False):
    """Status line and headers of a worker's answer, with what its framing says about the body."""

    status: int
    passed: bytes  # the header lines that a client gets: end-to-end ones, no cookies
    content_length: int | None
    is_chunked: bool
    keeps_alive: bool
    content_type: bytes
    is_encoded: bool  # a Content-Encoding other than identity
    is_json: bool  # the body is JSON that can be read as it is
    streams: bool  # the body is a stream of server-sent events, encoded or not
    is_event_stream: bool  # and it can be read as it is

    @property
    def retry_after_seconds(self) -> float | None:
        """When the worker wants to be asked again; None where it does not say so in seconds."""
        found = _RETRY_AFTER.search(self.passed)
        return None if found is None else float(found[1])


class _HeaderList:
    """Callback target of httptools; a fresh one for each head."""

    __slots__ = ("headers",)

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))


def parse_answer_head(head: bytes) -> AnswerHead:
    """Read a complete head, blank line included.

    Raises `FramingError` for a head that is no HTTP/1 or whose length fields contradict each other.
    """
    target = _HeaderList()
    parser = httptools.HttpResponseParser(target)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade as upgrade:
        raise FramingError("the worker tried to switch protocols") from upgrade
    except httptools.HttpParserError as error:
        raise FramingError(f"unreadable head ({type(error).__name__})") from error
    status = parser.get_status_code()
    content_length: int | None = None
    is_chunked = False
    is_encoded = False
    has_cache_control = False
    content_type = b""
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        raise FramingError("a version other than HTTP/1.1 and HTTP/1.0")
    closes = version != "1.1"
    named: set[bytes] | None = None  # fields that a Connection header keeps to this connection
    lines: list[bytes] = []
    for name, value in target.headers:
        if name not in _NOTED:
            lines.append(b"%b: %b\r\n" % (name, value))
        elif name == b"content-length":
            if content_length is not None or not value.isdigit() or len(value) > 18:
                raise FramingError("more than one length, or one that is no number")
            content_length = int(value)
        elif name == b"transfer-encoding":
            if is_chunked or value.strip().lower() != b"chunked":
                raise FramingError("a transfer coding other than chunked")
            is_chunked = True
        elif name == b"content-type":
            content_type = value.strip().lower()
            lines.append(b"%b: %b\r\n" % (name, value))
        elif name == b"content-encoding":
            is_encoded = value.strip().lower() not in (b"", b"identity")
            lines.append(b"%b: %b\r\n" % (name, value))
        elif name == b"cache-control":
            has_cache_control = True
            lines.append(b"%b: %b\r\n" % (name, value))
        elif name == b"connection":
            options = {option.strip() for option in value.lower().split(b",")}
            named = (named or set()) | options
    if is_chunked and content_length is not None:
        raise FramingError("both a length and a transfer coding")
    if status in (204, 304):
        content_length, is_chunked = 0, False
    if named:
        closes = b"close" in named or (closes and b"keep-alive" not in named)
        lines = [line for line in lines if line.partition(b":")[0] not in named]
    streams = content_type.startswith(b"text/event-stream")
    if streams:
        # Proxies in front must not collect a stream.
        lines.append(
            b"x-accel-buffering: no\r\n" if has_cache_control else b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
        )
    keeps_alive = not closes and (is_chunked or content_length is not None)
    is_json = not is_encoded and content_type.startswith(b"application/json")
    return AnswerHead(
        status,
        b"".join(lines),
        content_length,
        is_chunked,
        keeps_alive,
        content_type,
        is_encoded,
        is_json,
        streams,
        streams and not is_encoded,
    )


def take_answer_head(data: bytes, parse: Callable[[bytes], AnswerHead] = parse_answer_head) -> tuple[AnswerHead | None, bytes]:
    """The final head at the beginning of ``data`` and what lies behind it; ``None`` and ``data`` while it is not complete.

    Interim heads (1xx) are passed over. Raises `FramingError` for an unreadable head, one without end, and a redirect, which
    is never followed and would name the worker to the client.
    """
    start = 0
    for _ in range(MAX_INTERIM_HEADS):
        end = data.find(b"\r\n\r\n", start) + 4
        if (end if end >= 4 else len(data)) - start > MAX_HEAD_BYTES:
            raise FramingError("a head that is too large")
        if end < 4:
            return None, data[start:]
        head = parse(data[start:end])
        start = end
        if head.status >= 400 or 200 <= head.status < 300:
            return head, data[end:]
        if head.status >= 300:
            raise FramingError("a redirect, which is not followed")
        if head.status < 100:
            raise FramingError("a head without a status")
    raise FramingError("interim answers without end")


_AT_SIZE, _IN_DATA, _AFTER_DATA, _IN_TRAILER, _ENDED = range(5)


class ChunkDecoder:
    """Takes chunked transfer coding apart, however the bytes are cut.

    Call `feed` with what arrived until `ended`; `rest` then holds what lay behind the end of the message.
    """

    __slots__ = ("_left", "_line", "_state", "_trailer_bytes", "rest")

    def __init__(self) -> None:
        self._state = _AT_SIZE
        self._left = 0
        self._line = b""
        self._trailer_bytes = 0
        self.rest = b""

    def __repr__(self) -> str:
        names = ("at a size", "in data", "after data", "in the trailer", "ended")
        return f"<ChunkDecoder {names[self._state]}, {self._left} bytes left>"

    @property
    def ended(self) -> bool:
        """Whether the whole message has been read."""
        return self._state == _ENDED

    @property
    def is_at_edge(self) -> bool:
        """Whether the next byte is the first of a chunk's size line."""
        return self._state == _AT_SIZE and not self._line

    def feed(self, data: bytes) -> bytes:
        """Give back the payload in ``data``, joined. Raises `FramingError`; the decoder is of no use afterwards."""
        pieces: list[bytes] = []
        position, size = 0, len(data)
        while position < size:
            state = self._state
            if state == _IN_DATA:
                end = position + self._left
                if end > size:
                    pieces.append(data[position:])
                    self._left -= size - position
                    break
                pieces.append(data[position:end])
                position = end
                self._state = _AFTER_DATA
                self._left = 2
            elif state == _AFTER_DATA:
                expected = b"\r\n"[2 - self._left :]
                found = data[position : position + self._left]
                if found != expected[: len(found)]:
                    raise FramingError("a chunk is longer than its size says")
                position += len(found)
                self._left -= len(found)
                if not self._left:
                    self._state = _AT_SIZE
            elif state == _AT_SIZE:
                line, position = self._take_line(data, position, MAX_SIZE_LINE_BYTES)
                if line is None:
                    break
                match = _SIZE.fullmatch(line)
                if match is None:
                    raise FramingError("a chunk size that is no hexadecimal number")
                self._left = int(match[1], 16)
                self._state = _IN_DATA if self._left else _IN_TRAILER
            elif state == _IN_TRAILER:
                line, position = self._take_line(data, position, MAX_TRAILER_BYTES)
                if line is None:
                    break
                self._trailer_bytes += len(line)
                if self._trailer_bytes > MAX_TRAILER_BYTES:
                    raise FramingError("trailer fields without end")
                if not line:
                    self._state = _ENDED
                elif _TRAILER.fullmatch(line) is None or line.lower().startswith(_FRAMING_FIELDS):
                    raise FramingError("a trailer line that is no trailer field")  # it could be the next message's head
            else:
                break
        if self._state == _ENDED and position < size:
            self.rest += data[position:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_line(self, data: bytes, position: int, limit: int) -> tuple[bytes | None, int]:
        """One line up to CR LF, which is left out, and where the next begins; None while its end has not arrived."""
        end = data.find(b"\n", position)
        part = data[position:] if end < 0 else data[position : end + 1]
        line = self._line + part if self._line else part
        if len(line) > limit:
            raise FramingError("a line of the chunked coding is too long")
        if end < 0:
            self._line = line
            return None, len(data)
        if not line.endswith(b"\r\n"):
            raise FramingError("a bare line feed in the chunked coding")
        self._line = b""
        return line[:-2], end + 1


def split_plain_chunks(data: bytes) -> tuple[list[bytes], bool] | None:
    """The payloads of ``data`` if it is nothing but plain whole chunks, and whether the end of the message is the last of them.

    ``None`` for everything else: an unfinished chunk, extensions, trailer fields, bytes behind the end.
    """
    pieces: list[bytes] = []
    position, size = 0, len(data)
    while position < size:
        line_end = data.find(b"\r\n", position, position + 10)
        if line_end < 0:
            return None
        digits = data[position:line_end]
        known = _SIZES.get(digits)
        if known is not None:
            length = known
        elif _PLAIN_SIZE.fullmatch(digits) is not None:
            length = int(digits, 16)
        else:
            return None
        start = line_end + 2
        position = start + length + 2
        if position > size or data[position - 2 : position] != b"\r\n":
            return None
        if not length:
            return (pieces, True) if position == size and digits == b"0" else None
        pieces.append(data[start : position - 2])
    return pieces, False


def _size_line(total: int) -> bytes:
    """The size line of the one chunk that makes up ``total`` bytes with its framing; impossible bytes if none can."""
    for digits in range(1, 5):
        length = total - digits - 4
        if length > 0 and len(b"%x" % length) == digits:
            return b"%x\r\n" % length
    return b"\0"


SIZE_LINES: tuple[bytes, ...] = tuple(_size_line(total) for total in range(8192))
"""For each length of a read, the only bytes it can begin with if it is exactly one plain chunk (lower-case size)."""
