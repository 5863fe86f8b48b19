"""Bodies that are forms with a file: the few fields that matter, wherever they stand, without a copy of the file.

The body is kept as it came, under the limit on bodies. A field may come behind the file, so nothing can be decided before the
whole is there. What a worker could read in another way is refused: a key may be allowed one model and not another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from proxy.wire.errors import ClientFault
from proxy.wire.inference import InferenceRequest

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_PARAMETER = re.compile(
    rb"[ \t]*+;[ \t]*+"
    rb'(?:(%b++)[ \t]*+=[ \t]*+(?:"((?:[^"\\]|\\.)*+)"|([^ \t;,"\\<>\x80-\xff]++))[ \t]*+)?' % _TOKEN
)
_HEADER_LINE = re.compile(rb"(%b++):[ \t]*+([^\x00-\x08\x0a-\x1f\x7f]*+)" % _TOKEN)
_PADDING = re.compile(rb"[ \t]{0,100}+\r\n")
_LINE_ENDS = re.compile(rb"[\r\n]*+")
_CHARSETS = (b"utf-8", b"utf8", b"us-ascii")
_MOST_PARTS = 100
_MOST_HEAD_BYTES = 4096
_MOST_SEMICOLONS = 500  # in a header value, a file's name among it

Span = tuple[int, int]


def boundary_of(header_lines: bytes) -> bytes | None:
    """The boundary that a Content-Type among these lines names; ``None`` if it is no form of this kind, or not surely."""
    values = [
        value.strip()
        for name, _, value in (line.partition(b":") for line in header_lines.split(b"\r\n"))
        if name.strip().lower() == b"content-type"
    ]
    if len(values) != 1:
        return None
    parameters = _parameters(values[0], b"multipart/form-data")
    if parameters is None or parameters.get(b"charset", b"utf-8").lower() not in _CHARSETS:
        return None
    boundary = parameters.get(b"boundary", b"")
    return boundary if 0 < len(boundary) <= 70 else None


def read_form(body: bytes, boundary: bytes) -> Mapping[str, Span]:
    """Where the value of each field lies in the body; a file's too. Of fields of one name the last counts, as with workers.

    Raises `ClientFault` for a body that does not end as a form does, or that cannot be read in one way only.
    """
    mark = b"--" + boundary
    found: dict[str, Span] = {}
    start = body.find(mark)
    if start < 0:
        raise _no_form("its boundary is not in it")
    lines = _LINE_ENDS.match(body)
    if body[max(0, start - 2) : start] != b"\r\n" and (lines is None or lines.end() != start):
        raise _no_form("its first boundary is not at the beginning of a line")
    for _ in range(_MOST_PARTS):
        start += len(mark)
        if body.startswith(b"--", start):
            return found
        padding = _PADDING.match(body, start)
        if padding is None:
            raise _no_form("a boundary is not at the end of its line")
        head_start = padding.end()
        head_end = body.find(b"\r\n\r\n", head_start, head_start + _MOST_HEAD_BYTES)
        if head_end < 0:
            raise _no_form("a part has no head, or a very long one")
        end = body.find(b"\r\n" + mark, head_end + 2)
        if end < 0:
            raise _no_form("its last boundary is missing")
        if end < head_end + 4:  # to some readers it ends there, and to others it goes on behind that boundary
            raise _no_form("a part has no line of its own for its value")
        found[_name_of(body[head_start:head_end])] = (head_end + 4, end)
        start = end + 2
    raise _no_form(f"it has more than {_MOST_PARTS} parts")


def _name_of(head: bytes) -> str:
    """The name in the head of a part. Raises `ClientFault` unless there is one and no other way to read it."""
    dispositions = []
    for line in head.split(b"\r\n"):
        match = _HEADER_LINE.fullmatch(line)
        if match is None:
            raise _no_form("a part has a header line that is none")
        if match[1].lower() == b"content-disposition":
            dispositions.append(match[2])
    parameters = _parameters(dispositions[0], b"form-data") if len(dispositions) == 1 else None
    name = None if parameters is None else parameters.get(b"name")
    if name is None or b"\\" in name:
        raise _no_form('a part has no plain Content-Disposition: form-data; name="..."')
    return name.decode("utf-8", "replace")


def _parameters(value: bytes, kind: bytes) -> dict[bytes, bytes] | None:
    """The parameters of a header value of this kind, by names in lower case and with escapes as they are.

    ``None`` where readers differ: doubled and continued names, characters of another set, a backslash before an escape.
    """
    given, semicolon, _ = value.partition(b";")
    if given.strip(b" \t").lower() != kind or b'\\\\"' in value:
        return None
    found: dict[bytes, bytes] = {}
    position = len(given) if semicolon else len(value)
    if value.count(b";") > _MOST_SEMICOLONS:
        return None
    while position < len(value):
        match = _PARAMETER.match(value, position)
        if match is None:
            return None
        position = match.end()
        if match[1] is None:
            continue
        name = match[1].lower()
        if name in found or (b"*" in name and name != b"filename*"):
            return None
        found[name] = match[3] if match[2] is None else match[2]
    return found


def request_of(body: bytes, fields: Mapping[str, Span]) -> InferenceRequest:
    """What the form asks for. How long a prompt an upload is cannot be told from its bytes."""
    model = fields.get("model")
    streams = fields.get("stream")
    return InferenceRequest(
        None if model is None else body[slice(*model)].decode("utf-8", "replace"),
        streams is not None and body[slice(*streams)].strip().lower() in (b"true", b"1"),
        None,
        True,
        None,
        1,
        1,
        0,
        0,
        False,
    )


def _no_form(why: str) -> ClientFault:
    return ClientFault("invalid_form", f"The request body is no multipart form: {why}.")
