"""Findings of pydantic as problems of the file: where, what, and what would be right.

Values are quoted only where they cannot be secrets: not below `keys`, not for a worker key, not from the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel, Tag

from proxy.config.errors import KeyPath, Problem, RefusedError, dotted, nearest
from proxy.config.file import Document, kind_of

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

# keys that design or other gateways make people expect, and what to do instead
_NOT_YET = frozenset({"adapters", "discovery", "retries", "admission"})
_HINTS = {
    ("keys", "key"): 'give its SHA-256 as sha256: printf %s "$KEY" | sha256sum',
    ("keys", "value"): 'give its SHA-256 as sha256: printf %s "$KEY" | sha256sum',
    ("workers", "worker_key"): "set worker_key for the pool or for all",
    ("workers", "key"): "set worker_key for the pool or for all",
}
# tags of the forms that `workers` has; what pydantic reports has them in its places
LISTED = "listed"
FOUND = "found"
_SECRET_KEYS = frozenset({"worker_key", "sha256", "headers", "admin_token", "admin_token_sha256", "store"})
_KNOWN_KEYS = "known keys:"
_LONGEST_SHOWN = 40  # characters
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def problems_of(error: ValidationError, document: Document, root: type[BaseModel]) -> list[Problem]:
    """Return one problem for each finding, at its place in the file."""
    found = error.errors(include_url=False, include_input=True)
    # a list whose entries are all wrong comes a second time as too short
    return [_problem(details, document, root) for details in found if not (details["type"] == "too_short" and details["input"])]


def sections_of(root: type[BaseModel]) -> dict[tuple[str, ...], type[BaseModel]]:
    """Return every section by the names that lead to it: ``()``, ``("models",)``, ``("models", "pools")``, …"""
    sections: dict[tuple[str, ...], type[BaseModel]] = {(): root}
    for name, setting in root.model_fields.items():
        for form, inner in _sections_in(setting.annotation):
            sections |= {(name, *form, *path): section for path, section in sections_of(inner).items()}
    return sections


def _sections_in(annotation: object) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """The sections that a setting may hold, the one of found workers under its tag."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield (), annotation
        return
    tags = (part.tag for part in getattr(annotation, "__metadata__", ()) if isinstance(part, Tag))
    form = tuple(tag for tag in tags if tag != LISTED)
    for part in get_args(annotation):
        for deeper, section in _sections_in(part):
            yield (*form, *deeper), section


def _problem(details: ErrorDetails, document: Document, root: type[BaseModel]) -> Problem:
    loc: KeyPath = tuple(part for part in details["loc"] if part != LISTED)
    kind = details["type"]
    place = tuple(part for part in loc if part != FOUND)
    path = (
        place if kind == "missing" else document.nearest_path(place)
    )  # leaves out what pydantic adds for unions and short forms
    if kind == "missing":
        wrong, right = _missing(loc, root)
    elif kind == "extra_forbidden":
        wrong, right = _unknown_key(loc, root)
        if _is_secret(loc) and right.startswith(
            _KNOWN_KEYS
        ):  # like nothing we know: perhaps a key of a client, not of the file
            path, wrong = place[:-1], "has an unknown key, which is not shown"
    else:
        wrong, right = _value(details, path, document)
    return Problem(path=dotted(path), line=document.line(path), wrong=wrong, right=right)


def _names(path: KeyPath) -> tuple[str, ...]:
    return tuple(part for part in path if isinstance(part, str))


def _missing(loc: KeyPath, root: type[BaseModel]) -> tuple[str, str]:
    section = sections_of(root).get(_names(loc[:-1]))
    setting = section.model_fields.get(str(loc[-1])) if section else None
    return "is missing", f"add it: {setting.description}" if setting and setting.description else "add it"


def _unknown_key(loc: KeyPath, root: type[BaseModel]) -> tuple[str, str]:
    sections = sections_of(root)
    where, key = _names(loc[:-1]), str(loc[-1])
    known = list(sections[where].model_fields) if where in sections else []
    if key in _NOT_YET:
        return f"`{key}` is not supported yet", "leave it out"
    wrong = f"`{key}` is not a known key here"
    if hint := _HINTS.get((where[-1] if where else "", key)):
        return wrong, hint
    if elsewhere := [path for path, section in sections.items() if FOUND not in path and key in section.model_fields]:
        return wrong, "it belongs " + " or ".join(f"under `{'.'.join(path)}`" if path else "at the top" for path in elsewhere)
    if guess := nearest(key, known):
        return wrong, f"did you mean `{guess}`?"
    return wrong, f"{_KNOWN_KEYS} {', '.join(known)}"


def _value(details: ErrorDetails, path: KeyPath, document: Document) -> tuple[str, str]:
    kind, context, value = details["type"], details.get("ctx", {}), details["input"]
    refusal = context.get("error")
    if isinstance(refusal, RefusedError):
        return refusal.wrong, refusal.right
    shown = _shown(path, value, document)
    if value is None and not kind.endswith("missing"):
        return "has no value", "give one, or leave the key out"
    if kind in ("string_type", "string_sub_type"):
        spelled = document.spelled.get(path)
        quotable = spelled is not None and not _is_secret(path)
        return f"must be text, not {shown}", f'put it in quotes: "{spelled}"' if quotable else "write a text"
    if kind.startswith("int_"):
        return f"must be a whole number, not {shown}", "write digits only"
    if kind.startswith(("float_", "finite_")):
        return f"must be a number, not {shown}", "write a number without a unit"
    if kind.startswith("bool_"):
        return f"must be true or false, not {shown}", "write true or false"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        bound = f"{context[key]:.0f}" if context[key] == int(context[key]) else f"{context[key]:g}"
        return f"must be {words} {bound}, not {shown}", f"write a number {words} {bound}"
    if kind == "literal_error":
        expected = str(context.get("expected", "")).replace("'", "`")
        guess = nearest(value, re.findall("`([^`]+)`", expected)) if isinstance(value, str) else None
        is_hidden_text = isinstance(value, str) and shown == kind_of(value)  # which is what was asked for
        found = "" if is_hidden_text else f", not {shown}"
        return f"must be {expected}{found}", f"did you mean `{guess}`?" if guess else f"write {expected}"
    if kind in ("tuple_type", "list_type"):
        return f"must be a list, not {shown}", "begin each entry with `- `, or write [a, b]"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"must be a mapping, not {shown}", "write `key: value` lines below it"
    if kind in ("too_short", "string_too_short"):
        return "is empty", "give at least one" if kind == "too_short" else "write a text"
    if kind == "string_too_long":
        return f"is longer than {context.get('max_length')} characters", "shorten it"
    return f"is not valid: {kind.replace('_', ' ')}", "see docs/reference/configuration.md"


def _is_secret(path: KeyPath) -> bool:
    return bool(_SECRET_KEYS & set(path)) or path[:1] == ("keys",)


def _shown(path: KeyPath, value: object, document: Document) -> str:
    """Return a value in words, as the file spells it where that cannot give away a secret."""
    if isinstance(value, Mapping):
        return "a mapping"
    spelled = document.spelled.get(path)
    if isinstance(value, str) and path not in document.variables and len(value) <= _LONGEST_SHOWN:
        spelled = f"`{value}`"
    if spelled is None or _is_secret(path):
        return kind_of(value)
    return f"{kind_of(value)} ({spelled})" if isinstance(value, bool) else spelled
