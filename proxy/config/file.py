"""Reading the configuration file: YAML and ``${VARIABLE}`` into plain values that remember where they came from.

Stricter than plain YAML where YAML surprises: a key given twice is an error, dates stay text, ``010`` and ``1:30`` are
errors rather than 8 and 90. Anchors, aliases and merge keys (``<<``) work, up to a bound on the expanded size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from proxy.config.errors import ConfigError, KeyPath, Problem, dotted

MAX_FILE_BYTES = 1024 * 1024
MAX_VALUES = 100_000  # after aliases are expanded
MAX_DEPTH = 50

Tree: TypeAlias = "dict[str, Tree] | list[Tree] | str | int | float | bool | None"

# libyaml's twin of SafeLoader is some ten times faster; a process reads the file at every start
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SUBSTITUTION = re.compile(r"\$\$\{|\$\{([^}]*)(\})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ODD_INTEGER = re.compile(r"[-+]?0[0-9_]|.*:")  # YAML 1.1 reads these as octal and as base 60


@dataclass(frozen=True, slots=True)
class Document:
    """The values of a file and where each stands. Paths that the file does not spell are absent from the maps."""

    source: str
    tree: dict[str, Tree]
    lines: Mapping[KeyPath, int]  # counted from 1
    variables: Mapping[KeyPath, tuple[str, ...]]  # environment variables that went into a value
    spelled: Mapping[KeyPath, str]  # how a number, boolean or null is written in the file

    def nearest_path(self, path: KeyPath) -> KeyPath:
        """Return the longest leading part of ``path`` that the file spells."""
        while path and path not in self.lines:
            path = path[:-1]
        return path

    def line(self, path: KeyPath) -> int:
        """Return the line of ``path``, or of the nearest thing around it that the file spells."""
        return self.lines.get(self.nearest_path(path), 1)


def read_text(path: Path) -> str:
    """Return the text of a configuration file. Raises `ConfigError` when it cannot be read or is no UTF-8 text."""
    source = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _unreadable(source, f"the file cannot be read: {reason}", "give the path of a readable file") from None
    if len(content) > MAX_FILE_BYTES:
        raise _unreadable(source, f"the file is larger than {MAX_FILE_BYTES} bytes", "give the path of a configuration file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _unreadable(source, f"the file is not UTF-8 text (byte {error.start})", "save it as UTF-8", line) from None


def parse_document(text: str, environ: Mapping[str, str], source: str) -> tuple[Document, list[Problem]]:
    """Return the values of a YAML text, and the problems that leave the rest of it readable (double keys, variables).

    Raises `ConfigError` when there is nothing to go on with: no YAML, no mapping at the top, too large when expanded.
    """
    try:
        root = _compose(text, source)
        reader = _Reader(environ)
        tree = reader.value(root, ())
    except _UnreadableError as stop:
        raise ConfigError([stop.problem], source) from None
    if not isinstance(tree, dict):
        kind = "empty" if tree is None else f"{kind_of(tree)} at the top"
        raise _unreadable(source, f"the file is {kind}", "it must hold settings such as `models:` at the top", line=1)
    return Document(source, tree, reader.lines, reader.variables, reader.spelled), reader.problems


def kind_of(value: object) -> str:
    """Return what a value of the file is, in words."""
    match value:
        case None:
            return "no value"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case dict():
            return "a mapping"
        case _:
            return "a list"


def _unreadable(source: str, wrong: str, right: str, line: int | None = None) -> ConfigError:
    return ConfigError([Problem(path="", line=line, wrong=wrong, right=right)], source)


class _UnreadableError(Exception):
    """The text cannot be read any further."""

    def __init__(self, line: int | None, wrong: str, right: str) -> None:
        super().__init__(wrong)
        self.problem = Problem(path="", line=line, wrong=wrong, right=right)


def _compose(text: str, source: str) -> yaml.Node | None:
    unprintable = _UNPRINTABLE.search(text)
    if unprintable:
        line = text.count("\n", 0, unprintable.start()) + 1
        raise _UnreadableError(line, f"the file holds a control character (U+{ord(unprintable.group()):04X})", "remove it")
    loader = _Loader(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise _UnreadableError(line, *_explain(error, text, line)) from None
    except RecursionError:
        raise _UnreadableError(None, "the file is nested too deeply", f"use at most {MAX_DEPTH} levels") from None
    except yaml.YAMLError:
        raise _UnreadableError(None, f"{source} is not YAML", "write it as YAML") from None
    finally:
        loader.dispose()
    return node


def _explain(error: yaml.MarkedYAMLError, text: str, line: int) -> tuple[str, str]:
    """Return what is wrong with the YAML and the likely remedy. The line itself is never quoted: it may hold a secret."""
    lines = text.splitlines()
    around = "\n".join(lines[max(0, line - 2) : line])
    problem = error.problem or ""
    if isinstance(error, yaml.composer.ComposerError):
        if "document" in problem or "document" in (error.context or ""):
            return "the file holds more than one YAML document", "keep one, without `---` between settings"
        return "an alias or anchor is undefined or defined twice", "quote a text that begins with `*` or `&`"
    wrong = f"this is not YAML: {problem}" if problem else "this is not YAML"
    if re.search(r"^[ ]*\t", around, re.MULTILINE):
        return wrong, "indent with blanks, not with tabs"
    if re.search(r"[\[{,].*\$\{", around):
        return wrong, 'inside [ ] and { } write a variable in quotes: "${NAME}"'
    if re.search(r"\[[0-9A-Fa-f:.]*\]:", around):
        return wrong, 'write an address with brackets in quotes: "[::]:8080"'
    if re.search(r"(^|[\s:,\[{-])[@`%]", around):
        return wrong, "put a text that begins with @, ` or % in quotes"
    return wrong, "check indentation, colons and quotes on this line and the one before"


@dataclass(slots=True)
class _Reader:
    """Turns YAML nodes into values, keeping what is known about each."""

    environ: Mapping[str, str]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    variables: dict[KeyPath, tuple[str, ...]] = field(default_factory=dict)
    spelled: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    count: int = 0

    def value(self, node: yaml.Node | None, path: KeyPath, depth: int = 0) -> Tree:
        if node is None:
            return None
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self.count += 1
        if self.count > MAX_VALUES:
            wrong = f"the file has more than {MAX_VALUES} values once its aliases are expanded"
            raise _UnreadableError(line, wrong, "use fewer aliases")
        if depth > MAX_DEPTH:
            raise _UnreadableError(
                line, "the file is nested too deeply, or an alias holds itself", f"use at most {MAX_DEPTH} levels"
            )
        match node:
            case yaml.MappingNode(tag=tag) if tag == f"{_TAG}map":
                return self._mapping(node, path, depth)
            case yaml.SequenceNode(tag=tag) if tag == f"{_TAG}seq":
                return [self.value(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
            case yaml.ScalarNode():
                return self._scalar(node, path)
        self._add(path, line, "has a YAML tag (!…)", "remove the tag")
        return None

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str, Tree]:
        values: dict[str, Tree] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == f"{_TAG}merge":
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            key = key_node.value
            if not isinstance(key, str) or key_node.tag != f"{_TAG}str":
                shown = f"the key `{key}`" if isinstance(key, str) and key else "a key"
                self._add(path, line, f"{shown} is not text", "put it in quotes")
                continue
            inner = (*path, key)
            if key in values:
                self._add(inner, line, f"is given twice, first on line {self.lines[inner]}", "keep one of them")
                continue
            self.lines[inner] = line
            values[key] = self.value(value_node, inner, depth + 1)
        for source in merged:
            self._merge(source, values, path, depth)
        return values

    def _merge(self, source: yaml.Node, values: dict[str, Tree], path: KeyPath, depth: int) -> None:
        """Add what ``<<`` brings and the mapping does not spell itself; lines then point at the anchor's text."""
        inner = _Reader(self.environ, count=self.count)
        found = inner.value(source, path, depth + 1)
        self.count = inner.count
        self.problems += inner.problems
        if not isinstance(found, dict):
            line = source.start_mark.line + 1
            self._add(path, line, "`<<` brings something that is no mapping", "let it name the anchor of a mapping")
            return
        new = found.keys() - values.keys()
        values.update({key: found[key] for key in found if key in new})
        place = len(path)
        self.lines.update({at: line for at, line in inner.lines.items() if len(at) > place and at[place] in new})
        self.variables.update({at: names for at, names in inner.variables.items() if len(at) > place and at[place] in new})
        self.spelled.update({at: text for at, text in inner.spelled.items() if len(at) > place and at[place] in new})

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Tree:
        line = node.start_mark.line + 1
        text: str = node.value
        tag = node.tag.removeprefix(_TAG)
        if tag in ("str", "timestamp", "value", "merge"):
            return self._substitute(text, path, line)
        self.spelled[path] = text
        if tag == "null":
            return None
        if tag == "bool":
            return yaml.SafeLoader.bool_values.get(text.lower(), text)
        if tag == "int" and not _ODD_INTEGER.match(text):
            try:
                return int(text.replace("_", ""), 0)
            except ValueError:
                pass
        if tag == "float" and ":" not in text:
            try:
                return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
            except ValueError:
                pass
        if tag in ("int", "float"):
            wrong = "is a number that YAML reads in a way nobody expects"
            self._add(path, line, wrong, "write plain decimal digits, or put it in quotes if it is text")
        else:
            self._add(path, line, "has a YAML tag (!…)", "remove the tag, or quote a text that begins with `!`")
        return None

    def _substitute(self, text: str, path: KeyPath, line: int) -> str:
        names: list[str] = []
        otherwise = "or write `$${` for the characters themselves"

        def replace(found: re.Match[str]) -> str:
            name, closed = found.groups()
            if name is None:
                return "${"
            if not closed:
                self._add(path, line, "has `${` without `}`", f"close it, {otherwise}")
            elif not _VARIABLE.fullmatch(name):
                self._add(path, line, "has `${…}` around something that is no variable name", f"write ${{NAME}}, {otherwise}")
            elif name not in self.environ:
                self._add(path, line, f"needs the environment variable {name}, which is not set", f"set {name}, {otherwise}")
            else:
                names.append(name)
                return self.environ[name]
            return found.group()

        value = _SUBSTITUTION.sub(replace, text)
        if names:
            self.variables[path] = tuple(dict.fromkeys(names))
        return value

    def _add(self, path: KeyPath, line: int, wrong: str, right: str) -> None:
        self.problems.append(Problem(path=dotted(path), line=line, wrong=wrong, right=right))
