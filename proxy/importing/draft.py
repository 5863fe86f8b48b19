"""What an import comes to: a configuration in the making, and what of the other one it could not hold.

No secret of the other file gets in here: a key that stands there in the clear becomes the name of a variable, a client's key
its hash. Texts name keys of the file, never their values.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_NO_KEYS = {"", "empty", "none", "null", "dummy", "no-key", "not-needed", "sk-no-key-required"}
_MOST_ATTEMPTS = 100
_MOST_DIGITS = 18
_MOST_DEPTH, _MOST_VALUES = 50, 200_000  # of another gateway's file; more is made, not written
_USUAL_MAX_EJECTION_SECONDS = 300
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?|os\.environ/([A-Za-z_][A-Za-z0-9_]*)")
_URL = re.compile(r"([a-z+]+)://(.*)", re.DOTALL | re.IGNORECASE)


class NothingToImportError(ValueError):
    """The file is none of that kind, or has nothing in it that could be served. The text says what."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that is not carried over."""

    where: str  # as people write a path into the file
    why: str  # and what to do instead, where there is something


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that the configuration reads."""

    what: str  # it has to hold
    example: str = "x"  # something valid, with which the rest can be checked


@dataclass(slots=True, kw_only=True)
class Draft:
    """Grows while the other file is read."""

    settings: dict[str, Any] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    uses_https: bool = False  # a worker has to be trusted
    variables: dict[str, Variable] = field(default_factory=dict)  # to be set in the environment

    def leave_out(self, where: str, why: str) -> None:
        """Remember it, once."""
        note = LeftOut(_one_line(where), _one_line(why))
        if note not in self.left_out:
            self.left_out.append(note)

    def leave_out_rest(self, section: Mapping[str, Any], known: Iterable[str], path: str, why: str) -> None:
        """Every key of a section that nobody has looked at."""
        for key in section:
            if key not in set(known):
                self.leave_out(f"{path}.{key}" if path else str(key), why)

    def variable(self, name: str, what: str, *, example: str = "x") -> str:
        """What a value is to be that comes from this variable; it is remembered what that has to hold."""
        self.variables.setdefault(name, Variable(_one_line(what), example))
        return f"${{{name}}}"

    def set(self, section: str, name: str, value: Any) -> None:
        """One setting of a section such as ``limits``."""
        self.settings.setdefault(section, {})[name] = value

    def attempts(self, retries: int) -> None:
        """So many retries, as far as there may be."""
        self.set("retries", "max_attempts", min(retries + 1, _MOST_ATTEMPTS))

    def ejection(self, pause_seconds: float) -> None:
        """How long a worker that failed is left out, the first time; its bound goes along where it would be below."""
        self.set("health", "ejection_seconds", pause_seconds)
        if pause_seconds > _USUAL_MAX_EJECTION_SECONDS:
            self.set("health", "max_ejection_seconds", pause_seconds)

    def worker_key(self, written: Any, where: str, variable: str) -> str | None:
        """What `worker_key` becomes: the variable that is named, or one of this name for a key in the clear; None for none."""
        if not isinstance(written, str) or written.strip().lower() in _NO_KEYS:
            return None
        if name := variable_of(written):
            return self.variable(name, f"what workers want as key ({where})")
        return self.variable(variable, f"the key that stands in the clear at {where}")

    def client_key(self, written: Any, where: str, name: str) -> None:
        """A key that clients send: as its hash."""
        if not isinstance(written, str) or written.strip().lower() in _NO_KEYS:
            return
        if variable := variable_of(written):
            what = f'the first word of: printf %s "${variable}" | sha256sum ({where})'
            digest = self.variable(f"{variable}_SHA256", what, example="0" * 64)
        else:
            digest = hashlib.sha256(written.encode()).hexdigest()
        self.settings.setdefault("keys", []).append({"name": name, "sha256": digest})

    def worker_url(self, written: Any, where: str) -> str | None:
        """A base URL that workers may have; None when it cannot be one, which is noted."""
        if not isinstance(written, str) or not written.strip():
            return None
        text = written.strip()
        if name := variable_of(text):
            example = f"http://{name.lower().replace('_', '-')}:8000"
            return self.variable(name, f"base URL of a worker ({where})", example=example)
        match = _URL.fullmatch(text)
        if match is None:
            text = f"http://{text}"
        elif match[1].lower() not in ("http", "https"):
            self.leave_out(where, f"{match[1].lower()} to workers is not spoken: only http and https")
            return None
        elif match[1].lower() == "https":
            self.uses_https = True
        if "@" in text.partition("://")[2].partition("/")[0]:
            self.leave_out(where, "a user and password in the URL: workers get `worker_key` as Bearer token")
            return None
        return text.rstrip("/").removesuffix("/v1").rstrip("/")


def written_out(tree: Any) -> Any:
    """What a YAML file holds, with texts as keys and nothing shared. Raises `NothingToImportError` for what has no end."""
    left = _MOST_VALUES

    def copy(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > _MOST_DEPTH:
            raise NothingToImportError(f"it is nested over {_MOST_DEPTH} levels, or has over {_MOST_VALUES:,} values")
        if isinstance(value, dict):
            return {str(key): copy(inner, depth + 1) for key, inner in value.items()}
        return [copy(inner, depth + 1) for inner in value] if isinstance(value, list) else value

    return copy(tree, 0)


def variable_of(text: str) -> str | None:
    """The name of the environment variable that a text is, in a shell's or LiteLLM's spelling; None when it is none."""
    match = _VARIABLE.fullmatch(text.strip())
    return (match[1] or match[2]) if match else None


def seconds(value: Any) -> float | int | None:
    """A positive number, also one written as text; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if isinstance(value, bool) or not 0 < number <= 604_800:
        return None
    return int(number) if number.is_integer() else number


def count(written: Any) -> int | None:
    """A whole number from 0, also one written as text; None for anything else."""
    text = str(written)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def mapping(value: Any) -> dict[str, Any]:
    """A mapping as it is, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """A list as it is, anything else as an empty one."""
    return value if isinstance(value, list) else []


def _one_line(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())[:300]
