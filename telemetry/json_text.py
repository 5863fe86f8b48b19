"""JSON that most parsers take and the strict one used here does not, made readable for looking at; never for passing on."""

from __future__ import annotations

import re

_STRICT_FAULTS = re.compile(
    rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'  # a whole string, whose text is left alone
    rb"|-?(?:NaN|Infinity)\b",
    re.DOTALL,
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def readable_json(data: bytes | memoryview) -> bytes:
    r"""Return a copy in which ``NaN`` and ``Infinity`` are ``{}`` and ``\ud800`` to ``\udfff`` the replacement character.

    Python's own writer puts the first into logprobs, and half of a surrogate pair where a text was cut. ``{}`` is a value that
    no figure can have, so what stood there counts as wrong where it matters. Offsets into the copy mean nothing.
    """
    text = _SURROGATE.sub(rb"\\ufffd", data)
    if b"NaN" not in text and b"Infinity" not in text:
        return text
    return _STRICT_FAULTS.sub(lambda match: match[0] if match[0].startswith(b'"') else b"{}", text)
