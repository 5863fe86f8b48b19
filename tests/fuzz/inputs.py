"""An input of the fuzzer: one byte of choices, how the rest is cut, and the rest itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST_LENGTHS = 7
AT_EDGES = 8
"""As the second byte: the pieces end where an edge does, as those of a worker that writes event by event."""
_MOST_PIECES = 60


def take_apart(data: bytes, edge: bytes = b"\n\n") -> tuple[int, list[bytes]]:
    """The choices (0 to 255) and the pieces, none of them empty.

    The second byte says how many lengths follow, of 1 to 256 bytes each; they are used again and again until the rest is cut,
    or it has been cut often enough. With none of them it is one piece.
    """
    if len(data) < 2:
        return 0, [data] if data else []
    if data[1] & AT_EDGES:
        parts = data[2:].split(edge)
        return data[0], [part for part in (*(part + edge for part in parts[:-1]), parts[-1]) if part]
    count = min(data[1] & MOST_LENGTHS, len(data) - 2)
    lengths, payload = data[2 : 2 + count], data[2 + count :]
    if not count:
        return data[0], [payload] if payload else []
    pieces: list[bytes] = []
    at = 0
    while at < len(payload) and len(pieces) < _MOST_PIECES:
        end = at + lengths[len(pieces) % count] + 1
        pieces.append(payload[at:end])
        at = end
    if at < len(payload):
        pieces.append(payload[at:])
    return data[0], pieces


def cut_alike(payload: bytes, pieces: Iterable[bytes]) -> list[bytes]:
    """The payload in pieces as long as these, as far as it goes."""
    found: list[bytes] = []
    at = 0
    for piece in pieces:
        if at >= len(payload):
            break
        found.append(payload[at : at + len(piece)])
        at += len(piece)
    return found


def put_together(payload: bytes, lengths: Sequence[int] = (), choices: int = 0) -> bytes:
    """The input that `take_apart` takes apart so."""
    return bytes((choices, len(lengths), *(length - 1 for length in lengths))) + payload


def in_several_ways(payloads: Iterable[bytes], choices: Iterable[int] = (0,)) -> list[bytes]:
    """Each payload whole, at edges, byte by byte, and in pieces of several lengths."""
    ways: tuple[Sequence[int], ...] = ((), (1,), (7, 64, 200), (256, 3))
    found = []
    for payload in payloads:
        for choice in choices:
            found += [put_together(payload, way, choice) for way in ways]
            found.append(bytes((choice, AT_EDGES)) + payload)
    return found
