"""What `ridgeline check` shows: every value in force and where it came from. Secrets are shown as ``(set)``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel, SecretStr
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxy.config.bounds import PoolAdmission, PoolLimits
from proxy.config.checks import warnings_of
from proxy.config.errors import ConfigError, KeyPath, dotted
from proxy.config.file import Document, read_text
from proxy.config.found import FoundWorkersConfig
from proxy.config.pools import PoolConfig
from proxy.config.sections import KeyConfig
from proxy.config.settings import Config, read_config

SECRET = "(set)"  # noqa: S105 (what is shown instead of one)
_PIPED_WIDTH = 160  # columns when the output is no terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value in force."""

    path: str  # dotted
    value: str  # as text; a secret as ``(set)``, no value as ``-``
    source: str  # "line 3", "line 3, $NAME", "default", "limits.connect_seconds, line 9", …


def check_file(path: Path, environ: Mapping[str, str], *, as_json: bool, console: Console) -> int:
    """Print what a configuration file comes to, or what is wrong with it. Returns the exit status: 0, or 2 for problems."""
    try:
        config, document = read_config(read_text(path), environ, str(path))
    except ConfigError as error:
        if as_json:
            _print_json(
                console, {"file": str(path), "valid": False, "problems": [asdict(problem) for problem in error.problems]}
            )
        else:
            Console(stderr=True, soft_wrap=True).print(str(error), markup=False, highlight=False)
        return 2
    settings, warnings = tuple(settings_in_force(config, document)), warnings_of(config)
    if as_json:
        rows = [asdict(setting) for setting in settings]
        _print_json(console, {"file": str(path), "valid": True, "settings": rows, "warnings": list(warnings)})
    else:
        _print_table(console, str(path), settings, warnings)
    return 0


def settings_in_force(config: Config, document: Document) -> Iterator[Setting]:
    """Yield every value in force in the order of the reference, and where it came from."""
    yield from _section(config, (), config, document)


def _section(section: BaseModel, path: KeyPath, config: Config, document: Document) -> Iterator[Setting]:
    for name in type(section).model_fields:
        yield from _value(getattr(section, name), (*path, name), section, config, document)


def _value(value: object, path: KeyPath, section: BaseModel, config: Config, document: Document) -> Iterator[Setting]:
    if isinstance(value, PoolLimits | PoolAdmission) and isinstance(section, PoolConfig):
        yield from _inherited(value, path, config, document)
    elif isinstance(value, BaseModel):
        yield from _section(value, path, config, document)
    elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        for index, item in enumerate(value):
            yield from _section(item, (*path, index), config, document)
    elif path[-1] == "name" and value is None:
        label = getattr(section, "label", None)
        yield Setting(path=dotted(path), value=_shown(label), source="from the URL")
    elif path[-1] == "worker_key" and value is None and isinstance(section, PoolConfig) and config.worker_key is not None:
        yield Setting(path=dotted(path), value=SECRET, source=f"worker_key, {_source(('worker_key',), document)}")
    elif isinstance(section, FoundWorkersConfig) and (value is None or (path[-1] == "family" and section.dns is None)):
        return  # of the other ways to find workers
    elif path[-1] in ("workers", "pools") and value == ():
        return  # the other of the two is given
    else:
        secret = isinstance(section, KeyConfig) and path[-1] == "sha256"
        yield Setting(path=dotted(path), value=SECRET if secret else _shown(value), source=_source(path, document))


def _inherited(own: PoolLimits | PoolAdmission, path: KeyPath, config: Config, document: Document) -> Iterator[Setting]:
    """A section of a pool, which has the values of the overall one of the same name where it has none itself."""
    overall = str(path[-1])
    for name in type(own).model_fields:
        if name in own.model_fields_set:
            value, source = getattr(own, name), _source((*path, name), document)
        else:
            value = getattr(getattr(config, overall), name)
            source = f"{overall}.{name}, {_source((overall, name), document)}"
        yield Setting(path=dotted((*path, name)), value=_shown(value), source=source)


def _source(path: KeyPath, document: Document) -> str:
    found = document.nearest_path(path)
    # a worker given as a bare URL has no key `url`: its line is that of the list entry
    if found != path and not (path[-1] == "url" and found == path[:-1]):
        return "default"
    names = [name for at, used in document.variables.items() if at[: len(found)] == found for name in used]
    return ", ".join((f"line {document.lines[found]}", *(f"${name}" for name in dict.fromkeys(names))))


def _shown(value: object) -> str:
    match value:
        case None | ():
            return "-"
        case SecretStr():
            return SECRET
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case tuple():
            return ", ".join(map(str, value))
        case dict():
            return json.dumps({name: SECRET if isinstance(item, SecretStr) else item for name, item in value.items()})
    return str(value)


def _print_json(console: Console, value: object) -> None:
    console.file.write(json.dumps(value, indent=2) + "\n")


def _print_table(console: Console, source: str, settings: tuple[Setting, ...], warnings: tuple[str, ...]) -> None:
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    table = Table("setting", "value", "from", title=source, title_justify="left", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for setting in settings:
        table.add_row(*(escape(text) for text in (setting.path, setting.value, setting.source)))
    console.print(table, highlight=False)
    for warning in warnings:
        console.print(f"warning: {warning}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{source} is valid", markup=False, highlight=False, soft_wrap=True)
