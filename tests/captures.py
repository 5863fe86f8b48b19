"""Loads what real workers put on the wire; what the files are is told in tests/data/captures/README.md."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.http1 import HEAD_END, Message

FOLDER = Path(__file__).parent / "data" / "captures"
SURFACE = FOLDER.parent / "surface"  # the same for all that is no answer with tokens
MARKER = b"\r\n%%%% RESPONSE %%%%\r\n"
CUT_MARKER = b"%%%% body left out, "


@dataclass(frozen=True, slots=True)
class Capture:
    """One exchange with a worker, byte for byte."""

    name: str
    request: bytes  # head and body as sent; the body is empty where the file left it out
    response_head: bytes  # with its empty line; empty, like `response`, where the worker never answered
    response: bytes  # head and body as received, chunk sizes included
    complete: bool  # whether the response came to the end of its framing (which a cut stream of events may still do)
    reads: tuple[tuple[float, int, int], ...]  # (seconds since the client began to send, offset in `response`, bytes)

    @property
    def response_body(self) -> bytes:
        """The body as received, with its chunk sizes."""
        return self.response[len(self.response_head) :]

    @property
    def payload(self) -> bytes:
        """The body without its framing: what a client's HTTP library hands out."""
        return bytes(_parsed(self.response).body)


def load(name: str, folder: Path = FOLDER) -> Capture:
    """The capture of this name. FileNotFoundError when there is none, ValueError when the file is damaged.

    ``reads`` is empty for the exchanges whose timing was not recorded (most that are not streamed).
    """
    text = (folder / f"{name}.http").read_bytes()
    request, marker, response = text.partition(MARKER)
    if not marker:
        raise ValueError(f"{name}: no marker between request and response")
    head, end, _ = response.partition(HEAD_END)
    if response and not end:
        raise ValueError(f"{name}: the response has no complete head")
    if (cut := request.find(CUT_MARKER)) >= 0:
        request = request[:cut]
    reads = _reads(folder / f"{name}.timing.jsonl")
    if reads and reads[-1][1] + reads[-1][2] != len(response):
        raise ValueError(f"{name}: the timing covers other bytes than the response")
    return Capture(name, request, head + end, response, _parsed(response).is_complete, reads)


def names(folder: Path = FOLDER) -> list[str]:
    """All captures, sorted."""
    return sorted(path.stem for path in folder.glob("*.http"))


def _parsed(response: bytes) -> Message:
    message = Message(is_request=False)
    message.feed(response)
    return message


def _reads(path: Path) -> tuple[tuple[float, int, int], ...]:
    if not path.exists():
        return ()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return tuple((line["t"], line["off"], line["n"]) for line in lines if "off" in line)
