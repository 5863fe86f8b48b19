"""Workers that do not know ``stream_options`` and refuse a request because of it.

A refusal may quote what the client wrote. So naming the field is enough to ask once more without it, which harms nobody, but
not to stop asking a worker: for that it takes the words for an unknown field around the name, a client that did not write the
name itself, and several requests in a row.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

NEEDED = 3
"""Requests in a row that a worker has to refuse with the question, and take without, until it is not asked any more."""

_FORGOTTEN_SECONDS = 300.0  # then a worker is asked again: it may have been replaced by a newer one
_STATUSES = frozenset({400, 422})
_NAMES = (b"stream_options", b"include_usage")
_NAME = rb"(?:stream_options|include_usage)"
_QUOTES = rb"[\s\"'`\\:=(\[]{1,8}"
_UNKNOWN = re.compile(
    rb"extra (?:inputs?|fields?)(?: (?:are|is))? not (?:permitted|allowed)"
    + _QUOTES
    + _NAME
    # of a field, parameter or argument that is not known
    + rb"|un(?:known|recognized|expected|supported) (?:request |keyword )?(?:field|parameter|argument|property|key)s?"
    rb"(?: supplied| name)?"
    + _QUOTES
    + _NAME
    # pydantic names the place of each fault
    + rb"|[\"']loc\\?[\"']\s*:\s*[\[(]\s*\\?[\"']body\\?[\"']\s*,\s*\\?[\"']"
    + _NAME
    + rb"|[\"']param[\"']\s*:\s*[\"']"
    + _NAME,
    re.IGNORECASE,
)


def may_be_about_usage(status: int) -> bool:
    """Whether a refusal with this status can be one of a field that is not known."""
    return status in _STATUSES


def is_about_usage(body: bytes) -> bool:
    """Whether a refusal names what the gateway added to the request."""
    return any(name in body for name in _NAMES)


def says_unknown(body: bytes) -> bool:
    """Whether a refusal says that the field is not known, and does not only have its name somewhere."""
    return _UNKNOWN.search(body) is not None


def may_quote(request: bytes) -> bool:
    """Whether a refusal can have the name from the request, as the client wrote it."""
    if is_about_usage(request):
        return True
    if b"\\u" not in request:
        return False
    try:
        return is_about_usage(msgspec.json.encode(msgspec.json.decode(request)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return True


class UsageRefusals:
    """Remembers them by their URL. Instants are of the caller's monotonic clock."""

    __slots__ = ("_since", "suspects")

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self.suspects: dict[str, int] = {}  # refusals in a row of those that are still asked

    def __repr__(self) -> str:
        return f"<UsageRefusals of {len(self._since)} workers>"

    def add(self, url: str, now: float) -> None:
        """The worker refused a request with the question and took it without."""
        count = self.suspects.pop(url, 0) + 1
        if count < NEEDED:
            self.suspects[url] = count
        else:
            self._since[url] = now

    def clear(self, url: str) -> None:
        """The worker took a request with the question."""
        self.suspects.pop(url, None)

    def keep_only(self, urls: Collection[str]) -> None:
        """Forget all other workers."""
        self._since = {url: since for url, since in self._since.items() if url in urls}
        self.suspects = {url: count for url, count in self.suspects.items() if url in urls}

    def has(self, url: str, now: float) -> bool:
        """Whether the worker should not be asked for usage."""
        if not self._since:
            return False
        since = self._since.get(url)
        if since is None:
            return False
        if now - since > _FORGOTTEN_SECONDS:
            del self._since[url]
            return False
        return True
