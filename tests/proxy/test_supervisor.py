"""The supervisor with children of a few lines: what is restarted, what is ended and in which order, with which code."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from proxy.listener import bound_address, open_listener
from proxy.rundir import STOPPING_MARK, RunDirectory
from proxy.supervisor import Backoff, commands

FAMILY = Path(__file__).with_name("family.py")


class Family:
    """A running supervisor, seen from outside."""

    def __init__(self, directory: Path, *behaviours: str, drain_seconds: float) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address: tuple[str, int] = free.getsockname()
        self._directory = directory
        self._errors = directory / "errors"
        arguments = ["supervise", str(directory), f"127.0.0.1:{self.address[1]}", str(drain_seconds), *behaviours]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen([sys.executable, str(FAMILY), *arguments], stderr=errors)

    @property
    def notes(self) -> list[str]:
        """What the children wrote, without their process ids."""
        return [line.rpartition(" ")[0] for line in self._lines()]

    @property
    def text(self) -> str:
        return self._errors.read_text()

    @property
    def run_directories(self) -> list[Path]:
        return list(self._directory.glob("ridgeline-*"))

    def pid(self, name: str) -> int:
        return int([line for line in self._lines() if line.startswith(f"{name} started")][-1].split()[-1])

    def is_up(self) -> bool:
        return "ridgeline is up" in self.text

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(10)

    def _lines(self) -> list[str]:
        path = self._directory / "notes"
        return path.read_text().splitlines() if path.exists() else []


Start = Callable[..., Family]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    families: list[Family] = []

    def start_family(*behaviours: str, drain_seconds: float = 10.0) -> Family:
        families.append(Family(tmp_path, *behaviours, drain_seconds=drain_seconds))
        return families[-1]

    yield start_family
    for family in families:
        if family.process.poll() is None:
            family.process.kill()
            family.process.wait()


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_backoff_doubles_up_to_five_seconds_and_starts_anew_after_a_good_life() -> None:
    """A child that dies at once waits longer each time; one that lived for ten seconds waits the shortest time."""
    backoff = Backoff()

    assert [backoff.after(0.0) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.after(10.0) == 0.1
    assert backoff.after(9.9) == 0.2


def test_real_commands_carry_what_each_process_needs() -> None:
    """Control comes first, without the listener; every serving process has its slot and the listener."""
    control, first, second = commands(Path("g.yaml"), Path("/run/x"), [5, 6], 7, "asyncio")

    shared = ["--run-dir", "/run/x", "--parent-fd", "7", "--processes", "2"]
    assert control.arguments[1:] == ["-m", "proxy.control.process", "--config", "g.yaml", *shared]
    serving = ["-O", "-m", "proxy.serving.process", *shared, "--event-loop", "asyncio"]
    assert first.arguments[1:] == [*serving, "--slot", "0", "--listen-fd", "5"]
    assert second.arguments[-4:] == ["--slot", "1", "--listen-fd", "6"]
    assert [command.is_serving for command in (control, first, second)] == [False, True, True]


def test_all_up_is_told_once_and_the_end_comes_in_order(start: Start) -> None:
    """One line names the three addresses; SIGTERM reaches control only after all serving processes are gone; code 0."""
    family = start("control=well", "serving-0=well", "serving-1=well")
    eventually(family.is_up)
    assert family.text.count("\n") == 1
    assert (
        f"clients http://127.0.0.1:{family.address[1]}, observers http://127.0.0.1:1, admin https://127.0.0.1:2" in family.text
    )

    assert family.end() == 0

    ends = [note for note in family.notes if note.endswith("told to end")]
    assert sorted(ends[:2]) == ["serving-0 told to end", "serving-1 told to end"]
    assert ends[2:] == ["control told to end"]
    assert family.run_directories == []


def test_that_all_is_being_stopped_is_known_before_any_child_ends(start: Start) -> None:
    """Control shows it to whoever looks, while serving processes still drain."""
    family = start("control=well", "serving-0=well")
    eventually(family.is_up)
    (run_directory,) = family.run_directories
    assert not (run_directory / STOPPING_MARK).exists()

    family.end()

    assert next(note for note in family.notes if "stopped" in note) == "serving-0 sees that all is being stopped"


def test_only_serving_holds_the_listener(start: Start) -> None:
    """Control does not inherit it, or the kernel would let clients in after serving has closed it."""
    family = start("control=well", "serving-0=well")
    eventually(family.is_up)

    assert [note for note in family.notes if "listener" in note] == ["serving-0 holds the listener"]


def test_dead_child_is_restarted_and_the_port_stays_open(start: Start) -> None:
    """While a serving process is dead and restarted, clients can still connect; the other child is left alone."""
    family = start("control=well", "serving-0=well")
    eventually(family.is_up)
    control, first = family.pid("control"), family.pid("serving-0")

    os.kill(first, signal.SIGKILL)
    with socket.create_connection(family.address, timeout=1):
        eventually(lambda: family.pid("serving-0") != first)

    assert family.pid("control") == control
    assert "serving-0 ended by SIGKILL; started again in 0.1 s" in family.text
    assert family.end() == 0


def test_child_that_cannot_live_is_restarted_ever_more_slowly(start: Start) -> None:
    """The pauses double, so that a broken child costs next to nothing."""
    family = start("control=exit-3", "serving-0=well")

    eventually(lambda: family.notes.count("control started") >= 4)

    assert [f"code 3; started again in {pause} s" in family.text for pause in ("0.1", "0.2", "0.4")] == [True] * 3
    assert not family.is_up()
    assert family.end() == 0


def test_configuration_fault_ends_everything(start: Start) -> None:
    """A child that ends with 78 at the start is not started again; the others are ended and the code is 78."""
    family = start("control=exit-78", "serving-0=well")

    assert family.process.wait(10) == 78

    assert family.notes.count("control started") == 1
    assert "control cannot work with this configuration" in family.text
    assert family.run_directories == []


def test_configuration_fault_of_a_restarted_child_does_not_end_running_requests(start: Start) -> None:
    """Once all were up, a child that ends with 78 is started again like any other."""
    family = start("control=well", "serving-0=late-78")

    eventually(lambda: family.notes.count("serving-0 started") >= 2)

    assert family.process.poll() is None
    assert family.end() == 0


def test_child_that_does_not_end_is_killed(start: Start, tmp_path: Path) -> None:
    """A second SIGINT cuts the drain time short: what still runs is killed, and the code is 0."""
    family = start("control=well", "serving-0=deaf", drain_seconds=600)
    eventually(family.is_up)
    serving = family.pid("serving-0")

    family.process.send_signal(signal.SIGINT)
    eventually(lambda: "stopping" in family.text)
    assert family.process.poll() is None
    family.process.send_signal(signal.SIGINT)

    assert family.process.wait(10) == 0
    assert not Path(f"/proc/{serving}").exists()
    assert "serving-0 had to be killed" in family.text
    assert family.notes[-1] == "control told to end"


def test_control_that_dies_during_the_drain_is_restarted(start: Start) -> None:
    """Requests that end during the drain still have somebody to send their records to."""
    family = start("control=well", "serving-0=deaf", drain_seconds=600)
    eventually(family.is_up)
    control = family.pid("control")
    family.process.terminate()
    eventually(lambda: "stopping" in family.text)

    os.kill(control, signal.SIGKILL)

    eventually(lambda: family.pid("control") != control)
    os.kill(family.pid("serving-0"), signal.SIGKILL)
    assert family.process.wait(10) == 0
    assert family.notes[-1] == "control told to end"


def test_clients_are_refused_once_serving_has_gone(start: Start) -> None:
    """While it stops, the supervisor itself does not keep the port open."""
    family = start("control=deaf", "serving-0=well", drain_seconds=600)
    eventually(family.is_up)

    family.process.terminate()

    def is_refused() -> bool:
        with suppress(ConnectionRefusedError), socket.create_connection(family.address, timeout=1):
            return False
        return True

    eventually(is_refused)
    assert family.process.poll() is None


def test_children_end_when_the_supervisor_is_killed(start: Start) -> None:
    """Nothing runs on without a parent; the next start removes the run directory that was left."""
    family = start("control=well", "serving-0=well")
    eventually(family.is_up)

    family.process.kill()
    family.process.wait()

    eventually(lambda: sorted(family.notes[-2:]) == ["control left alone", "serving-0 left alone"])
    (left,) = family.run_directories
    second = start("control=well", "serving-0=well")
    eventually(second.is_up)
    assert left not in second.run_directories
    assert second.end() == 0


def test_running_requests_get_the_time_that_is_configured_last(start: Start) -> None:
    """A reload may have changed it: control writes it down, and the end goes by that."""
    family = start("control=drains-7.5", "serving-0=well", drain_seconds=10.0)
    eventually(family.is_up)

    assert family.end() == 0
    assert "running requests get 7.5 s" in family.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_at_the_very_beginning_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """It waits until the supervisor knows what to do: an end is one with code 0, and a reload ends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = bound_address(free)
    program = (
        "import os, signal, proxy.supervisor as it\n"
        "first = it.open_listeners\n"
        f"it.open_listeners = lambda *a: os.kill(os.getpid(), {int(number)}) or first(*a)\n"
        "raise SystemExit(it.main())"
    )
    config = tmp_path / "none.yaml"
    arguments = ["--config", str(config), "--listen", address, "--drain-seconds", "1"]
    with subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE, text=True) as process:
        _, text = process.communicate(timeout=20)

    # Without a configuration it ends by itself where nobody has ended it.
    assert process.returncode == (78 if number == signal.SIGHUP else 0), text
    assert "stopping" in text


