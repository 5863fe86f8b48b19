"""Bodies that are forms with a file: the few fields that matter, wherever they stand, without a copy of the file.

The body is kept as it came, under the limit on bodies. A field may come behind the file, so nothing can be decided before the
whole is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from proxy.errors import ClientFault
from proxy.inference import InferenceRequest

_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'content-disposition:[^\r\n]*?;\s*name="([^"\r\n]{1,100})"', re.IGNORECASE)
_MOST_PARTS = 100
_MOST_HEAD_BYTES = 4096

Span = tuple[int, int]


def boundary_of(header_lines: bytes) -> bytes | None:
    """The boundary that a Content-Type among these lines names; ``None`` if it is no form of this kind."""
    for line in header_lines.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-type":
            match = _BOUNDARY.search(value) if value.strip().lower().startswith(b"multipart/form-data") else None
            return None if match is None else match[1] or match[2]
    return None


def read_form(body: bytes, boundary: bytes) -> Mapping[str, Span]:
    """Where the value of each field lies in the body; a file's too. Of fields of one name the last counts, as with workers.

    Raises `ClientFault` for a body that does not end as a form does, or that cannot be read in one way only.
    """
    mark = b"--" + boundary
    found: dict[str, Span] = {}
    start = 0
    if not body.startswith(mark):
        start = body.find(b"\r\n" + mark) + 2
        if start < 2:
            raise _no_form("its boundary is not in it")
    for _ in range(_MOST_PARTS):
        start += len(mark)
        if body.startswith(b"--", start):
            return found
        if not body.startswith(b"\r\n", start):
            raise _no_form("a boundary is not at the end of its line")
        head_end = body.find(b"\r\n\r\n", start, start + _MOST_HEAD_BYTES)
        if head_end < 0:
            raise _no_form("a part has no head, or a very long one")
        end = body.find(b"\r\n" + mark, head_end + 2)
        if end < 0:
            raise _no_form("its last boundary is missing")
        name = _NAME.search(body, start, head_end + 2)
        if name is not None:
            found[name[1].decode("utf-8", "replace")] = (head_end + 4, max(end, head_end + 4))
        start = end + 2
    raise _no_form(f"it has more than {_MOST_PARTS} parts")


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
