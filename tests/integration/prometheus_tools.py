"""Prometheus and its tools: Debian's, which are installed, and where they could be had the newer ones in .cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEWER = ROOT / ".cache" / "prometheus" / "usr" / "bin"


def places() -> list[str]:
    """What tests are run on: `installed`, and `newer` where `deploy/setup/newer_prometheus.sh` has got one."""
    return ["installed", *(["newer"] if (NEWER / "promtool").exists() else [])]


def tool(name: str, place: str = "installed") -> str:
    """The program's path. Skips, which is a failure under REQUIRE_REAL=1, when it is not there."""
    if place == "newer":
        return str(NEWER / name)
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: prometheus, prometheus-alertmanager)")  # a failure under REQUIRE_REAL=1
    return found


def run(*command: str | Path, timeout_seconds: float = 60.0) -> str:
    """What the program says. AssertionError with it when the program fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_seconds, cwd=ROOT)
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr
