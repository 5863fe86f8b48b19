"""deploy/vllm-cpu/setup.sh: what is installed once is not installed again. Nothing is ever installed here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "deploy/vllm-cpu/setup.sh"
NO_PYTHON = 3  # what it ends with where there is none to install with


def a_checkout(folder: Path, *, vllm: str | None = None) -> Path:
    """One that has an environment for this version of vLLM, by default the wanted one; and no Python to make another with."""
    script = folder / "deploy/vllm-cpu/setup.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(SETUP, script)
    binaries = folder / ".cache/vllm-cpu/venv/bin"
    binaries.mkdir(parents=True)
    python = binaries / "python"
    python.write_text("#!/bin/sh\necho Python 3.11.9\n")
    python.chmod(0o755)
    versions = dict(re.findall(r"^(torch|vllm)=(\S+)", SETUP.read_text(), re.MULTILINE))
    stamp = f"torch {versions['torch']}, vllm {vllm or versions['vllm']}, Python 3.11.9\n"
    (binaries.parent / "ridgeline-installed").write_text(stamp)
    return folder


def set_up(checkout: Path) -> int:
    """The exit status, where no other Python than the environment's can be started."""
    empty = checkout / "no-python"
    empty.mkdir(exist_ok=True)
    for name in ("python3.11", "python3"):
        (empty / name).write_text("#!/bin/sh\nexit 1\n")
        (empty / name).chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name != "RIDGELINE_VLLM_VENV"}
    ran = subprocess.run(
        [checkout / "deploy/vllm-cpu/setup.sh"],
        env=environ | {"PATH": f"{empty}:{os.environ['PATH']}"},
        capture_output=True,
        check=False,
        timeout=20,
    )
    return ran.returncode


def test_what_is_installed_stays_when_the_checkout_is_moved(tmp_path: Path) -> None:
    """An installation is known by what is in it, wherever it lies."""
    before = a_checkout(tmp_path / "before")
    assert set_up(before) == 0

    assert set_up(before.rename(tmp_path / "after")) == 0


def test_a_linked_installation_is_taken(tmp_path: Path) -> None:
    """Another checkout may have a link to the environment of the first one."""
    first = a_checkout(tmp_path / "first")
    second = a_checkout(tmp_path / "second")
    shutil.rmtree(second / ".cache")
    (second / ".cache").symlink_to(first / ".cache")

    assert set_up(second) == 0


def test_an_older_stamp_that_ends_with_its_place_still_counts(tmp_path: Path) -> None:
    """What was installed when the place was part of the stamp is not installed again."""
    checkout = a_checkout(tmp_path / "here")
    stamp = checkout / ".cache/vllm-cpu/venv/ridgeline-installed"
    stamp.write_text(f"{stamp.read_text().strip()}, /somewhere/else\n")

    assert set_up(checkout) == 0


@pytest.mark.parametrize("vllm", ["0.1.0", "none"])
def test_another_version_is_installed_anew(tmp_path: Path, vllm: str) -> None:
    """It goes on to look for a Python to install with, and says that there is none."""
    assert set_up(a_checkout(tmp_path / "here", vllm=vllm)) == NO_PYTHON
