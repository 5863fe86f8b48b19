"""The files of the page, read once, with the headers that they are served with."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

import msgspec

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

# Everything from here and nothing from elsewhere; nothing inline, nothing made of text, no frame around it.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, and mostly not sent again
}


class Asset(msgspec.Struct, frozen=True):
    """One file."""

    body: bytes
    media_type: str
    etag: str


def assets() -> Mapping[str, Asset]:
    """The files of the page by name."""
    found = {}
    for file in files("dashboards.live").joinpath("static").iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in _TYPES:
            body = file.read_bytes()
            found[file.name] = Asset(body, _TYPES[kind], sha256(body).hexdigest()[:20])
    return found
