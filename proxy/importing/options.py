"""Options of a command line, wherever it stands: a script, a unit of systemd, the arguments of a container, or bare."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

from proxy.importing.draft import NothingToImportError, written_out

_PROGRAM = re.compile(r"(?:.*/)?vllm-router|vllm_router(?:\.\w+)?|sglang_router\.launch_router|(?:.*/)?sglang-router")
_ENDS = {"&&", "||", ";", "|", "&", ">", ">>", "2>", "2>&1", "<"}
_TELLING = ("--worker-urls", "--static-backends", "--service-discovery", "--prefill")


def options_of(text: str) -> dict[str, list[str]]:
    """The values of each option, without its dashes, those of repeated ones together; a switch has none.

    Raises `NothingToImportError` when the text has no command line of a router.
    """
    words = next(_command_lines(text), None)
    if words is None:
        raise NothingToImportError("it has no command line of vllm-router (none with --worker-urls, --static-backends, …)")
    found: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            option, equals, value = word[2:].partition("=")
            name = option.replace("_", "-")
            found.setdefault(name, [])
            if equals:
                found[name].append(value)
                name = None
        elif name is not None:
            found[name].append(word)
    return found


def _command_lines(text: str) -> Iterator[list[str]]:
    for value in _documents(text):
        for words in _lists(value):
            if any(word.startswith(_TELLING) for word in words):
                yield words
    joined = re.sub(r"\\\s*\n", " ", text)
    for line in joined.splitlines():
        words = _words(line)
        for at, word in enumerate(words):
            if _PROGRAM.fullmatch(word) or word.startswith(_TELLING):
                end = next((place for place in range(at, len(words)) if words[place] in _ENDS), len(words))
                if any(other.startswith(_TELLING) for other in words[at:end]):
                    yield words[at:end]
                    break


def _words(line: str) -> list[str]:
    line = line.removeprefix("ExecStart=")
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # an open quote
        return line.split()


def _documents(text: str) -> list[Any]:
    try:
        return [written_out(document) for document in yaml.safe_load_all(text)]
    except (yaml.YAMLError, RecursionError, ValueError):
        return []


def _lists(value: Any) -> Iterator[list[str]]:
    """Every list of words in a value; a list of arguments may hold numbers. A text may hold a whole command."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _lists(inner)
    elif isinstance(value, list):
        if value and all(isinstance(word, str | int | float) for word in value):
            yield [str(word) for word in value]
        for inner in value:
            yield from _lists(inner)
