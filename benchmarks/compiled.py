"""A copy of the gateway whose serving path is compiled to C by Cython: ``python -m benchmarks.compiled --into DIR``.

``make compiled`` does it. The sources are compiled as they are, without a line written for it, and lie beside what was made of
them; started from within the folder, Python takes the latter. docs/cost.md says what that is worth and
docs/decisions/0018-a-compiled-copy.md why it is no more than a copy. A C compiler and Python's headers have to be there.
"""

# ruff: noqa: S603 -- the compiler

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.tool import ROOT

PACKAGES = ("proxy", "telemetry", "routing", "roofline", "simulator", "dashboards")
HOT = (
    *(
        f"proxy/serving/{name}"
        for name in ("account", "client", "counted", "dispatch", "endpoints", "estimating", "exchange", "progress")
    ),
    *(f"proxy/upstream/{name}" for name in ("answering", "attempts", "connections", "ledger", "load", "relay", "usage_filter")),
    *(f"proxy/wire/{name}" for name in ("answers", "framing", "inference", "known_heads")),
    *(f"routing/{name}" for name in ("demand", "estimate", "health", "policies", "policy", "pools")),
    *(f"telemetry/{name}" for name in ("meter", "plain_meter", "recorder")),
)
"""What a request or a token passes through in a serving process."""


def compile_into(folder: Path, modules: Sequence[str] = HOT) -> list[Path]:
    """Copy the packages and compile these modules of them; what was compiled. Raises CalledProcessError."""
    shutil.rmtree(folder, ignore_errors=True)  # what was compiled of sources that have changed would hide them
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    with ThreadPoolExecutor(2) as several:
        return list(several.map(lambda module: _compile(folder / f"{module}.py"), modules))


def _compile(source: Path) -> Path:
    in_c = source.with_suffix(".c")
    options = ("-3", "-X", "annotation_typing=False")  # annotations are for people and mypy: an int may come where a float may
    subprocess.run([sys.executable, "-m", "cython", *options, str(source), "-o", str(in_c)], check=True)
    target = source.with_name(source.stem + sysconfig.get_config_var("EXT_SUFFIX"))
    include = sysconfig.get_path("include")
    compiler = shutil.which("cc") or "cc"
    subprocess.run([compiler, "-O2", "-fPIC", "-shared", "-w", f"-I{include}", str(in_c), "-o", str(target)], check=True)
    in_c.unlink()
    return target


def _missing() -> str | None:
    if shutil.which("cc") is None:
        return "a C compiler is needed, and no cc is on the PATH (Debian: gcc, libc6-dev)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"Python.h is needed, and not in {sysconfig.get_path('include')} (Debian: python3-dev)"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile and say how much."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="where the copy goes")
    folder = parser.parse_args(arguments).into
    if why := _missing():
        sys.stderr.write(f"benchmarks: {why}\n")
        return 2
    if folder.exists() and not (folder / "proxy").is_dir():
        sys.stderr.write(f"benchmarks: {folder} is there and no copy of the gateway; name another folder\n")
        return 2
    made = compile_into(folder)
    sys.stdout.write(f"{len(made)} modules, {sum(path.stat().st_size for path in made):,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
