"""A supervisor with children of a few lines, as programs: run by the tests of the supervisor, not imported.

``family.py supervise PARENT HOST:PORT DRAIN_SECONDS NAME=BEHAVIOUR…`` makes its run directory in PARENT, where its
children append to the file ``notes`` what happens to them. Behaviours: ``well`` ends when told to, ``deaf`` does not,
``exit-N`` ends at once with that code, ``late-N`` does so once everything has been up, ``drains-N`` says that running
requests get N seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path


def child(name: str, behaviour: str, directory: Path, listen_fd: int, parent_fd: int) -> None:
    def note(text: str) -> None:
        with (directory.parent / "notes").open("a") as notes:
            notes.write(f"{name} {text} {os.getpid()}\n")

    with contextlib.suppress(OSError):
        os.fstat(listen_fd)  # first of all: a number that is free would soon be used for something else
        note("holds the listener")
    wake_fd, signal_fd = os.pipe()
    os.set_blocking(signal_fd, False)
    signal.set_wakeup_fd(signal_fd)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "deaf" else lambda *_: None)
    if behaviour.startswith("exit-"):
        note("started")
        os._exit(int(behaviour.removeprefix("exit-")))
    if behaviour.startswith("drains-"):
        (directory / "control.drain").write_text(behaviour.removeprefix("drains-"))
    file = "control.addresses" if name == "control" else f"{name}.cells"
    (directory / file).write_text("http://127.0.0.1:1 https://127.0.0.1:2 http")
    note("started")
    if behaviour.startswith("late-"):
        time.sleep(0.2)
        os._exit(int(behaviour.removeprefix("late-")))
    ready, _, _ = select.select([wake_fd, parent_fd], [], [])
    if (directory / "control.stopping").exists():
        note("sees that all is being stopped")
    note("told to end" if wake_fd in ready else "left alone")
    os._exit(0)


def supervise(parent: str, address: str, drain_seconds: str, *behaviours: str) -> int:
    from proxy.listener import open_listener
    from proxy.supervisor import Command, Supervisor

    def build(directory: Path, listen_fd: int, parent_fd: int) -> list[Command]:
        program = [sys.executable, "-S", __file__, "child"]
        return [
            Command(name, name != "control", [*program, name, behaviour, str(directory), str(listen_fd), str(parent_fd)])
            for name, _, behaviour in (text.partition("=") for text in behaviours)
        ]

    listener = open_listener(address)
    return Supervisor(listener=listener, build=build, drain_seconds=float(drain_seconds), run_parents=[Path(parent)]).run()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["child", name, behaviour, directory, listen_fd, parent_fd]:
            child(name, behaviour, Path(directory), int(listen_fd), int(parent_fd))
        case ["supervise", *arguments]:
            sys.exit(supervise(*arguments))
