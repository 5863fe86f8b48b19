"""Both ends of the record socket: nothing lost while control is there, nothing held up while it is not."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import records as module
from proxy.records import MAX_FRAME_BYTES, MAX_UNSENT_RECORDS, FrameReader, RecordReceiver, RecordSender, encode_frame
from telemetry.record import Outcome, Phase, RequestRecord


def a_record(number: int = 0, request_id: str = "") -> RequestRecord:
    return RequestRecord(
        request_id=request_id or f"r-{number}",
        ended_unix_seconds=1_700_000_000.25,
        outcome=Outcome.CLIENT_GONE,
        phase=Phase.ANSWER,
        finish_reasons=("stop",),
        ttft_seconds=0.125,
        prompt_tokens=number,
    )


async def eventually(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while True:
            if holds():
                return
            await asyncio.sleep(0.002)


class Control:
    """A receiver that remembers."""

    def __init__(self, path: Path) -> None:
        self.records: list[RequestRecord] = []
        self.faults: list[str] = []
        self.receiver = RecordReceiver(path, self.records.extend, on_fault=self.faults.append)


@asynccontextmanager
async def a_control(path: Path) -> AsyncIterator[Control]:
    control = Control(path)
    await control.receiver.start()
    try:
        yield control
    finally:
        await control.receiver.close()


def test_frame_round_trip() -> None:
    """A record comes out as it went in, also what is unknown."""
    records = [a_record(number) for number in range(3)]

    assert FrameReader().feed(encode_frame(records)) == records


def test_lone_surrogate_does_not_lose_the_batch() -> None:
    """Text that UTF-8 has no bytes for is sent as its escape, and its neighbours as they are."""
    broken = a_record(request_id="a\ud800b")

    read = FrameReader().feed(encode_frame([a_record(1), broken]))

    assert read[0] == a_record(1)
    assert read[1].request_id == "a\\ud800b"


def test_frames_cut_at_every_offset() -> None:
    """Wherever the bytes are cut, the same records come out, each as soon as its frame is whole."""
    first, second = encode_frame([a_record(1), a_record(2)]), encode_frame([a_record(3)])
    stream = first + second
    for cut in range(len(stream) + 1):
        reader = FrameReader()
        before = reader.feed(stream[:cut])
        after = reader.feed(stream[cut:])

        assert len(before) == (3 if cut == len(stream) else 2 if cut >= len(first) else 0)
        assert [*before, *after] == [a_record(1), a_record(2), a_record(3)]


@given(st.lists(st.integers(min_value=1, max_value=40)))
def test_frames_in_any_pieces(sizes: list[int]) -> None:
    """Any number of pieces of any size gives the same records."""
    stream = encode_frame([a_record(1)]) + encode_frame([]) + encode_frame([a_record(2)])
    reader = FrameReader()
    read: list[RequestRecord] = []
    for size in sizes:
        read += reader.feed(stream[:size])
        stream = stream[size:]
    read += reader.feed(stream)

    assert read == [a_record(1), a_record(2)]


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        struct.pack(">I", 0),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 2) + b"\x91\x01",  # an array of a number
        struct.pack(">I", 1) + b"\x01",  # no array
        b"GET /metrics HTTP/1.1\r\n\r\n",
        encode_frame([a_record()]).replace(b"r-0", b"\xff\xff\xff"),
    ],
)
def test_malformed_frame(frame: bytes) -> None:
    """What is no frame of records is told, quoting nothing of it; the records before it are kept, those behind it are not."""
    reader = FrameReader()

    assert reader.feed(encode_frame([a_record(1)]) + frame + encode_frame([a_record(2)])) == [a_record(1)]
    assert reader.fault is not None
    assert "GET" not in reader.fault
    assert reader.feed(encode_frame([a_record(3)])) == []


async def test_records_arrive_in_order(tmp_path: Path) -> None:
    """Every record that is put arrives once, in order, many more than one frame holds."""
    async with a_control(tmp_path / "r") as control:
        sender = RecordSender(tmp_path / "r")
        for number in range(2000):
            sender.put(a_record(number))
        await eventually(lambda: len(control.records) == 2000)
        await sender.close(1)

    assert [record.prompt_tokens for record in control.records] == list(range(2000))
    assert (sender.dropped, sender.unsent) == (0, 0)


async def test_close_sends_what_waits(tmp_path: Path) -> None:
    """Closing does not wait for the next flush, and loses nothing; what comes later is dropped and counted."""
    async with a_control(tmp_path / "r") as control:
        sender = RecordSender(tmp_path / "r")
        sender.put(a_record(1))
        await sender.close(1)
        sender.put(a_record(2))
        await control.receiver.drain(1)

    assert control.records == [a_record(1)]
    assert sender.dropped == 1


async def test_control_away_drops_the_newest_and_counts(tmp_path: Path) -> None:
    """Without control the sender keeps what it may, drops and counts the rest, and never raises."""
    counted: list[int] = []
    sender = RecordSender(tmp_path / "r", on_drop=counted.append)
    for number in range(MAX_UNSENT_RECORDS + 10):
        sender.put(a_record(number))
    assert sender.dropped == sum(counted) == 10

    async with a_control(tmp_path / "r") as control:
        await eventually(lambda: len(control.records) == MAX_UNSENT_RECORDS)
        sender.put(a_record(7))
        await eventually(lambda: control.records[-1] == a_record(7))
        await sender.close(1)

    assert [record.prompt_tokens for record in control.records[:3]] == [0, 1, 2]
    assert sender.dropped == 10


async def test_bytes_are_bounded_too(tmp_path: Path) -> None:
    """Few large records are dropped as well once they take more than the bytes allowed."""
    sender = RecordSender(tmp_path / "r")
    for _ in range(3000):
        sender.put(a_record(request_id="x" * 4096))

    await sender.close(0)

    assert sender.dropped == 3000


async def test_reconnects_when_control_was_restarted(tmp_path: Path) -> None:
    """Records that are put while control is away reach the next one."""
    async with a_control(tmp_path / "r") as control:
        sender = RecordSender(tmp_path / "r")
        sender.put(a_record(1))
        await eventually(lambda: control.records == [a_record(1)])

    sender.put(a_record(2))
    async with a_control(tmp_path / "r") as control:
        await eventually(lambda: control.records == [a_record(2)])
        await sender.close(1)
    assert sender.dropped == 0


async def test_frame_that_was_cut_is_sent_again_whole(tmp_path: Path) -> None:
    """When control dies in the middle of a frame, the next one gets that frame from its start, and what followed."""
    path = tmp_path / "r"
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(path))
        stuck.listen()
        sender = RecordSender(path)
        for number in range(4000):
            sender.put(a_record(number, request_id="x" * 400))
        stuck.setblocking(False)
        taken, _ = await asyncio.get_running_loop().sock_accept(stuck)
        await asyncio.get_running_loop().sock_recv(taken, 100_000)  # less than one frame
        taken.close()
    path.unlink()

    async with a_control(path) as control:
        await eventually(lambda: sender.unsent == 0)
        await control.receiver.drain(1)
        await sender.close(1)

    numbers = [record.prompt_tokens for record in control.records]
    assert numbers in (list(range(4000)), list(range(512, 4000)))  # the kernel may have had all of the first frame
    assert control.faults == []


async def test_control_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    """A full socket buffer leaves records waiting up to the bound; closing gives up after its time and counts the rest."""
    path = tmp_path / "r"
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(path))
        stuck.listen()
        sender = RecordSender(path)
        for number in range(MAX_UNSENT_RECORDS):
            sender.put(a_record(number))
        before = asyncio.get_running_loop().time()
        await sender.close(0.1)

        assert asyncio.get_running_loop().time() - before < 1
    assert 0 < sender.dropped < MAX_UNSENT_RECORDS
    assert sender.unsent == 0


async def test_malformed_frame_ends_only_its_connection(tmp_path: Path) -> None:
    """A connection that sends nonsense is closed with one line; the others go on."""
    async with a_control(tmp_path / "r") as control:
        sender = RecordSender(tmp_path / "r")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "r"))
        writer.write(encode_frame([a_record(1)]) + b"\xff" * 100)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

        sender.put(a_record(2))
        await eventually(lambda: control.records == [a_record(1), a_record(2)])
        await sender.close(1)

    assert len(control.faults) == 1


async def test_drain_reads_what_dead_senders_left(tmp_path: Path) -> None:
    """What a process sent before it ended is read at the end, even if its connection was not accepted yet."""
    async with a_control(tmp_path / "r") as control:
        with socket.socket(socket.AF_UNIX) as left:
            left.connect(str(tmp_path / "r"))
            left.sendall(encode_frame([a_record(1)]))

        await control.receiver.drain(2)

        assert control.records == [a_record(1)]


async def test_drain_ends_although_somebody_keeps_sending(tmp_path: Path) -> None:
    """The time limit holds against a sender that never falls silent."""
    async with a_control(tmp_path / "r") as control:
        sender = RecordSender(tmp_path / "r")

        async def talk() -> None:
            while True:
                sender.put(a_record())
                await asyncio.sleep(0.01)

        talking = asyncio.create_task(talk())
        async with asyncio.timeout(2):
            await control.receiver.drain(0.3)
        talking.cancel()
        await sender.close(1)

    assert control.records


async def test_no_timer_stands_while_nothing_is_put(tmp_path: Path) -> None:
    """An idle sender leaves the loop alone."""
    async with a_control(tmp_path / "r") as control:
        sender = RecordSender(tmp_path / "r")
        sender.put(a_record())
        await eventually(lambda: control.records)

        assert sender._timer is None
        await sender.close(1)


def test_flush_interval_is_short() -> None:
    """A record is on its way within a twentieth of a second."""
    assert module.FLUSH_SECONDS == 0.05


async def test_what_cannot_be_sent_is_dropped_and_counted(tmp_path: Path) -> None:
    """One figure that is beyond all bounds costs nobody else a record."""
    path = tmp_path / "records.sock"
    dropped: list[int] = []
    async with a_control(path) as control:
        sender = RecordSender(path, on_drop=dropped.append)
        for name, number in (("before", 1), ("absurd", 2**70), ("after", 3)):
            sender.put(a_record(number, name))
        await eventually(lambda: len(control.records) == 2)
        await sender.close(1.0)

    assert [record.request_id for record in control.records] == ["before", "after"]
    assert dropped == [1]
