"""`ridgeline import`: reads the file of another gateway, writes a configuration and says what it could not hold."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from proxy.config.errors import ConfigError
from proxy.importing.draft import Draft, NothingToImportError, written_out
from proxy.importing.litellm import from_litellm
from proxy.importing.production_stack import from_production_stack
from proxy.importing.vllm_router import from_vllm_router
from proxy.importing.writing import text_of


class Kind(StrEnum):
    """What the file is of."""

    LITELLM = "litellm"
    PRODUCTION_STACK = "production-stack"
    VLLM_ROUTER = "vllm-router"


def import_config(
    kind: Annotated[Kind, typer.Argument(help="What the file is of.", show_default=False)],
    file: Annotated[
        Path,
        typer.Argument(
            help="LiteLLM's config.yaml, values of production-stack's chart, or vllm-router's command line.", metavar="FILE"
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="File to write; absent: standard output.", metavar="FILE", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name that the workers of vllm-router serve.", show_default=False)] = None,
    release: Annotated[str, typer.Option(help="Name that production-stack's chart was installed under.")] = "vllm",
) -> None:
    """Make a configuration out of that of another gateway. Exit status 1 when something of it could not be carried over."""
    from proxy.config.file import read_text  # noqa: PLC0415 (see proxy/cli.py)

    try:
        text, draft = imported(kind, read_text(file), source=file.name, model=model, release=release)
    except ConfigError as error:
        raise _failed(str(error)) from None
    except NothingToImportError as error:
        raise _failed(f"{file}: {error}") from None
    if output is None:
        typer.echo(text, nl=False)
    else:
        try:
            with output.open("x", encoding="utf-8") as opened:  # never over something
                opened.write(text)
        except OSError as error:
            raise _failed(f"{output} cannot be written: {error.strerror}") from None
    for name, variable in draft.variables.items():
        typer.echo(f"set {name}: {variable.what}", err=True)
    for note in draft.left_out:
        typer.echo(f"not carried over: {note.where}: {note.why}", err=True)
    raise typer.Exit(1 if draft.left_out else 0)


def imported(kind: Kind, text: str, *, source: str, model: str | None, release: str) -> tuple[str, Draft]:
    """Return the configuration file, and the draft it was made of.

    Raises `NothingToImportError`, and `ConfigError` when what came of it is not valid, with the lines of what was made.
    """
    from proxy.config.settings import read_config  # noqa: PLC0415 (see proxy/cli.py)

    readers: dict[Kind, Callable[[], Draft]] = {
        Kind.LITELLM: lambda: from_litellm(_yaml(text)),
        Kind.PRODUCTION_STACK: lambda: from_production_stack(_yaml(text), release=release),
        Kind.VLLM_ROUTER: lambda: from_vllm_router(text, model=model),
    }
    draft = readers[kind]()
    made = text_of(draft, kind=kind.value, source=source)
    read_config(
        made, {name: variable.example for name, variable in draft.variables.items()}, f"the configuration made of {source}"
    )
    return made, draft


def _yaml(text: str) -> Any:
    try:
        return written_out(yaml.safe_load(text))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, NothingToImportError):
            raise
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1})" if mark is not None else ""
        raise NothingToImportError(f"it is no YAML{place}") from None  # the parser's own text quotes the line


def _failed(text: str) -> typer.Exit:
    sys.stderr.write(text + "\n")
    return typer.Exit(2)
