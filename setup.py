"""What pyproject.toml cannot say: with RIDGELINE_COMPILED=1 a build compiles the serving path to C by Cython.

The modules are named in pyproject.toml and compiled as they are; their sources stay beside them, for tracebacks and for
RIDGELINE_INTERPRETED=1. Without the switch the wheel is pure and no compiler is needed. docs/decisions/0018-a-compiled-copy.md
says why.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
SWITCH = "RIDGELINE_COMPILED"


def is_wanted() -> bool:
    """Whether to compile. Ends the build when the switch is neither on nor off."""
    value = os.environ.get(SWITCH, "0")
    if value not in ("", "0", "1"):
        sys.exit(f"{SWITCH}={value}: must be 1 (compile the serving path) or 0 (leave it as it is)")
    return value == "1"


def modules() -> list[str]:
    """The modules to compile, as pyproject.toml names them. Ends the build when one is not there."""
    named: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ridgeline"]["compiled"]
    for name in named:
        if not (ROOT / source_of(name)).is_file():
            sys.exit(f"pyproject.toml, tool.ridgeline.compiled: there is no {source_of(name)}; was the module moved?")
    return named


def source_of(name: str) -> str:
    """Where a module is, from the top of the repository."""
    return name.replace(".", "/") + ".py"


class CompiledPath(build_ext):
    """Cython to C and the compiler, module by module, on all cores."""

    def finalize_options(self) -> None:
        """All cores, unless the command says otherwise."""
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        """Say what is missing before anything is made."""
        include = Path(sysconfig.get_path("include"))
        if self.inplace:
            sys.exit(f"{SWITCH}: an editable installation stays as it is, or changed sources would not be taken; leave it out")
        if shutil.which("cc") is None:
            sys.exit(f"{SWITCH}: a C compiler is needed, and no cc is on the PATH (Debian: gcc, libc6-dev)")
        if not (include / "Python.h").exists():
            sys.exit(f"{SWITCH}: Python.h is needed, and not in {include} (Debian: python3-dev)")
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Compile one module."""
        (source,) = ext.sources
        in_c = Path(self.build_temp, source).with_suffix(".c")
        in_c.parent.mkdir(parents=True, exist_ok=True)
        options = (
            "-3",
            "-X",
            "annotation_typing=False",
        )  # annotations are for people and mypy: an int may come where a float may
        subprocess.run([sys.executable, "-m", "cython", *options, source, "-o", str(in_c)], check=True)  # noqa: S603
        ext.sources = [str(in_c)]
        super().build_extension(ext)


if is_wanted():
    # After the interpreter's own flags: -O3 is larger and no faster, and debugging symbols are four times the code.
    flags = ["-O2", "-g0", "-w"]
    setup(
        ext_modules=[Extension(name, [source_of(name)], extra_compile_args=flags) for name in modules()],
        cmdclass={"build_ext": CompiledPath},
        setup_requires=["Cython>=3.1"],  # told to the builder, which gets it; floor: the first for Python 3.13
    )
else:
    setup()
