"""The parent of all processes of one gateway: starts them, restarts what dies, passes on the end.

It owns the client listener, so that no restart of a serving process loses the port, and the run directory. It sleeps in
one `poll` and does no work between signals. Standard library only: this process stays for ever and does nothing.

Children get the reading end of a pipe (``--parent-fd``) whose writing end only this process holds: they end when they
read its end, so that nothing is left when this process is killed.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from proxy.built import serving_path
from proxy.listener import bound_address, listen_fault, open_listeners
from proxy.notices import notice
from proxy.rundir import CONTROL_ADDRESSES, DRAIN, PROCESSES, STOPPING_MARK, RunDirectory, serving_cells
from proxy.systemd import READY, STOPPING, tell_systemd

EXIT_OK = 0
EXIT_CANNOT_START = 1
EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h; a child that ends with it before all were up is not started again

KILL_MARGIN_SECONDS = 5.0  # what serving gets beyond its own drain time
CONTROL_END_SECONDS = 5.0
_START_POLL_SECONDS = 0.05
_MAX_FILES = 1 << 20

# glibc reads these when a process starts. Large prompts come and go; without them each would be mapped and unmapped anew.
SERVING_ENVIRON = {"MALLOC_MMAP_THRESHOLD_": "67108864", "MALLOC_TRIM_THRESHOLD_": "268435456"}


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Command(NamedTuple):
    """How one child is started."""

    name: str
    is_serving: bool  # else control
    arguments: list[str]  # the program first, with its path
    listen_fd: int | None = None  # the listener that a serving process gets; None: the first


class Backoff:
    """Pause before a restart: 0.1 s, doubled each time up to 5 s; short again after a life of 10 s."""

    FIRST_SECONDS = 0.1
    MOST_SECONDS = 5.0
    GOOD_LIFE_SECONDS = 10.0

    def __init__(self) -> None:
        self._next_seconds = self.FIRST_SECONDS

    def after(self, life_seconds: float) -> float:
        """Return the pause in seconds after a child that lived this long."""
        if life_seconds >= self.GOOD_LIFE_SECONDS:
            self._next_seconds = self.FIRST_SECONDS
        pause = self._next_seconds
        self._next_seconds = min(2 * pause, self.MOST_SECONDS)
        return pause


class _Child:
    def __init__(self, command: Command) -> None:
        self.command = command
        self.pid: int | None = None  # None: not running
        self.started_at = 0.0
        self.restart_at: float | None = None
        self.restarts = 0  # after it ended by itself
        self.is_wanted = True  # until it is told to end
        self.backoff = Backoff()

    def __repr__(self) -> str:
        return f"<_Child {self.command.name} {f'pid {self.pid}' if self.pid else f'restart at {self.restart_at}'}>"


class Supervisor:
    """Runs the children until a signal or a configuration fault ends it. One per process, in its main thread.

    `build` is given the run directory, the listener's descriptor and the pipe's, and says what to start, control first.
    """

    def __init__(
        self,
        *,
        listener: socket.socket,
        more_listeners: Sequence[socket.socket] = (),
        build: Callable[[Path, int, int], Sequence[Command]],
        drain_seconds: float,
        run_parents: Sequence[Path] | None = None,
    ) -> None:
        self._listeners = [listener, *more_listeners]
        self._drain_seconds = drain_seconds
        self._directory = RunDirectory(run_parents)
        self._parent_fd, self._alive_fd = os.pipe()
        self._wake_fd, self._signal_fd = os.pipe()
        os.set_inheritable(self._parent_fd, True)
        for each in self._listeners:
            os.set_inheritable(each.fileno(), True)
        self._listen_address = bound_address(listener)
        self._children = [_Child(command) for command in build(self._directory.path, listener.fileno(), self._parent_fd)]
        self._is_up = False
        self._has_fault = False  # a child says that the configuration cannot work
        self._stop_signals = 0
        self._is_hurried = False  # a second SIGINT: do not wait for running requests

    def run(self) -> int:
        """Return the exit code when all children are gone."""
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._signal_fd, False)
        for number in (signal.SIGCHLD, *_SIGNALS):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._signal_fd, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # what came while this was being made is taken now
        try:
            for child in self._children:
                self._start(child)
            while not self._stop_signals and not self._has_fault:
                self._turn()
            self._stop()
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # one more would cut the interpreter's end short
            signal.set_wakeup_fd(-1)
            for file in (self._parent_fd, self._alive_fd, self._wake_fd, self._signal_fd):
                os.close(file)
            self._directory.remove()
        return EXIT_CONFIGURATION if self._has_fault else EXIT_OK

    def _turn(self, until: float | None = None) -> None:
        """Sleep until a signal, a restart that is due or the given time; then do what is to be done."""
        due = [child.restart_at for child in self._children if child.restart_at is not None]
        if until is not None:
            due.append(until)
        now = time.monotonic()
        if not self._is_up:
            due.append(now + _START_POLL_SECONDS)
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        poll.poll(max(0.0, min(due) - now) * 1000 + 1 if due else None)
        with suppress(BlockingIOError):
            for number in os.read(self._wake_fd, 4096):
                self._take_signal(number)
        self._reap()
        now = time.monotonic()
        for child in self._children:
            if child.restart_at is not None and now >= child.restart_at:
                self._start(child)
        if not (self._is_up or self._stop_signals or self._has_fault):
            self._announce()

    def _take_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            for child in self._children:
                if not child.command.is_serving and child.pid is not None:
                    os.kill(child.pid, signal.SIGHUP)
        if number not in (signal.SIGTERM, signal.SIGINT):
            return
        self._stop_signals += 1
        if self._stop_signals == 1:
            with suppress(OSError, ValueError):  # the configuration may have been another one at the start
                self._drain_seconds = float((self._directory.path / DRAIN).read_text())
            notice("INFO", f"{signal.Signals(number).name}: stopping; running requests get {self._drain_seconds:g} s")
        elif number == signal.SIGINT:
            self._is_hurried = True

    def _start(self, child: _Child) -> None:
        command = child.command
        child.restart_at = None
        child.started_at = time.monotonic()
        # Nobody else may hold a listener, or clients would still be let in by the kernel when nobody answers any more.
        open_fds = [listener.fileno() for listener in self._listeners if listener.fileno() >= 0]
        own = command.listen_fd if command.listen_fd is not None else self._listeners[0].fileno()
        hidden = [file for file in open_fds if not (command.is_serving and file == own)]
        try:
            child.pid = os.posix_spawn(
                command.arguments[0],
                command.arguments,
                {**os.environ, **SERVING_ENVIRON} if command.is_serving else dict(os.environ),
                file_actions=[(os.POSIX_SPAWN_CLOSE, file) for file in hidden],
                setsigmask=[signal.SIGHUP],  # ends nobody; control lets it in when it knows what to do
                setpgroup=0,  # Ctrl-C in a terminal reaches this process alone, which ends the others in order
            )
        except OSError as error:
            self._restart_later(child, f"cannot be started: {error.strerror}")
        self._write_down()

    def _write_down(self) -> None:
        """Tell control which processes there are; without it, it knows less and works as well."""
        lines = [
            f"{'serving' if child.command.is_serving else 'control'} {child.pid or 0} {child.restarts}\n"
            for child in self._children
        ]
        path = self._directory.path / PROCESSES
        fresh = path.with_name(f"{path.name}.new")
        with suppress(OSError):
            fresh.write_text("".join(lines))
            fresh.replace(path)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children:
                if child.pid == pid:
                    child.pid = None
                    self._take_end(child, os.waitstatus_to_exitcode(status))

    def _take_end(self, child: _Child, code: int) -> None:
        if not child.is_wanted:
            return
        if code == EXIT_CONFIGURATION and not self._is_up:
            # Later it may only be the file that changed or a port that was taken: not worth the running requests.
            notice("ERROR", f"{child.command.name} cannot work with this configuration; stopping")
            self._has_fault = True
        elif not self._has_fault:
            self._restart_later(child, f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}")

    def _restart_later(self, child: _Child, what: str) -> None:
        now = time.monotonic()
        pause = child.backoff.after(now - child.started_at)
        child.restart_at = now + pause
        child.restarts += 1
        notice("ERROR", f"{child.command.name} {what}; started again in {pause:g} s")

    def _announce(self) -> None:
        directory = self._directory.path
        serving = sum(child.command.is_serving for child in self._children)
        if all(serving_cells(directory, slot).exists() for slot in range(serving)):
            with suppress(OSError, ValueError):
                observers, admin, scheme = (directory / CONTROL_ADDRESSES).read_text().split()
                self._is_up = True
                notice(
                    "INFO",
                    f"ridgeline is up: clients {scheme}://{self._listen_address}, observers {observers}, admin {admin}; "
                    f"serving path {serving_path()}",
                )
                tell_systemd(READY)

    def _stop(self) -> None:
        tell_systemd(STOPPING)
        with suppress(OSError):  # what is shown then says nothing of it
            (self._directory.path / STOPPING_MARK).touch()
        for listener in self._listeners:
            listener.close()
        serving = [child for child in self._children if child.command.is_serving]
        control = [child for child in self._children if not child.command.is_serving]
        self._end(serving, self._drain_seconds + KILL_MARGIN_SECONDS)
        self._is_hurried = False  # what was asked of running requests; their records are still to be logged
        self._end(control, CONTROL_END_SECONDS)

    def _end(self, children: Sequence[_Child], seconds: float) -> None:
        """SIGTERM, and SIGKILL for what is left after this time. The other children are looked after meanwhile."""
        deadline = time.monotonic() + seconds
        for child in children:
            child.is_wanted = False
            child.restart_at = None
            if child.pid is not None:
                os.kill(child.pid, signal.SIGTERM)
        while any(child.pid is not None for child in children) and time.monotonic() < deadline and not self._is_hurried:
            self._turn(deadline)
        for child in children:
            if child.pid is not None:
                notice("ERROR", f"{child.command.name} had to be killed")
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                child.pid = None


def commands(
    config: Path, directory: Path, listen_fds: Sequence[int], parent_fd: int, event_loop: str = "uvloop"
) -> list[Command]:
    """Return the children of a real gateway."""
    shared = ["--run-dir", str(directory), "--parent-fd", str(parent_fd), "--processes", str(len(listen_fds))]
    control = [sys.executable, "-m", "proxy.control.process", "--config", str(config), *shared]
    return [
        Command("control process", is_serving=False, arguments=control),
        *(
            Command(
                f"serving process {slot}",
                is_serving=True,
                arguments=[
                    sys.executable,
                    "-O",  # asserts there only narrow types
                    "-m",
                    "proxy.serving.process",
                    *shared,
                    "--event-loop",
                    event_loop,
                    "--slot",
                    str(slot),
                    "--listen-fd",
                    str(listen_fd),
                ],
                listen_fd=listen_fd,
            )
            for slot, listen_fd in enumerate(listen_fds)
        ),
    ]


def _raise_file_limit() -> None:
    """Every stream takes two descriptors, and the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> int:
    """Run with the arguments that `ridgeline serve` gives, which has checked them. Return the exit code."""
    parser = argparse.ArgumentParser(prog="proxy.supervisor")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--drain-seconds", type=float, required=True)
    parser.add_argument("--event-loop", default="uvloop")
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until they are known what to do with: none may leave anything behind
    _raise_file_limit()
    try:
        listeners = open_listeners(options.listen, options.processes)
    except OSError as error:
        notice("ERROR", listen_fault("listen", options.listen, error))
        return EXIT_CANNOT_START
    try:
        supervisor = Supervisor(
            listener=listeners[0],
            more_listeners=listeners[1:],
            build=lambda directory, _, parent_fd: commands(
                options.config, directory, [listener.fileno() for listener in listeners], parent_fd, options.event_loop
            ),
            drain_seconds=options.drain_seconds,
        )
    except OSError as error:
        notice("ERROR", f"no run directory can be made: {error.strerror}")
        return EXIT_CANNOT_START
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
