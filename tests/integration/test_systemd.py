"""The unit as systemd reads it, and a gateway that says when it is up."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.config.settings import LimitsConfig
from proxy.supervisor import CONTROL_END_SECONDS, EXIT_CONFIGURATION, KILL_MARGIN_SECONDS
from tests.deploy.dockerfile import ROOT
from tests.integration.gateway import running_gateway
from tests.integration.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.integration

UNIT = ROOT / "deploy/systemd/ridgeline.service"
MOST_EXPOSURE = 2.0  # of 10; an ordinary service without hardening has 9.6


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is not installed")  # a failure under REQUIRE_REAL=1
    return subprocess.run([found, *arguments], check=False, capture_output=True, text=True)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that there is on this machine."""
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace("/opt/ridgeline/bin/ridgeline", "/bin/true"))
    return path


def test_systemd_has_nothing_to_say_about_the_unit(unit):
    """It exits with 0 even for unknown settings, so its standard error has to be empty."""
    done = analyze("verify", str(unit))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_service_is_hardly_exposed(unit):
    """By systemd's own marks for what a service may do."""
    done = analyze("security", "--offline=true", "--no-pager", str(unit))

    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= MOST_EXPOSURE


def test_the_unit_gives_the_time_that_ending_takes():
    """With the default of drain_seconds; and a wrong configuration is not started again and again."""
    text = UNIT.read_text()

    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(seconds) >= LimitsConfig().drain_seconds + KILL_MARGIN_SECONDS + CONTROL_END_SECONDS
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)
    assert set(codes.split()) == {"2", str(EXIT_CONFIGURATION)}  # 2: `ridgeline serve` found problems in the file


@pytest.mark.parametrize(
    ("models", "status", "said"),
    [("[{name: my-model, workers: [http://127.0.0.1:8000]}]", 0, ""), ("[]", 2, "models: is empty")],
)
def test_a_reload_looks_at_the_file_first(models: str, status: int, said: str, tmp_path: Path) -> None:
    """What comes of the signal is only in the log; `systemctl reload` says what fails before it. A good file prints nothing."""
    config = tmp_path / "ridgeline.yaml"
    config.write_text(f"models: {models}\n")
    check, signal = re.findall(r"^ExecReload=(.*)$", UNIT.read_text(), re.MULTILINE)
    command = check.replace("/opt/ridgeline/bin/ridgeline", f"{sys.executable} -m proxy.cli")
    command = command.replace("/etc/ridgeline/ridgeline.yaml", str(config))

    done = subprocess.run(shlex.split(command), check=False, cwd=ROOT, capture_output=True, text=True)

    assert signal == "/bin/kill -HUP $MAINPID"
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr


async def test_a_gateway_says_when_it_is_up_and_when_it_ends(worker: ScriptedWorker, tmp_path: Path) -> None:
    """READY comes only once clients are answered, STOPPING with the signal."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}

        async with running_gateway(workers=[worker.url], environ=environ, wait_ready=False) as gateway:
            async with asyncio.timeout(20):
                first = await loop.sock_recv(listener, 100)
            status, _ = await gateway.get(gateway.base_url + "/readyz")
        second = await loop.sock_recv(listener, 100)

    assert (first, status, second) == (b"READY=1", 200, b"STOPPING=1")
