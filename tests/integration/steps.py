"""What a scripted worker can be told to do with a connection, one step after another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes in one write."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Until:
    """Do nothing until the test sets the event."""

    event: asyncio.Event


@dataclass(frozen=True, slots=True)
class ByteByByte:
    """Send one byte at a time with a gap of so many seconds after each."""

    data: bytes
    gap_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection with a FIN after what was sent."""


@dataclass(frozen=True, slots=True)
class Reset:
    """End the connection with a RST; what the kernel had not yet sent is lost."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Do nothing until the peer closes."""


Step = Send | Wait | Until | ByteByByte | Close | Reset | Hang
Script = Sequence[Step]
