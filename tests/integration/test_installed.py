"""Installed by the steps of the image, with nothing of the checkout, run by a user who may write nowhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT, last, stages
from tests.integration.gateway import free_ports

pytestmark = pytest.mark.integration

PREFIX = "/opt/ridgeline"  # in the image
UID = 10001
PACKAGES = ("proxy", "telemetry", "routing", "roofline", "simulator", "dashboards")
COMPILED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ridgeline"]["compiled"]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that every user can look into, unlike those of pytest."""
    path = Path(tempfile.mkdtemp(prefix="installed-"))
    path.chmod(0o755)
    yield path
    subprocess.run(["rm", "-rf", path], check=True)


def files() -> list[str]:
    """What git has, or would have."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).exists()]


def copy(sources: list[str], to: Path) -> None:
    """Copy as COPY does: files by their name, folders by what is in them, under their own names here."""
    for source in sources:
        for name in files():
            if name == source:
                shutil.copy2(ROOT / name, to / Path(name).name)
            elif name.startswith(source + "/"):
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, to / name)


def environ(path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
    return {**kept, "PATH": f"{path}:/usr/bin:/bin", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "LANG": "C.UTF-8"}


def unprivileged() -> list[str]:
    """Prefix of a command that is to own nothing; whoever runs the tests without rights has none to give away."""
    return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--no-new-privs"] if os.geteuid() == 0 else []


def interpreter() -> str:
    """One that every user may run, and new enough; that of the tests may be in a home."""
    question = "import sys; sys.exit(sys.version_info < (3, 11))"
    # By `env`, as setpriv itself may still look into every folder.
    for path in (str(Path(sys.executable).resolve()), "/usr/bin/python3", "/usr/local/bin/python3"):
        if (
            Path(path).exists()
            and not subprocess.run([*unprivileged(), "env", path, "-c", question], check=False, capture_output=True).returncode
        ):
            return path
    pytest.skip("no Python from 3.11 on that a user without rights may run")  # a failure under REQUIRE_REAL=1


@pytest.fixture(scope="module")
def installed(folder: Path) -> Path:
    """The environment as the first stage of the image makes it: each RUN and COPY, at another place."""
    if subprocess.run([ROOT / "deploy/setup/can_compile.sh"], check=False, capture_output=True).returncode:
        pytest.skip("the serving path cannot be compiled here (deploy/setup/can_compile.sh)")  # a failure under REQUIRE_REAL=1
    python = folder / "python"
    subprocess.run([interpreter(), "-m", "venv", "--without-pip", python], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python / "bin/python"), "install", "--quiet", "pip"]
    subprocess.run(pip, check=True)
    build = folder / "build"
    build.mkdir()
    arguments = {}
    for step in stages()[0]:
        if step.word == "ARG":
            arguments.update([step.rest.split("=", 1)])
        elif step.word == "COPY":
            copy(step.sources, build)
        elif step.word == "RUN" and not step.rest.startswith("apt-get "):  # the compiler of this machine does
            command = step.rest.replace(PREFIX, str(folder / "ridgeline"))
            asked = environ(python / "bin") | arguments
            done = subprocess.run(["sh", "-ec", command], check=False, cwd=build, env=asked, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return folder / "ridgeline"


@contextmanager
def running(installed: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*unprivileged(), str(installed / "bin/ridgeline"), *command],
        cwd="/",
        env={**environ(installed / "bin"), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def answer(url: str, process: subprocess.Popen[str], body: object = None, seconds: float = 20.0) -> bytes:
    """What is answered, once somebody listens. What the process has said, when nobody does."""
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"})
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(request, timeout=10) as response:
            return response.read()
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"no answer from {url}: {process.stdout.read() if process.stdout else None}")


def state(path: Path) -> dict[str, int]:
    return {str(each): each.stat().st_mtime_ns for each in path.rglob("*")}


def test_it_serves_as_the_image_would_start_it(installed, folder):
    """The image's own command and health check, by a user who may not write where it is installed; SIGTERM ends it with 0."""
    *_, final = stages()
    gateway, observer, admin, worker = free_ports(4)
    config = folder / "ridgeline.yaml"
    config.write_text(
        f"listen: 127.0.0.1:{gateway}\nobserve_listen: 127.0.0.1:{observer}\nadmin_listen: 127.0.0.1:{admin}\n"
        f"models:\n  - {{name: my-model, workers: [http://127.0.0.1:{worker}]}}\nlimits: {{drain_grace_seconds: 0}}\n"
    )
    serve = [str(config) if word == "/etc/ridgeline/ridgeline.yaml" else word for word in last(final, "CMD").command]
    health = [word.replace(":8080", f":{gateway}") for word in last(final, "HEALTHCHECK").command]
    simulate = ["simulate", "--model", "my-model", "--shape", "llama-3.1-8b", "--gpu", "h100-sxm", "--port", str(worker)]
    before = state(installed)

    with running(installed, *simulate), running(installed, *serve) as process:
        body = {"model": "my-model", "prompt": "one two", "max_tokens": 3}
        completion = json.loads(answer(f"http://127.0.0.1:{gateway}/v1/completions", process, body))
        checked = subprocess.run([*unprivileged(), *health], env=environ(installed / "bin"), check=False)
        page, script = (answer(f"http://127.0.0.1:{admin}/{path}", process) for path in ("", "live/app.js"))
        owners = {Path(f"/proc/{process.pid}").stat().st_uid}
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
        afterwards = subprocess.run(
            [*unprivileged(), *health], env=environ(installed / "bin"), check=False, capture_output=True
        )

    assert completion["usage"]["completion_tokens"] == 3
    assert checked.returncode == 0
    assert page == (ROOT / "dashboards/live/static/index.html").read_bytes()
    assert script == (ROOT / "dashboards/live/static/app.js").read_bytes()
    assert afterwards.returncode != 0
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert 0 not in owners
    assert state(installed) == before


