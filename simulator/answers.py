"""What every whole answer of a simulated worker has in common: its headers, and that a body must be announced as JSON."""

from __future__ import annotations

import secrets

from simulator.refusals import Refusal, too_many_waiting, unsupported_media_type
from simulator.settings import WorkerSettings
from simulator.sockets import Reply, Request
from simulator.wire import small as wire_small

VARY = (("vary", "Origin"),)
_JSON = "application/json"


def json_body(request: Request) -> bytes:
    """The body of a request. `Refusal` if there is one and it is not announced as JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.body and kind != _JSON:
        raise unsupported_media_type()
    return request.body


class Answers:
    """Gives whole answers as a worker of these settings does."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._dialect = settings.dialect
        self._tells_request_id = settings.request_id_headers

    def give(
        self,
        request: Request,
        reply: Reply,
        status: int,
        body: bytes,
        *,
        content_type: str | None = _JSON,
        varies: bool = True,
        more: list[tuple[str, str]] | None = None,
    ) -> None:
        """Answer now. ``content_type`` is ``None`` for an answer without one; ``more`` stands before it."""
        headers = [("content-type", content_type)] if content_type else []
        reply.answer(status, body, [*(more or []), *headers, *self.headers(request, varies=varies)])

    def refuse(self, request: Request, reply: Reply, status: int, retry_after_seconds: int | None) -> None:
        """Refuse as a worker or something before it does that has too much to do."""
        kind = {429: "Too Many Requests", 503: "Service Unavailable"}.get(status, "InternalServerError")
        refusal = Refusal(status, kind, too_many_waiting().message)
        more = [] if retry_after_seconds is None else [("retry-after", str(retry_after_seconds))]
        self.give(request, reply, status, wire_small.error_body(refusal, self._dialect), more=more)

    def headers(self, request: Request, *, varies: bool = True) -> tuple[tuple[str, str], ...]:
        """The headers behind the content type."""
        headers = VARY if varies else ()
        if not self._tells_request_id:
            return headers
        return (*headers, ("x-request-id", request.headers.get("x-request-id") or secrets.token_hex(16)))
