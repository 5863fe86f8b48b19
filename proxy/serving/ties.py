"""What ties a request to a worker, taken from its head and body where a policy of its model asks for it."""

from __future__ import annotations

import re

import msgspec

from proxy.wire.inference import InferenceRequest
from proxy.wire.tracing import header_pattern
from routing.affinity import affinity_of, session_of
from routing.ring import needs_ring
from routing.topology import Model


class Ties:
    """What to look for in the requests of one model."""

    __slots__ = ("_names_session", "_patterns")

    def __init__(self, patterns: list[re.Pattern[bytes]], *, names_session: bool) -> None:
        self._patterns = patterns  # of headers that name a session
        self._names_session = names_session

    @classmethod
    def of(cls, model: Model) -> Ties | None:
        """For this model; ``None`` if none of its pools asks."""
        asking = [pool for pool in (*model.pools, *model.stages) if needs_ring(pool)]
        if not asking:
            return None
        headers = dict.fromkeys(pool.session_header for pool in asking if pool.session_header is not None)
        return cls([header_pattern(name) for name in headers], names_session=any(pool.policy == "session" for pool in asking))

    def __repr__(self) -> str:
        return f"<Ties {[pattern.pattern for pattern in self._patterns]}, {'' if self._names_session else 'no '}session>"

    def find(self, request: InferenceRequest, header_lines: bytes) -> tuple[int | None, int | None]:
        """Hashes of the prompt's beginning and of the session's name; ``None`` for what there is none of."""
        session = None
        if self._names_session and (name := self._session_name(request, header_lines)):
            session = session_of(name)
        return affinity_of(request.leading, request.system), session

    def _session_name(self, request: InferenceRequest, header_lines: bytes) -> bytes | None:
        for pattern in self._patterns:
            found = pattern.search(header_lines)
            if found is not None and (value := found[1].strip()):
                return value
        if not request.session:
            return None
        try:
            return msgspec.json.decode(request.session, type=str).encode("utf-8", "surrogatepass")
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