def test_signals_until_the_very_end_change_no_exit_code(start: Start) -> None:
    """Whoever asks again and again gets the code of a good end, and nothing is left."""
    family = start("control=well", "serving-0=well")
    eventually(family.is_up)

    while family.process.poll() is None:
        family.process.terminate()
        time.sleep(0.0002)

    assert family.process.returncode == 0
    assert family.run_directories == []


def test_hangup_is_ignored_by_all(start: Start) -> None:
    """SIGHUP ends nobody, the children neither, which inherit that from their first instruction on."""
    family = start("control=well", "serving-0=well")
    eventually(family.is_up)

    for pid in (family.process.pid, family.pid("control"), family.pid("serving-0")):
        os.kill(pid, signal.SIGHUP)

    assert family.end() == 0
    assert family.text.count("started again") == 0


def test_idle_supervisor_uses_no_time(start: Start) -> None:
    """Once all are up it is not woken: it sleeps in one system call."""
    family = start("control=well", "serving-0=well")
    eventually(family.is_up)

    def switches() -> str:
        lines = Path(f"/proc/{family.process.pid}/status").read_text().splitlines()
        return next(line for line in lines if line.startswith("voluntary_ctxt_switches"))

    time.sleep(0.1)
    before = switches()
    time.sleep(0.3)
    assert switches() == before


