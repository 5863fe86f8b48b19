"""What systemd is told, and that nothing goes wrong where nobody listens."""

from __future__ import annotations

import socket

import pytest

from proxy.systemd import READY, tell_systemd


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_state_arrives_at_the_socket_that_is_named(is_abstract, tmp_path):
    """A path, or a name of the abstract kind, which begins with an @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        name = str(tmp_path / "notify")
        listener.bind("\0" + name if is_abstract else name)
        listener.settimeout(5)

        tell_systemd(READY, {"NOTIFY_SOCKET": "@" + name if is_abstract else name})

        assert listener.recv(100) == b"READY=1"


@pytest.mark.parametrize("name", [None, "", "/nowhere/at/all", "no-path", "/" + "x" * 200])
def test_where_nobody_listens_nothing_happens(name):
    """Without systemd, with one that is gone, and with names that cannot be."""
    tell_systemd(READY, {} if name is None else {"NOTIFY_SOCKET": name})
