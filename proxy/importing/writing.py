"""A draft as the text of a configuration file: what is to be done first, in comments, then the settings."""

from __future__ import annotations

import textwrap

import yaml

from proxy.importing.draft import Draft

_WIDTH = 120


def text_of(draft: Draft, *, kind: str, source: str) -> str:
    """Return the file. ``source``: the name of the file it was made from."""
    lines = [f"Made by `ridgeline import {kind}` from {source}; `ridgeline check` shows what it comes to."]
    if draft.variables:
        lines += ["", "To be set in the environment:"]
        lines += [f"  {name}: {variable.what}" for name, variable in draft.variables.items()]
    if draft.left_out:
        lines += ["", "Not carried over:"]
        lines += [f"  {note.where}: {note.why}" for note in draft.left_out]
    if draft.uses_https:
        lines += ["", "Workers with https have to be trusted: `worker_tls`, unless a CA of the system has signed them."]
    if not _knows_gpus(draft):
        lines += ["", "Say `gpu:` of each pool (`h100-sxm`, …), and requests are held against what that GPU can do."]
    body = yaml.safe_dump(draft.settings, sort_keys=False, width=_WIDTH, allow_unicode=True)
    return "".join(_comment(line) for line in lines) + body


def _comment(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()))
    wrapped = textwrap.wrap(line, _WIDTH - 4, subsequent_indent=indent + "  ", break_long_words=False) or [""]
    return "".join(f"# {part}".rstrip() + "\n" for part in wrapped)


def _knows_gpus(draft: Draft) -> bool:
    return any("gpu" in pool for model in draft.settings.get("models", []) for pool in model.get("pools", []))
