"""A copy of the gateway whose hot modules are compiled by Cython: ``python -m benchmarks.compiled --into DIR``.

To see what compiling is worth; docs/cost.md has the figures. The sources stay as they are and lie beside what was compiled, for
``--also compiled=PYTHON,DIR`` of ``python -m benchmarks``. Cython and a C compiler have to be there.
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile and say how much."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="where the copy goes")
    made = compile_into(parser.parse_args(arguments).into)
    sys.stdout.write(f"{len(made)} modules, {sum(path.stat().st_size for path in made):,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