def test_address_in_use_is_one_line_and_code_1(tmp_path: Path) -> None:
    """The supervisor ends before anything is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = bound_address(taken)
        arguments = ["--config", "none.yaml", "--listen", address, "--drain-seconds", "1"]
        result = subprocess.run(
            [sys.executable, "-m", "proxy.supervisor", *arguments], capture_output=True, text=True, timeout=10, check=False
        )

    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert (
        f"ERROR cannot listen on {address} (listen): Address already in use; end the program that has it, or set listen to "
        "another address and port of this machine\n"
    ) in result.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::]:0"])
def test_listener_addresses(address: str) -> None:
    """Addresses of both families and names can be bound; `[::]` takes IPv4 clients too."""
    with open_listener(address) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1" if "::" in address else listener.getsockname()[0], port), timeout=1):
            assert bound_address(listener).endswith(f":{port}")


def test_run_directory_is_private_and_removed(tmp_path: Path) -> None:
    """Only its owner may enter; it is gone at the end, with what was in it."""
    directory = RunDirectory([tmp_path])
    (directory.path / "serving-0.cells").touch()
    assert directory.path.stat().st_mode & 0o777 == 0o700

    directory.remove()
    directory.remove()

    assert list(tmp_path.iterdir()) == []


def test_run_directory_in_use_and_foreign_ones_stay(tmp_path: Path) -> None:
    """A directory that is locked, has another kind of name or holds anything else is not removed by the next start."""
    in_use = RunDirectory([tmp_path])
    sources = tmp_path / "ridgeline-1.0"
    sources.mkdir()
    precious = tmp_path / "ridgeline-0123456789ab"
    precious.mkdir()
    (precious / "thesis.tex").touch()

    second = RunDirectory([tmp_path])

    assert in_use.path.exists()
    assert sources.exists()
    assert (precious / "thesis.tex").exists()
    in_use.remove()
    second.remove()


def test_run_directory_goes_where_it_can(tmp_path: Path) -> None:
    """The second choice is taken when the first is not there; without any the fault is told."""
    directory = RunDirectory([tmp_path / "missing", tmp_path])
    assert directory.path.parent == tmp_path
    directory.remove()

    with pytest.raises(FileNotFoundError):
        RunDirectory([tmp_path / "missing"])


def test_supervisor_stays_small() -> None:
    """It imports nothing but the standard library, and neither asyncio nor logging of that."""
    program = "import sys, proxy.supervisor; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=10, check=True)

    loaded = {name.partition(".")[0] for name in result.stdout.split()}
    assert loaded.isdisjoint({"asyncio", "logging", "aiohttp", "msgspec", "pydantic", "yaml", "routing", "telemetry"})
