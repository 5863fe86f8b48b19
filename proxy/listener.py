"""Listening sockets, the same for all three listeners. Standard library only, as the supervisor stays small."""

from __future__ import annotations

import errno
import os
import socket

_BACKLOG = 4096


def open_listeners(address: str, count: int) -> list[socket.socket]:
    """Return so many sockets that listen on one address and share its new connections evenly. Raises OSError.

    With one socket for several processes, whichever wakes first takes all that waits.
    """
    first = open_listener(address)
    if count == 1:
        return [first]
    first.close()  # it has shown that nobody else listens there, which a shared port would not
    return [open_listener(address, is_shared=True) for _ in range(count)]


def open_listener(address: str, *, is_shared: bool = False) -> socket.socket:
    """Return a listening socket for HOST:PORT, ``[::]:PORT`` for both families. Raises OSError with a plain `strerror`."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    family, *_, resolved = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    is_dual_stack = host == "::" and socket.has_dualstack_ipv6()
    try:
        # Flow and scope of an IPv6 address are left to the system.
        return socket.create_server(
            (resolved[0], resolved[1]),
            family=family,
            backlog=_BACKLOG,
            dualstack_ipv6=is_dual_stack,
            reuse_port=is_shared,
        )
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno)) from None  # the library's text repeats the address


def listen_fault(setting: str, address: str, error: OSError) -> str:
    """What to tell the operator of a listener that could not be had."""
    first = "end the program that has it, or " if error.errno == errno.EADDRINUSE else ""
    mend = f"{first}set {setting} to {'another' if first else 'an'} address and port of this machine"
    return f"cannot listen on {address} ({setting}): {error.strerror}; {mend}"


def bound_address(listener: socket.socket) -> str:
    """Return HOST:PORT as really bound, IPv6 in brackets."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
