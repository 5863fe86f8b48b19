"""Workers that do not know ``stream_options`` and refuse a request because of it."""

from __future__ import annotations

_FORGOTTEN_SECONDS = 3600.0  # then a worker is asked again: it may have been replaced by a newer one
_STATUSES = frozenset({400, 422})


def may_be_about_usage(status: int) -> bool:
    """Whether a refusal with this status can be one of a field that is not known."""
    return status in _STATUSES


def is_about_usage(body: bytes) -> bool:
    """Whether a refusal names what the gateway added to the request."""
    return b"stream_options" in body or b"include_usage" in body


class UsageRefusals:
    """Remembers them by their URL. Instants are of the caller's monotonic clock."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<UsageRefusals of {len(self._since)} workers>"

    def add(self, url: str, now: float) -> None:
        """The worker refused a request with the question and took it without."""
        self._since[url] = now

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
