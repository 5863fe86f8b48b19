"""Running `ridgeline plan` in a test: its output, its errors, its exit status."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from typer.testing import CliRunner

from proxy.cli import app

LLAMA = ("--model", "llama-3.1-8b", "--gpu", "h100-sxm")


@dataclass(frozen=True)
class Run:
    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)


def run(*arguments: object, columns: int | None = 120, environ: dict[str, str] | None = None) -> Run:
    """The command with these arguments, on so many columns (None: a pipe that nobody has told)."""
    return _run(tuple(map(str, arguments)), columns, tuple((environ or {}).items()))


@cache  # a plan takes a few tenths of a second, and many tests look at the same one
def _run(arguments: tuple[str, ...], columns: int | None, environ: tuple[tuple[str, str], ...]) -> Run:
    env: dict[str, str | None] = {"COLUMNS": None if columns is None else str(columns), **dict(environ)}
    result = CliRunner().invoke(app, ["plan", *arguments], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Run(result.exit_code, result.stdout, result.stderr)


def llama(*arguments: object, **options: Any) -> Run:
    return run(*LLAMA, *arguments, **options)