def test_the_command_says_its_version_and_completes_its_words(installed):
    """Outside the checkout, from the metadata of the package; the configuration's schema is within."""

    def told(*command: str, **more: str) -> str:
        environment = environ(installed / "bin") | more
        done = subprocess.run(["ridgeline", *command], cwd="/", env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    version = (ROOT / "pyproject.toml").read_text().partition('\nversion = "')[2].partition('"')[0]
    assert told("--version") == f"ridgeline {version} (serving path compiled)\n"
    assert told("--version", RIDGELINE_INTERPRETED="1") == f"ridgeline {version} (serving path interpreted)\n"
    assert json.loads(told("check", "--schema")) == json.loads((ROOT / "docs/reference/config.schema.json").read_text())
    words = {"_RIDGELINE_COMPLETE": "complete_bash", "COMP_WORDS": "ridgeline s", "COMP_CWORD": "1"}
    assert {"serve", "simulate"} <= set(told(**words).split())
    for shell in ("bash", "zsh", "fish"):
        assert "_RIDGELINE_COMPLETE=complete_" + shell in told(_RIDGELINE_COMPLETE=f"source_{shell}")


def test_the_archives_hold_every_file_of_the_packages(installed, folder):
    """A page or a table that is left out is missed only where there is no checkout. From the sdist comes the same, and pure."""
    (wheel,) = (folder / "build/wheels").glob("*.whl")
    wanted = {name for name in files() if name.split("/")[0] in PACKAGES}
    sources = folder / "sources"
    sources.mkdir()
    copy([*PACKAGES, "pyproject.toml", "setup.py", "README.md", "LICENSE"], sources)
    build = "import sys, setuptools.build_meta as meta; print(meta.build_sdist(sys.argv[1]))"
    python = str(folder / "python/bin/python")

    subprocess.run([python, "-c", build, str(folder)], cwd=sources, env=environ(folder / "python/bin"), check=True)
    (sdist,) = folder.glob("*.tar.gz")
    pip = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sdist)]
    subprocess.run(pip, env=environ(folder / "python/bin"), check=True)

    (second,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as first_archive, zipfile.ZipFile(second) as second_archive:
        assert wanted - set(first_archive.namelist()) == set()
        compiled = {name for name in first_archive.namelist() if name.endswith(".so")}
        assert {name.partition(".")[0].replace("/", ".") for name in compiled} == set(COMPILED)
        assert set(first_archive.namelist()) - compiled == set(second_archive.namelist())
    assert second.name.endswith("-py3-none-any.whl")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} | wanted <= names
