"""Heads that came before, so that the next one like them need not be parsed again.

A client sends the same head with every request, and a worker with every answer of the same second: but for the length of the
body. Parsing is a function of the bytes alone, so equal bytes may share a result. For the length that is shown thus: it was in
its own line when the head was parsed, strictly and with no other length in it, and now other digits stand in the same place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from proxy.wire.framing import AnswerHead
from proxy.wire.request_head import RequestHead

MOST_KNOWN = 512
MOST_BYTES = 4096
"""A longer head is parsed each time, so that what is kept is bounded."""
_MOST_DIGITS = 15
_LENGTHS = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")  # as nearly all clients and workers write it
_SIZE = len(_LENGTHS[0])


_AnyHead = TypeVar("_AnyHead", RequestHead, AnswerHead)


class KnownHeads(Generic[_AnyHead]):
    """Reads heads with ``parse``, which must depend on nothing else, and remembers what it made of them."""

    __slots__ = ("_known", "_parse")

    def __init__(self, parse: Callable[[bytes], _AnyHead]) -> None:
        self._parse: Callable[[bytes], _AnyHead] = parse
        self._known: dict[bytes, _AnyHead] = {}  # by their bytes without the digits of the length

    def __repr__(self) -> str:
        return f"<KnownHeads, {len(self._known)} of them>"

    def read(self, data: bytes) -> _AnyHead:
        """Read a complete head, blank line included; the caller may change what it gets. Raises what ``parse`` raises."""
        start = data.find(_LENGTHS[0])
        if start < 0:
            start = data.find(_LENGTHS[1])
        if start < 0:
            shape, length = data, None
        else:
            start += _SIZE
            end = data.find(b"\r\n", start)
            digits = data[start:end]
            if len(digits) > _MOST_DIGITS or not digits.isdigit():
                return self._parse(data)
            shape, length = data[:start] + data[end:], int(digits)
        known = self._known.get(shape)
        if known is None:
            return self._learn(data, shape, length)
        head: _AnyHead = msgspec.structs.replace(known, content_length=length)
        return head

    def _learn(self, data: bytes, shape: bytes, length: int | None) -> _AnyHead:
        head: _AnyHead = self._parse(data)
        # Where the length is not the one of that line (it is written otherwise, or means nothing in this answer), other digits
        # would not be another length; 0 does not show that.
        if len(data) <= MOST_BYTES and head.content_length == length != 0:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[shape] = msgspec.structs.replace(head)
        return head
