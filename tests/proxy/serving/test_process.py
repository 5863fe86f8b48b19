"""A serving process that has nothing to serve yet."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("how", ["its supervisor is killed", "it is told to"])
def test_it_ends_while_it_waits_for_a_topology(tmp_path: Path, how: str) -> None:
    """At once: until then it holds the address that the next gateway needs."""
    reading, writing = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = ["--run-dir", str(tmp_path), "--listen-fd", str(listener.fileno()), "--parent-fd", str(reading)]
        process = subprocess.Popen(
            [sys.executable, "-m", "proxy.serving.process", *options], pass_fds=(listener.fileno(), reading)
        )
    os.close(reading)
    if how == "it is told to":
        while not _catches(Path(f"/proc/{process.pid}/status").read_bytes()):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
    else:
        os.close(writing)

    assert process.wait(20) == 0


def _catches(status: bytes) -> bool:
    """Whether it has a handler for SIGTERM."""
    line = next(line for line in status.splitlines() if line.startswith(b"SigCgt"))
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
