"""A client's connection: reads requests one after another, and writes what their exchanges give it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from enum import Enum
from time import monotonic as clock
from typing import TYPE_CHECKING, cast

from proxy.serving.endpoints import NO_ENDPOINT, PROBES
from proxy.wire import answers
from proxy.wire.errors import ClientFault, ProxyError
from proxy.wire.framing import ChunkDecoder, FramingError
from proxy.wire.request_head import MAX_HEAD_BYTES, RequestHead
from telemetry.dialects import CHAT, Dialect

if TYPE_CHECKING:
    from proxy.serving.exchange import Exchange
    from proxy.serving.state import ServingState

_MAX_AHEAD_BYTES = 1024 * 1024  # of next requests that arrive while one is being answered
_LINGER_SECONDS = 2.0  # how long a client may still send what nobody reads, so that it can read its error
_LINGER_BYTES = 64 * 1024 * 1024


class _State(Enum):
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    NEXT = "next"  # answered; what came ahead is looked at in a moment, and what comes now belongs behind it
    LINGER = "linger"  # answered; what still comes is thrown away until the client has closed
    CLOSING = "closing"  # what was written has still to go out


# Named here, since looking up a member of an enum is a call in Python 3.11.
_HEAD, _BODY, _ANSWER, _NEXT, _LINGER, _CLOSING = (
    _State.HEAD,
    _State.BODY,
    _State.ANSWER,
    _State.NEXT,
    _State.LINGER,
    _State.CLOSING,
)


class ClientConnection(asyncio.Protocol):
    """One connection of a client. At most one request is under way on it; what comes behind waits its turn."""

    __slots__ = (
        "_ahead",
        "_decoder",
        "_exchange",
        "_is_paused",
        "_lingered_bytes",
        "_missing_bytes",
        "_parts",
        "_shared",
        "_since",
        "_size",
        "_state",
        "is_open",
        "transport",
        "will_keep_alive",
    )

    transport: asyncio.Transport  # once it is made

    def __init__(self, state: ServingState) -> None:
        self._shared = state
        self._state = _HEAD
        self._exchange: Exchange | None = None
        self._ahead = b""  # bytes not looked at yet
        self._since = clock()  # when this state began; in HEAD since the first byte, if there is one
        self._parts: list[bytes] = []  # of the body
        self._size = 0
        self._missing_bytes = 0
        self._decoder: ChunkDecoder | None = None
        self._lingered_bytes = 0
        self._is_paused = False  # the client takes no more bytes for now
        self.is_open = False
        self.will_keep_alive = True

    def __repr__(self) -> str:
        return f"<ClientConnection {self._state.value}, {self._exchange!r}>"

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self._shared.clients.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; a request that is under way goes with it."""
        self.is_open = False
        self._shared.clients.discard(self)
        exchange, self._exchange = self._exchange, None
        self._parts = []
        if exchange is not None:
            exchange.client_gone()

    def eof_received(self) -> bool:
        """A client that will send no more has left, even if it could still read."""
        if self._exchange is not None:
            self.abort()
        return False

    def pause_writing(self) -> None:
        """The client reads more slowly than its answer arrives."""
        self._is_paused = True
        if self._exchange is not None:
            self._exchange.client_paused(clock())

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._is_paused = False
        if self._exchange is not None:
            self._exchange.client_resumed(clock())
        elif self._state is _ANSWER:
            self._await_next()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._state is _HEAD:
            if not self._ahead:
                self._since = clock()
            self._take_head(self._ahead + data if self._ahead else data)
        elif self._state is _BODY:
            self._take_body(data)
        elif self._state is _ANSWER or self._state is _NEXT:
            self._ahead += data
            if len(self._ahead) > _MAX_AHEAD_BYTES:
                # A client may send its next request early, but not without bound. Not to read would be no way out: then its
                # leaving would go unseen.
                self.abort()
        else:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > _LINGER_BYTES:
                self.abort()  # an error was answered, and it does not stop sending

    # Requests

    def _take_head(self, data: bytes) -> None:
        if data[:1] <= b"\r":  # left over from the last request, as some clients do
            data = data.lstrip(b"\r\n")
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._ahead = data
            if len(data) > MAX_HEAD_BYTES:
                self._refuse_unread(
                    ClientFault("head_too_large", f"A request head may have {MAX_HEAD_BYTES} bytes.", status=431)
                )
            elif b"\n\n" in data or (b"\n" in data and b"\r\n" not in data):
                self._refuse_unread(ClientFault("bad_request", "Lines of a request head end in CR LF."))
            elif data and not data[:1].isalpha():  # a TLS handshake, as a rule
                self._refuse_unread(ClientFault("bad_request", "This listener speaks plain HTTP/1.1."))
            return
        self._ahead = b""
        if end > MAX_HEAD_BYTES:
            self._refuse_unread(ClientFault("head_too_large", f"A request head may have {MAX_HEAD_BYTES} bytes.", status=431))
            return
        try:
            head = self._shared.request_heads.read(data[: end + 4])
        except ClientFault as fault:
            self._refuse_unread(fault)
            return
        self._begin(head, data[end + 4 :])

    def _begin(self, head: RequestHead, rest: bytes) -> None:
        state = self._shared
        if head.method != b"POST" and head.path in PROBES and head.method in (b"GET", b"HEAD"):
            self._reply_to_probe(head, rest)
            return
        endpoint = state.endpoints.find(head.method, head.path)
        self._exchange = exchange = state.exchange_type(state, self, head, endpoint, self._since)
        state.exchanges.add(exchange)
        self.will_keep_alive = head.keeps_alive and not state.is_draining
        has_body = head.is_chunked or bool(head.content_length)
        self._state = _BODY
        try:
            exchange.admit()
        except ProxyError as error:
            size = head.content_length or 0
            if not head.is_chunked and len(rest) >= size:  # the whole body is here: pass it over
                self._state = _ANSWER
                self._ahead = rest[size:]
            exchange.fail(error)
            return
        self._parts = []
        self._size = 0
        self._decoder = ChunkDecoder() if head.is_chunked else None
        self._missing_bytes = head.content_length or 0
        if head.expects_continue and has_body and not rest and head.is_http11:
            self.write(answers.CONTINUE)
        if has_body and not rest:
            return
        self._take_body(rest)

    def _take_body(self, data: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        decoder = self._decoder
        if decoder is None:
            missing = self._missing_bytes
            if len(data) < missing:
                self._missing_bytes = missing - len(data)
                self._keep(exchange, data)
                return
            if len(data) > missing:
                self._ahead = data[missing:]
                data = data[:missing]
        else:
            try:
                data = decoder.feed(data)
                self._size += len(data)
                exchange.check_size(self._size)
            except FramingError as error:
                self._refuse_body(ClientFault("bad_request", f"The chunked body could not be read: {error}."))
                return
            except ProxyError as error:
                self._refuse_body(error)
                return
            if not decoder.ended:
                self._keep(exchange, data)
                return
            self._ahead = decoder.rest
        parts = self._parts
        if parts:
            parts.append(data)
            data = b"".join(parts)
            self._parts = []
        self._state = _ANSWER
        exchange.run(data, clock())

    def _keep(self, exchange: Exchange, part: bytes) -> None:
        try:
            exchange.hold(len(part))
        except ProxyError as error:
            self._refuse_body(error)
        else:
            self._parts.append(part)

    def _refuse_body(self, error: ProxyError) -> None:
        self.will_keep_alive = False
        assert self._exchange is not None
        self._parts = []
        self._exchange.fail(error)

    def _refuse_unread(self, fault: ClientFault) -> None:
        """A head that cannot be read: there is no telling where the next request would begin."""
        state = self._shared
        self.will_keep_alive = False
        self._exchange = exchange = state.exchange_type(state, self, RequestHead(), NO_ENDPOINT, self._since)
        state.exchanges.add(exchange)
        exchange.fail(fault)

    # What exchanges call

    @property
    def has_unsent(self) -> bool:
        """Whether bytes of an answer still wait for the client to take them."""
        return self.is_open and self.transport.get_write_buffer_size() > 0

    def write(self, data: bytes) -> None:
        """Send bytes to the client, unless it has left."""
        if self.is_open and data:
            self.transport.write(data)

    def _reply_to_probe(self, head: RequestHead, rest: bytes) -> None:
        """Answer a probe of the process; no exchange, no record. ``rest`` is what came behind its head."""
        self._ahead = rest
        if head.path == b"/livez":
            status, body = 200, b"ok\n"
        elif self._shared.is_draining:
            status, body = 503, b"draining\n"
        elif not self._shared.topology.is_settled:
            status, body = 503, b"workers are being looked for\n"
        else:
            status, body = 200, b"ok\n"
        has_body = head.is_chunked or bool(head.content_length)  # nobody reads it, so what lies behind it is no request
        closes = has_body or not head.keeps_alive
        self.write(
            b"%bcontent-type: text/plain\r\n%bcontent-length: %d\r\n\r\n%b"
            % (
                answers.status_line(status),
                b"connection: close\r\n" if closes else b"",
                len(body),
                body if head.method == b"GET" else b"",
            )
        )
        self.will_keep_alive = not closes
        self._state = _BODY if has_body else _ANSWER
        self.answer_done(True)

    def refuse(self, error: ProxyError, request_id: str, dialect: Dialect = CHAT) -> None:
        """Send an error as the whole answer, in the words of the endpoint that was asked."""
        closes = not self.will_keep_alive or self._state is not _ANSWER
        answer = answers.error_answer(error, request_id, closes=closes, dialect=dialect)
        if self._exchange is not None and self._exchange.head.method == b"HEAD":
            answer = answer[: answer.index(b"\r\n\r\n") + 4]
        self.write(answer)
        self.answer_done(not closes)

    def answer_done(self, can_keep_alive: bool) -> None:
        """The exchange has ended with a whole answer: the next request can come, or the connection ends."""
        self._exchange = None
        if not self.is_open:
            return
        if not can_keep_alive or not self.will_keep_alive:
            if self._state is _ANSWER:
                self.close()
            else:
                self._linger()
            return
        if self._is_paused:
            self._since = clock()  # the next request has to wait until this answer has been taken
        else:
            self._await_next()

    def _await_next(self) -> None:
        self._since = clock()
        if self._ahead:
            # In a call of its own: many small requests in one read must not grow the stack.
            self._state = _NEXT
            self._shared.loop.call_soon(self._take_ahead)
        else:
            self._state = _HEAD

    def _take_ahead(self) -> None:
        if self.is_open and self._state is _NEXT:
            self._state = _HEAD
            ahead, self._ahead = self._ahead, b""
            self._take_head(ahead)

    def _linger(self) -> None:
        """The client may still be sending: a plain close would reset the connection before it has read the answer."""
        self._state = _LINGER
        self._since = clock()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def close(self) -> None:
        """End the connection when what was written has gone out."""
        self._exchange = None
        self._state = _CLOSING
        self._since = clock()
        self.transport.close()

    def abort(self) -> None:
        """End the connection now."""
        self.transport.abort()

    def reset(self) -> None:
        """End the connection so that nobody can take it for the end of an answer."""
        socket_view = self.transport.get_extra_info("socket")
        if socket_view is not None:
            # A linger of 0 makes closing a reset; the event loop's own view of the socket does not set options.
            with socket.socket(fileno=os.dup(socket_view.fileno())) as twin:
                twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def expire(self, now: float) -> None:
        """Called about twice a second: close what is idle or slow. Running requests have limits of their own."""
        if not self.is_open:
            return
        limits = self._shared.topology.limits
        since = now - self._since
        if self._state is _HEAD:
            if self._ahead:
                if since > limits.request_head_seconds:
                    self._refuse_unread(ClientFault("request_timeout", "The request head did not arrive in time.", status=408))
            elif since > limits.client_idle_seconds or self._shared.is_closing:
                self.close()
        elif self._state is _LINGER:
            if since > _LINGER_SECONDS:
                self.abort()
        elif self._exchange is None and since > limits.write_seconds:
            self.abort()  # answered, and the client does not take it
