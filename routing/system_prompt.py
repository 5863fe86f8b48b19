"""The system prompt in the raw JSON of a request: what many requests begin with, and what a prefix cache is worth most for."""

from __future__ import annotations

import re

import msgspec

LEAST_BYTES = 256
"""Shorter ones are worth no cache, and are not looked for."""

MOST_BYTES = 64 * 1024
"""Longer ones are not looked at."""

_ROLE = rb'"role"\s*+:\s*+"(?:system|developer)"'
_CONTENT = rb'"content"\s*+:\s*+(?:\[\s*+\{\s*+"type"\s*+:\s*+"text"\s*+,\s*+"text"\s*+:\s*+)?"'
_FIRST_MESSAGE = re.compile(rb"\s*+\[\s*+\{\s*+(?:" + _ROLE + rb"\s*+,\s*+" + _CONTENT + rb"|" + _CONTENT + rb")")
_ROLE_BEHIND = re.compile(rb"\s*+(?:\}\s*+\])?\s*+,\s*+" + _ROLE)
_BESIDE = re.compile(rb'\s*+(?:\[\s*+\{\s*+"type"\s*+:\s*+"text"\s*+,\s*+"text"\s*+:\s*+)?"')
_decode = msgspec.json.Decoder(str).decode


def system_prompt_of(leading: bytes, system: bytes = b"") -> bytes | None:
    """The text of the first message if it is of the system, or of a system prompt beside the messages; UTF-8, escapes undone.

    ``leading`` is the raw JSON of ``messages`` or the like, ``system`` that of the field beside it. Of content in parts, the
    first. ``None`` if there is none, if it is shorter than `LEAST_BYTES`, and if it cannot be read; nothing is ever raised.
    """
    if system:
        start = _BESIDE.match(system)
        return None if start is None else _text(system, start.end())[0]
    start = _FIRST_MESSAGE.match(leading)
    if start is None:
        return None
    text, end = _text(leading, start.end())
    if text is None or b'"role"' in start[0]:
        return text
    return text if _ROLE_BEHIND.match(leading, end) else None


def may_have_system_prompt(leading: bytes | msgspec.Raw) -> bool:
    """Whether a `system_prompt_of` these messages is possible, by how they begin: most begin with the user's, and have none."""
    return _FIRST_MESSAGE.match(leading, 0, MOST_BYTES) is not None


def _text(raw: bytes, start: int) -> tuple[bytes | None, int]:
    """The JSON string that begins behind this quote, and where it has ended."""
    most = min(len(raw), start + MOST_BYTES)
    end = raw.find(b'"', start, most)
    while end > start and raw[end - 1] == 0x5C and _is_escaped(raw, end):
        end = raw.find(b'"', end + 1, most)
    if end - start < LEAST_BYTES:
        return None, 0
    text = raw[start:end]
    if b"\\" not in text:
        return text, end + 1
    try:
        return _decode(b'"' + text + b'"').encode("utf-8", "surrogatepass"), end + 1
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, 0


def _is_escaped(raw: bytes, at: int) -> bool:
    """Whether the byte here has an odd number of backslashes before it."""
    first = at
    while first > 0 and raw[first - 1] == 0x5C:
        first -= 1
    return (at - first) % 2 == 1
