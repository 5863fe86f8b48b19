"""What ties a request to others that begin like it: hashes of the leading part of its prompt and of its session's name.

They are made from the raw JSON of a body, of which at most the first quarter of a megabyte is looked at. Requests that mean the
same beginning have the same hash in every replica, however their client writes JSON: escapes, blanks and the order of keys do
not count where a prompt is given as messages.
"""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec

LEADING_CHARACTERS = 512
"""Of a first message or plain prompt. Enough to tell conversations apart, and documents where a search puts them first."""

_SEARCHED_BYTES = 256 * 1024
_EDGE_CHARACTERS = 256  # of a long system prompt: its two ends and its length stand for all of it
_WINDOW_BYTES = 4 * LEADING_CHARACTERS  # holds that many characters of UTF-8 ...
_ESCAPED_BYTES = 12 * LEADING_CHARACTERS  # ... and of escapes
_USER = b'"user"'
_ROLE = b'"role"'
_MOST_CANDIDATES = 8
_MESSAGES = re.compile(rb"\s*+\[\s*+\{")
_TEXT = re.compile(rb'\s*+\[?\s*+"')
_END = re.compile(rb'(?<!\\)(?:\\\\)*+"')  # the quote that ends a text
_BLANKS = b" \t\r\n"


class _Part(msgspec.Struct, gc=False):
    text: str | None = None


class _Message(msgspec.Struct, gc=False):
    content: str | list[_Part] | None = None


_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_string = msgspec.json.Decoder(str).decode
_decode_text = msgspec.json.Decoder(str | list[_Part]).decode


def affinity_of(text: bytes | msgspec.Raw, system: bytes | msgspec.Raw = b"") -> int | None:
    """64 bits for the beginning of a prompt; ``None`` if there is none.

    ``text`` is the raw value of ``messages``, ``prompt`` or ``input``; ``system`` that of a system prompt beside. Of messages,
    those up to the first of the user count, of that one the first 512 characters; of a text as many, and of token ids their
    first bytes.
    """
    if isinstance(text, msgspec.Raw):
        text = memoryview(text)[:_SEARCHED_BYTES].tobytes()
    if isinstance(system, msgspec.Raw):
        system = memoryview(system)[:_SEARCHED_BYTES].tobytes()
    if not text and not system:
        return None
    leading = _of_messages(text) or _of_text(text)
    if system:
        leading = _of_system(system) + leading
    return _hash(leading)


def session_of(name: bytes) -> int:
    """64 bits for what names a session."""
    return _hash(b"session " + name)


def _hash(leading: bytes) -> int:
    return int.from_bytes(blake2b(leading, digest_size=8).digest())


def _of_messages(text: bytes) -> bytes:
    """System prompt and first message of the user; empty if these are no messages."""
    if _MESSAGES.match(text) is None:
        return b""
    end = _end_of_first_user(text)
    if end is None:
        return b""
    try:
        messages = _decode_messages(text[:end] + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text[:_EDGE_CHARACTERS] + text[max(_EDGE_CHARACTERS, end - _EDGE_CHARACTERS) : end]  # still the same every turn
    pieces = [_said(message.content) for message in messages]
    pieces[-1] = pieces[-1][:LEADING_CHARACTERS]
    return "\0".join(map(_edges, pieces)).encode("utf-8", "surrogatepass")


def _end_of_first_user(text: bytes) -> int | None:
    """The place behind the first message whose role is the user's."""
    at = text.find(_USER)
    for _ in range(_MOST_CANDIDATES):
        if at < 0:
            return None
        before = text[max(0, at - 16) : at].rstrip(_BLANKS)
        if before.endswith(b":") and before[:-1].rstrip(_BLANKS).endswith(_ROLE):
            break
        at = text.find(_USER, at + len(_USER))
    else:
        return None
    behind = at + len(_USER)
    last = text[behind : behind + 16].lstrip(_BLANKS)
    if last[:1] == b"}":  # the role stood last
        return behind + text[behind : behind + 16].index(b"}") + 1
    following = text.find(_ROLE, behind)  # of the next message; as a text of its own it would be escaped
    close = text.rfind(b"}", behind, len(text) if following < 0 else following)
    return None if close < 0 else close + 1


def _said(content: str | list[_Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join([part.text for part in content if part.text])


def _edges(text: str) -> str:
    if len(text) <= 2 * _EDGE_CHARACTERS:
        return text
    return f"{text[:_EDGE_CHARACTERS]}\0{len(text)}\0{text[-_EDGE_CHARACTERS:]}"


def _of_system(raw: bytes) -> bytes:
    try:
        text = _said(_decode_text(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw[:_EDGE_CHARACTERS] + b"\0"
    return _edges(text).encode("utf-8", "surrogatepass") + b"\0"


def _of_text(text: bytes) -> bytes:
    """The beginning of a plain prompt: of a text, of the first of several, or of token ids."""
    start = _TEXT.match(text)
    if start is None:
        return text[:_ESCAPED_BYTES].translate(None, _BLANKS)[:LEADING_CHARACTERS]
    window = text[start.end() : start.end() + _WINDOW_BYTES]
    if b"\\" in window:
        window = text[start.end() : start.end() + _ESCAPED_BYTES]
    characters = _unescaped(window) if b"\\" in window else window.decode("utf-8", "replace").partition('"')[0]
    return characters[:LEADING_CHARACTERS].encode("utf-8", "replace")


def _unescaped(window: bytes) -> str:
    """The text of which this is the beginning in JSON, as far as it can be told."""
    end = _END.search(window)
    whole = window if end is None else window[: end.end() - 1]
    for _ in range(3):  # an escape or a pair of them may be cut off at the end
        try:
            return _decode_string(b'"%b"' % whole)
        except (msgspec.DecodeError, UnicodeDecodeError):
            whole = whole[: max(0, whole.rfind(b"\\"))]
    return window.decode("utf-8", "replace")
