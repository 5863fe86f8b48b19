"""A worker's answer: no client gets a whole one where h11 reads none or another, however its bytes are cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from proxy.upstream.relay import Relay, make_meter
from proxy.wire.framing import AnswerHead, Framing, FramingError, parse_answer_head, take_answer_head
from proxy.wire.known_heads import KnownHeads
from telemetry.measurements import Measurements
from tests.fuzz.inputs import in_several_ways, take_apart
from tests.fuzz.streams import parsed, read_whole
from tests.http1 import Message
from tests.integration.two_parsers import answer_in

WORDS = (
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 -\r\n", b"\r\n\r\n"),
    *(
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"0\r\n\r\n",
        b"\r\n",
        b"\n\n\r\n",
    ),
    *(b"Content-Type: text/event-stream\r\n", b"Content-Type: application/json\r\n", b"5\r\nabcde\r\n", b"data: {}\n\n"),
    *(b'data: {"choices":[],"usage":{}}\n\n', b"data: [DONE]\n\n", b"Content-Encoding: gzip\r\n", b";x", b"X-T: 1\r\n", b"\t"),
)
LONGEST = 800


_STATUS_LINE = re.compile(rb"[\r\n]*(HTTP/1\.[01] ([0-9])[0-9]{2})[^\r\n]*(?=\r\n)")


class Read(NamedTuple):
    """What became of a worker's bytes."""

    status: int
    payload: bytes  # of what the client got
    is_whole: bool
    found: Measurements | None
    passed: bytes


def _read(pieces: list[bytes], choices: int, heads: KnownHeads[AnswerHead], *, closes: bool) -> Read | None:
    """As an exchange does it; None while there is no head. Raises `FramingError`."""
    held, out, relay, head = b"", b"", None, None
    for piece in pieces:
        if relay is None:
            head, held = take_answer_head(held + piece, heads.read)
            if head is None:
                continue
            meter = make_meter(head, 1)
            relay = Relay(head, meter, strips_usage=bool(choices & 1) and head.is_event_stream, is_http11=not choices & 2)
            body = held
        else:
            body = piece
        if relay.has_ended:
            break
        if body:
            out += relay.feed(body, 1.0)
    if relay is None or head is None:
        return None
    if closes and not relay.has_ended:
        out += relay.end_of_connection(is_clean=True)
    payload = _unframed(relay, out)
    return Read(head.status, payload, relay.has_ended, relay.finish(1.0), head.passed)


def _unframed(relay: Relay, out: bytes) -> bytes:
    """What the client's library hands out of the bytes that it got."""
    if relay.framing is not Framing.CHUNKED:
        return out
    message = Message(is_request=False)
    message.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + out)
    assert message.is_complete is relay.has_ended
    assert not message.rest or not relay.has_ended
    return bytes(message.body)


def _outcome(pieces: list[bytes], choices: int, heads: KnownHeads[AnswerHead], *, closes: bool) -> Read | str | None:
    try:
        return _read(pieces, choices, heads, closes=closes)
    except FramingError:
        return "refused"


def check(data: bytes, parse: Callable[[bytes], AnswerHead] = parse_answer_head) -> None:
    """Any cut comes to the same end; a whole answer is h11's, less the usage event where nobody asked for it."""
    choices, pieces = take_apart(data, b"\n\n\r\n")
    closes = bool(choices & 4)
    stream = b"".join(pieces)
    heads = KnownHeads(parse)
    whole = _outcome([stream], choices, heads, closes=closes)
    known = _outcome([stream], choices, heads, closes=closes)
    cut = _outcome(pieces, choices, KnownHeads(parse), closes=closes)

    assert known == whole
    if isinstance(whole, Read):
        assert isinstance(cut, Read)
        _compare(cut, whole)
    else:
        assert cut == whole
    if isinstance(whole, Read) and whole.is_whole:
        expected = answer_in(_with_plain_reasons(stream), closes=closes)
        if expected is None and closes and b"[DONE]" in stream:
            return  # a stream that said it was over may end without its last chunk
        assert expected is not None
        assert (whole.status,) == (expected.status,)
        if not choices & 1:
            assert whole.payload == expected.body
    if isinstance(whole, Read):
        _check_passed(whole.passed)


def _compare(cut: Read, whole: Read) -> None:
    """The same, but for what is still held of an answer that has not ended."""
    if not whole.is_whole:
        one, other = sorted((cut.payload, whole.payload), key=len)
        assert other.startswith(one)
        cut = cut._replace(payload=whole.payload)
    if not _is_json(whole.payload):
        cut = cut._replace(found=whole.found)
    assert cut == whole


def _with_plain_reasons(stream: bytes) -> bytes:
    """The same with nothing behind the status of each head, where h11 refuses odd bytes, and no empty lines before it.

    The gateway's parser skips both, and neither goes any further.
    """
    heads = b""
    while (found := _STATUS_LINE.match(stream)) is not None:
        end = stream.find(b"\r\n\r\n", found.start(1)) + 4
        heads += found[1] + b" -" + stream[found.end() : end]
        stream = stream[end:]
        if found[2] != b"1" or end < 4:
            break
    return heads + stream


def _is_json(payload: bytes) -> bool:
    """Whether every event of a stream is JSON: others may be counted in one cut as they are not in another."""
    events, rest = read_whole(payload)
    try:
        for text in [event.data for event in events] + ([] if rest is None else [rest]):
            if text.strip() != b"[DONE]":
                parsed(text)
    except ValueError:
        return False
    return True


def _check_passed(passed: bytes) -> None:
    """The lines that a client gets are whole lines, and none of them says where the body ends."""
    lines = passed.split(b"\r\n")
    assert lines.pop() == b""
    for line in lines:
        name, colon, _ = line.partition(b":")
        assert colon
        assert b"\n" not in line
        assert b"\r" not in line
        assert name.lower() not in (b"content-length", b"transfer-encoding", b"connection", b"set-cookie", b"keep-alive")


def seeds() -> list[bytes]:
    """Answers of each framing, streams and plain ones."""
    text = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\n'
    done = b"data: [DONE]\n\n"
    stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (text, text, text, text, usage, done)) + b"0\r\n\r\n"
    plain = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    one = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nabcde\r\n0\r\nX-T: 1\r\n\r\n"
    return in_several_ways(
        [
            stream + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
            stream + b"Content-Length: %d\r\n\r\n%b" % (len(text + done), text + done),
            stream + b"\r\n" + text + usage + done,
            plain,
            b"HTTP/1.1 100 Continue\r\n\r\n" + plain + plain,
            one,
            b"HTTP/1.0 400 Bad\r\nConnection: X-A\r\nX-A: 1\r\nSet-Cookie: a\r\n\r\n{}",
            b"HTTP/1.1 204 -\r\nContent-Length: 5\r\n\r\n",
        ],
        (0, 1, 2, 4, 5),
    )
