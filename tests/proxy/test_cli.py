"""The command line: what each command hands on, and its exit status."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxy.cli import EventLoop, app, supervisor_command

ROOT = Path(__file__).parents[2]


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def test_version():
    """The version is that of the installed distribution, and how the serving path runs stands beside it."""
    result = run("--version")
    assert result.exit_code == 0
    assert re.fullmatch(r"ridgeline 0\.\S+ \(serving path (compiled|interpreted)\)\n", result.output)


@pytest.mark.parametrize("command", ["serve", "check", "simulate", "plan", "doctor"])
def test_help(command):
    """Every command explains itself."""
    assert run(command, "--help").exit_code == 0


def test_help_is_quick():
    """The command line itself imports nothing that only its commands need."""
    code = "import sys, proxy.cli; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "aiohttp", "uvloop", "proxy.config.settings", "simulator.model_files", "simulator.worker"} & set(
        loaded
    )


def test_the_supervisor_gets_what_it_needs():
    """The supervisor needs no configuration reader: all it must know is on its command line."""
    command = supervisor_command(Path("/etc/r.yaml"), "[::]:8080", 2, 120.0, EventLoop.ASYNCIO)
    assert command[1:3] == ["-m", "proxy.supervisor"]
    told = ["--config", "/etc/r.yaml", "--listen", "[::]:8080", "--processes", "2", "--drain-seconds", "120.0"]
    assert command[3:] == [*told, "--event-loop", "asyncio"]


def test_serve_names_the_event_loops_there_are():
    """A slip is refused, with what would be right."""
    result = run("serve", "--config", str(ROOT / "examples/minimal.yaml"), "--event-loop", "uv")

    assert result.exit_code == 2
    assert "'uvloop', 'asyncio'" in result.output


def test_serve_refuses_a_bad_configuration(tmp_path):
    """Problems go to standard error, nothing is started, and the status is 2."""
    path = tmp_path / "bad.yaml"
    path.write_text("lisen: 1\n")
    result = run("serve", "--config", str(path))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "did you mean `listen`?" in result.stderr


def test_serve_becomes_the_supervisor(tmp_path):
    """With a good configuration the supervisor takes over; that the port is taken is then its finding, with status 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path = tmp_path / "good.yaml"
        path.write_text(f"listen: {address}\nmodels: [{{name: m, workers: [http://127.0.0.1:1]}}]\n")
        command = [sys.executable, "-m", "proxy.cli", "serve", "--config", str(path)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 1
    assert address in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("count", ["0", "65", "many"])
def test_serve_bounds_the_number_of_processes(count):
    """One to 64 serving processes can be asked for."""
    assert run("serve", "--config", str(ROOT / "examples/minimal.yaml"), "--processes", count).exit_code == 2


def test_check():
    """A good file has status 0, a bad one 2, none at all 2."""
    good = run("check", str(ROOT / "examples/two-pools.yaml"))
    assert good.exit_code == 0
    assert "models[0].pools[1].max_total_tokens" in good.output
    assert run("check", "/nonexistent.yaml").exit_code == 2
    assert run("check").exit_code == 2


def test_check_as_json():
    """The JSON form is one document on standard output."""
    assert json.loads(run("check", str(ROOT / "examples/minimal.yaml"), "--json").stdout)["valid"] is True


def test_check_prints_the_schema():
    """The schema is printed without a file."""
    result = run("check", "--schema")
    assert result.exit_code == 0
    assert result.stdout == (ROOT / "docs/reference/config.schema.json").read_text()


def test_simulate_refuses_an_unknown_gpu():
    """What the simulated worker refuses ends with status 2 and one line."""
    result = run("simulate", "--model", "m", "--gpu", "no-such-gpu", "--port", "0")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
