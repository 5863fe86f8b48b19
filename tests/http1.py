"""HTTP/1.1 messages read from bytes that come in any pieces: just enough for the tests, and independent of the product."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

CRLF = b"\r\n"
HEAD_END = b"\r\n\r\n"


class Framing(Enum):
    """How the end of a body is told."""

    LENGTH = "length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until close"


@dataclass(frozen=True, slots=True)
class Head:
    """The first line and the headers of a message; header names in lower case, in the order they came."""

    raw: bytes
    first_line: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, raw: bytes) -> Head:
        """Read a head that ends with its empty line. ValueError when a header has no colon."""
        first, *lines = raw.removesuffix(HEAD_END).decode("latin-1").split("\r\n")
        headers = []
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError(f"no header: {line!r}")
            headers.append((name.lower(), value.strip()))
        return cls(raw, first, tuple(headers))

    def get(self, name: str) -> str | None:
        """The first value of a header (name in lower case), or None."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def status(self) -> int:
        """The status of a response head."""
        return int(self.first_line.split(" ", 2)[1])

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection may be used again after this message, as far as its sender is concerned."""
        said = (self.get("connection") or "").lower()
        return said != "close" and ("HTTP/1.1" in self.first_line or said == "keep-alive")


@dataclass(slots=True)
class Message:
    """One message. Call `feed` with what arrives; `rest` is what lies behind its end.

    ``is_request`` decides what a head without a declared length means: an empty body, or one that lasts until the
    connection closes; call `closed` then.
    """

    is_request: bool
    head: Head | None = None
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False
    rest: bytearray = field(default_factory=bytearray)
    _framing: Framing = Framing.LENGTH
    _missing: int = 0  # bytes until the end of the body, or of the chunk with its CRLF
    _in_trailers: bool = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes. ValueError for a malformed head or chunk size."""
        self.rest += data
        if self.head is None and not self._read_head():
            return
        if not self.is_complete:
            self._read_body()

    def closed(self) -> None:
        """The peer closed its side: ends a body that is framed by the end of the connection."""
        if self.head is not None and self._framing is Framing.UNTIL_CLOSE:
            self.is_complete = True

    def _read_head(self) -> bool:
        end = self.rest.find(HEAD_END)
        if end < 0:
            return False
        self.head = Head.parse(bytes(self.rest[: end + len(HEAD_END)]))
        del self.rest[: end + len(HEAD_END)]
        length = self.head.get("content-length")
        if not self.is_request and (self.head.status < 200 or self.head.status in (204, 304)):
            self._framing, self._missing = Framing.LENGTH, 0
        elif "chunked" in (self.head.get("transfer-encoding") or "").lower():
            self._framing = Framing.CHUNKED
        elif length is not None:
            self._framing, self._missing = Framing.LENGTH, int(length)
        else:
            self._framing = Framing.LENGTH if self.is_request else Framing.UNTIL_CLOSE
        return True

    def _read_body(self) -> None:
        match self._framing:
            case Framing.CHUNKED:
                while not self.is_complete and self._read_chunk():
                    pass
            case Framing.UNTIL_CLOSE:
                self.body += self.rest
                self.rest.clear()
            case Framing.LENGTH:
                taken = self.rest[: self._missing]
                del self.rest[: len(taken)]
                self.body += taken
                self._missing -= len(taken)
                self.is_complete = self._missing == 0

    def _read_chunk(self) -> bool:
        """Take the next piece of a chunked body; False when more bytes are needed for it."""
        if self._missing:
            taken = self.rest[: self._missing]
            del self.rest[: len(taken)]
            self.body += taken[: max(0, self._missing - len(CRLF))]
            self._missing -= len(taken)
            return self._missing == 0
        end = self.rest.find(CRLF)
        if end < 0:
            return False
        line = bytes(self.rest[:end])
        del self.rest[: end + len(CRLF)]
        if self._in_trailers:
            self.is_complete = line == b""
        elif size := int(line.split(b";")[0], 16):
            self._missing = size + len(CRLF)
        else:
            self._in_trailers = True
        return True


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk() -> bytes:
    """The chunk that ends a chunked body."""
    return b"0\r\n\r\n"
