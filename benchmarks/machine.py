"""Where and with what a run was made, for its raw figures."""

# ruff: noqa: S603 -- the compiler is asked for its version

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

_LIBRARIES = ("uvloop", "httptools", "msgspec", "aiohttp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine, its software, and the versions of what the gateway's cost depends on."""

    processor: str
    cores: int
    memory_bytes: int
    kernel: str
    system: str
    python: str
    libraries: dict[str, str]
    compiler: str

    def __str__(self) -> str:
        gib = self.memory_bytes / 2**30
        libraries = ", ".join(f"{name} {number}" for name, number in self.libraries.items())
        hardware = f"{self.processor}, {self.cores} cores, {gib:.0f} GiB"
        return f"{hardware}; {self.system}, kernel {self.kernel}; {self.python}; {libraries}; {self.compiler}"


def describe_machine() -> Machine:
    """Describe the machine this runs on."""
    return Machine(
        processor=_field(Path("/proc/cpuinfo"), "model name", ":") or platform.machine(),
        cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        system=_field(Path("/etc/os-release"), "PRETTY_NAME", "=").strip('"') or platform.system(),
        python=f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()})",
        libraries={name: version(name) for name in _LIBRARIES},
        compiler=_compiler(),
    )


def command_line() -> str:
    """The command as a person would repeat it."""
    return " ".join(["python -m benchmarks", *sys.argv[1:]])


def _field(path: Path, name: str, separator: str) -> str:
    """The first value of this name in a file of lines; empty when there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(separator)[2].strip() for line in lines if line.startswith(name)), "")


def _compiler() -> str:
    program = shutil.which("cc")
    if program is None:
        return ""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]
