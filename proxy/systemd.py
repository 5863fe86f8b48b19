"""What systemd is told by a service of ``Type=notify``: that it is up, and that it is ending. Standard library only."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

READY = "READY=1"
STOPPING = "STOPPING=1"


def tell_systemd(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Send this to the socket that ``NOTIFY_SOCKET`` names; a name with ``@`` is an abstract one. Without it, or when
    nobody takes it, nothing happens: no gateway fails for it.
    """
    name = environ.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):
        return
    address = "\0" + name[1:] if name.startswith("@") else name
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        sender.sendto(state.encode(), address)
