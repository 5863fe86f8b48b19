"""Mounts and links of one's own, which need no rights where the kernel lets everybody make them."""

from __future__ import annotations

import subprocess

import pytest


def in_own(*kinds: str) -> tuple[str, ...]:
    """What runs the command behind it as root of namespaces of its own, say of ``mount``. Leaves the test out if it cannot."""
    command = ("unshare", "--map-root-user", *(f"--{kind}" for kind in kinds))
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"this machine makes no namespaces for us: {' '.join(command)}")  # a failure under REQUIRE_REAL=1
    return command
