"""What real workers streamed, replayed through the relay and its meter: ``python -m tests.replayed_captures`` prints a table.

Each capture is given whole, event by event and byte by byte. The instant of each read is its offset in the worker's answer, so
the first token's "time" is the place at which it was known. All ways have to give the client the same bytes and the record the
same counts, and the first token has to be known with the byte that ends its event.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from proxy.upstream.relay import Relay, make_meter
from proxy.wire.framing import Framing, take_answer_head
from telemetry.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from tests import plain_reading
from tests.captures import Capture, load, names
from tests.http1 import Message

WAYS = ("whole", "by events", "by bytes")
_EVENT_END = re.compile(rb"\n\n(?:\r\n)?")
_DIALECTS = {b"/v1/responses": RESPONSES, b"/v1/messages": MESSAGES}


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of one capture, cut in one way."""

    client_bytes: bytes  # without framing
    tokens: int | None  # by usage
    token_events: int
    first_token_at: float | None  # bytes of the worker's body that had come
    reads: int


def streams() -> list[str]:
    """The captures that are streams of events."""
    return [name for name in names() if b"text/event-stream" in load(name).response_head]


def replay(capture: Capture, way: str) -> Replayed:
    """Give the body to a relay in this way."""
    head, _ = take_answer_head(capture.response_head)
    assert head is not None
    relay = Relay(head, make_meter(head, 1, dialect_of(capture)), strips_usage=False, is_http11=True)
    out, at, count = [], 0, 0
    for piece in cut(capture.response_body, way):
        at, count = at + len(piece), count + 1
        out.append(relay.feed(piece, float(at)))
    payload = b"".join(out)
    if relay.framing is Framing.CHUNKED:
        message = Message(is_request=False)
        message.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + payload)
        payload = bytes(message.body)
    found = relay.finish(float(at))
    tokens = None if found.usage is None else found.usage.completion_tokens
    return Replayed(payload, tokens, found.token_events, found.first_token_at, count)


def dialect_of(capture: Capture) -> Dialect:
    """By the path that was asked."""
    return _DIALECTS.get(capture.request.split(b" ")[1], CHAT)


def cut(body: bytes, way: str) -> Iterator[bytes]:
    """The body in the reads of this way."""
    ends: Iterable[int] = ()
    if way == "by bytes":
        ends = range(1, len(body))
    elif way == "by events":
        ends = (match.end() for match in _EVENT_END.finditer(body))
    edges = sorted({0, len(body), *ends})
    return (body[start:end] for start, end in pairwise(edges))


def faults(capture: Capture, found: dict[str, Replayed]) -> Iterator[str]:
    """What is not as it has to be in the three ways."""
    for way, one in found.items():
        if one.client_bytes != capture.payload:
            yield f"{way}: the client gets other bytes than the worker sent"
    if len({(one.tokens, one.token_events) for one in found.values()}) != 1:
        yield "counts depend on the way of cutting"
    echoes = b'"echo": true' in capture.request and CHAT is dialect_of(capture) and b"/chat/" in capture.request[:40]
    offsets = plain_reading.token_offsets(capture.payload)
    if not echoes and found["by bytes"].token_events != len(offsets):
        yield f"{found['by bytes'].token_events} events with tokens, and {len(offsets)} by plain reading"
    first = found["by bytes"].first_token_at
    if (first is None) is not (not offsets):
        yield "a first token where there is none, or none where there is one"
    if first is not None and len(unframed(capture, int(first))) != offsets[0]:
        yield "the first token is not known with the byte that ends its event"


def unframed(capture: Capture, count: int) -> bytes:
    """The payload in the first so many bytes of the worker's body."""
    message = Message(is_request=False)
    message.feed(capture.response_head + capture.response_body[:count])
    return bytes(message.body)


def line_of(name: str, found: dict[str, Replayed]) -> str:
    """A line of the table."""
    one, places = found["by bytes"], [found[way].first_token_at for way in reversed(WAYS)]
    shown = [f"{place:.0f}" if place is not None else "-" for place in places]
    cells = [name, str(one.tokens or "-"), str(one.token_events), *shown, str(len(one.client_bytes))]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the table and what is wrong; exit status 1 if anything is."""
    columns = ("capture", "tokens by usage", "events with tokens", *(f"first token known at, {way}" for way in reversed(WAYS)))
    print(f"| {' | '.join((*columns, 'bytes to the client'))} |", "| --- " * (len(columns) + 1) + "|", sep="\n")
    wrong: list[str] = []
    replays: list[Replayed] = []
    for name in streams():
        capture = load(name)
        found = {way: replay(capture, way) for way in WAYS}
        print(line_of(name, found), flush=True)
        wrong += [f"{name}: {fault}" for fault in faults(capture, found)]
        replays += found.values()
    one_way = replays[:: len(WAYS)]
    summary = (
        f"{len(one_way)} streams in {len(WAYS)} ways, {sum(one.reads for one in replays):,} reads",
        f"{sum(len(one.client_bytes) for one in one_way):,} bytes to clients",
        f"{sum(one.token_events for one in one_way):,} events with tokens",
        f"{sum(one.tokens or 0 for one in one_way):,} tokens by usage",
        f"{len(wrong)} differences",
    )
    print("", "; ".join(summary), *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
