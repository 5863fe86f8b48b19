"""How finished records get from the serving processes to the control process: both ends of one local socket.

A frame is a length (4 bytes, big-endian) and that many bytes of msgpack: an array of `RequestRecord`. Nothing is answered.

Serving must never wait for control, so the sender's memory is bounded and what does not fit is dropped and counted. What
the kernel already took is lost, and not counted, if control dies before it has written it to the log: at most one socket
buffer, and what waits for the log.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from telemetry.record import RequestRecord
from telemetry.wellformed import well_formed

FLUSH_SECONDS = 0.05
RECONNECT_SECONDS = 0.5
MAX_UNSENT_RECORDS = 8192
MAX_UNSENT_BYTES = 8 * 1024 * 1024
MAX_FRAME_BYTES = 8 * 1024 * 1024  # what the receiver accepts
_RECORDS_PER_FRAME = 512

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[RequestRecord])


def encode_frame(records: list[RequestRecord]) -> bytes:
    """Return one frame. A lone surrogate in a record is escaped."""
    try:
        body = _encoder.encode(records)
    except UnicodeEncodeError:
        body = _encoder.encode([well_formed(record) for record in records])
    return _LENGTH.pack(len(body)) + body


def _can_be_sent(record: RequestRecord) -> bool:
    try:
        encode_frame([record])
    except (OverflowError, TypeError, ValueError):
        return False
    return True


class FrameReader:
    """Sans-IO: bytes in, records out. One per connection; of no more use once `fault` is set."""

    def __init__(self) -> None:
        self.fault: str | None = None  # why what arrived is no frame of records; quotes nothing of it
        self._rest = bytearray()

    def __repr__(self) -> str:
        return f"<FrameReader {self.fault or f'with {len(self._rest)} bytes of an unfinished frame'}>"

    def feed(self, data: bytes) -> list[RequestRecord]:
        """Return the records of the frames that these bytes complete, up to the first malformed one."""
        rest = self._rest
        rest += data
        records: list[RequestRecord] = []
        start = 0
        while self.fault is None and len(rest) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest, start)
            end = start + _LENGTH.size + length
            if length > MAX_FRAME_BYTES:
                self.fault = f"a frame of {length} bytes, more than the {MAX_FRAME_BYTES} allowed"
            elif len(rest) < end:
                break
            else:
                try:
                    records += _decoder.decode(bytes(rest[start + _LENGTH.size : end]))
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    self.fault = f"a frame of {length} bytes that holds no records"
                start = end
        del rest[:start]
        return records


class RecordSender:
    """The serving end. `put` is cheap and never waits, blocks or raises; everything else happens in timers of the loop.

    To be made and used in one event loop. `on_drop` is called with the number of records each time some are dropped.
    """

    def __init__(self, path: Path, *, on_drop: Callable[[int], None] | None = None) -> None:
        self.dropped = 0
        self._path = str(path)
        self._on_drop = on_drop
        self._loop = asyncio.get_running_loop()
        self._fresh: list[RequestRecord] = []
        self._frames: deque[tuple[bytes, int]] = deque()  # each with its number of records; the first may be partly sent
        self._frame_records = 0
        self._frame_bytes = 0
        self._sent_bytes = 0  # of the first frame
        self._socket: socket.socket | None = None
        self._waits_for_room = False
        self._timer: asyncio.TimerHandle | None = None
        self._reconnect_at = 0.0  # loop time before which no connection is tried
        self._drained: asyncio.Event | None = None  # only while closing
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "connected" if self._socket else "not connected"
        return f"<RecordSender {state}, {self.unsent} unsent, {self.dropped} dropped>"

    @property
    def unsent(self) -> int:
        """Records not yet handed to the kernel in full."""
        return len(self._fresh) + self._frame_records

    def put(self, record: RequestRecord) -> None:
        """Take a record to be sent within `FLUSH_SECONDS`, or drop it when too many wait already."""
        if self._is_closed or self.unsent >= MAX_UNSENT_RECORDS:
            self._drop(1)
            return
        self._fresh.append(record)
        if self._timer is None and not self._waits_for_room:
            self._timer = self._loop.call_later(FLUSH_SECONDS, self._flush)

    async def close(self, timeout_seconds: float) -> None:
        """Send what waits, for at most this long; drop and count the rest. Later `put` calls drop."""
        self._is_closed = True
        self._drained = asyncio.Event()
        self._reconnect_at = 0.0
        if not self._waits_for_room:
            self._flush()
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._frames:
                    await self._drained.wait()
        except TimeoutError:
            pass
        self._disconnect()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if lost := self.unsent:
            self._frames.clear()
            self._fresh.clear()
            self._frame_records = self._frame_bytes = 0
            self._drop(lost)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pack()
        self._send()

    def _pack(self) -> None:
        fresh, self._fresh = self._fresh, []
        for start in range(0, len(fresh), _RECORDS_PER_FRAME):
            batch = fresh[start : start + _RECORDS_PER_FRAME]
            try:
                frame = encode_frame(batch)
            except (OverflowError, TypeError, ValueError):  # some figure that no check has caught: only its record is lost
                batch = [record for record in batch if _can_be_sent(record)]
                self._drop(min(_RECORDS_PER_FRAME, len(fresh) - start) - len(batch))
                frame = encode_frame(batch)
            if self._frame_bytes + len(frame) > MAX_UNSENT_BYTES:
                self._drop(len(batch))
                continue
            self._frames.append((frame, len(batch)))
            self._frame_records += len(batch)
            self._frame_bytes += len(frame)

    def _send(self) -> None:
        """Hand frames to the kernel until it takes no more; then go on when there is room, or reconnect later."""
        while self._frames:
            connection = self._socket or self._connect()
            if connection is None:
                self._timer = self._loop.call_at(self._reconnect_at, self._flush)
                return
            frame, count = self._frames[0]
            try:
                self._sent_bytes += connection.send(memoryview(frame)[self._sent_bytes :])
            except (BlockingIOError, InterruptedError):
                if not self._waits_for_room:
                    self._loop.add_writer(connection.fileno(), self._flush)
                    self._waits_for_room = True
                return
            except OSError:
                self._disconnect()
                continue
            if self._sent_bytes == len(frame):
                self._frames.popleft()
                self._frame_records -= count
                self._frame_bytes -= len(frame)
                self._sent_bytes = 0
        if self._waits_for_room and self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
            self._waits_for_room = False
        if self._drained is not None:
            self._drained.set()

    def _connect(self) -> socket.socket | None:
        now = self._loop.time()
        if now < self._reconnect_at:
            return None
        self._reconnect_at = now + RECONNECT_SECONDS
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(self._path)  # local: it succeeds or fails at once
        except OSError:
            connection.close()
            return None
        self._socket = connection
        return connection

    def _disconnect(self) -> None:
        if self._socket is not None:
            if self._waits_for_room:
                self._loop.remove_writer(self._socket.fileno())
                self._waits_for_room = False
            self._socket.close()
            self._socket = None
        self._sent_bytes = 0  # a frame that was cut is sent again, whole

    def _drop(self, count: int) -> None:
        self.dropped += count
        if self._on_drop is not None:
            self._on_drop(count)


class RecordReceiver:
    """The control end: listens, and calls `on_records` with what arrives. A malformed frame ends only its connection.

    `on_fault` gets one line for each connection ended that way.
    """

    def __init__(
        self, path: Path, on_records: Callable[[list[RequestRecord]], None], *, on_fault: Callable[[str], None]
    ) -> None:
        self._path = path
        self._on_records = on_records
        self._on_fault = on_fault
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._arrived_at = 0.0  # loop time of the newest bytes

    def __repr__(self) -> str:
        return f"<RecordReceiver {self._path}, {len(self._connections)} connections>"

    async def start(self) -> None:
        """Listen; what an earlier control process left at the path is replaced. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), str(self._path), backlog=256)

    async def drain(self, timeout_seconds: float, *, quiet_seconds: float = 0.1) -> None:
        """Read until all senders are gone or have been silent for `quiet_seconds`, for at most `timeout_seconds`."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        while (now := loop.time()) < began_at + timeout_seconds:
            if now - max(self._arrived_at, began_at) >= quiet_seconds:
                return
            await asyncio.sleep(quiet_seconds / 4)

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server is not None:
            self._server.close()
            for connection in tuple(self._connections):
                connection.abort()
            await self._server.wait_closed()
            self._server = None

    def opened(self, connection: _Connection) -> None:
        """Remember a connection until `closed`."""
        self._connections.add(connection)

    def closed(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)

    def received(self, records: list[RequestRecord]) -> None:
        """Pass on what a connection read."""
        self._arrived_at = asyncio.get_running_loop().time()
        if records:
            self._on_records(records)

    def fault(self, text: str) -> None:
        """Report why a connection is given up."""
        self._on_fault(text)


class _Connection(asyncio.Protocol):
    """One serving process."""

    def __init__(self, receiver: RecordReceiver) -> None:
        self._receiver = receiver
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 -- for the type checker
        self._transport = transport
        self._receiver.opened(self)

    def data_received(self, data: bytes) -> None:
        self._receiver.received(self._reader.feed(data))
        if self._reader.fault is not None:
            self._receiver.fault(f"a serving process sent {self._reader.fault}; its connection is closed")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.closed(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
