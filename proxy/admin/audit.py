"""Tells each change that somebody made on the admin listener: who, what, and what came of it, as one line in the log.

Inside the guard of `proxy.admin.access`: calls that it refuses change nothing, and wrong tokens are told there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

_log = logging.getLogger("proxy.admin.routes")
_DETAIL = web.RequestKey("ridgeline_changed", str)
_MOST_PATH = 300  # characters of it that are told
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_audit(app: web.Application, *, wants_token: Callable[[], bool], untold: frozenset[str]) -> None:
    """Tell of every call that is no look, but for those of the ``untold`` paths. To be added after the guard."""

    @web.middleware
    async def told(request: web.Request, handler: _Handler) -> web.StreamResponse:
        is_look = request.method in {"GET", "HEAD", "OPTIONS"}
        if is_look or request.path in untold or request.match_info.http_exception is not None:
            return await handler(request)
        result = "failed"
        try:
            answer = await handler(request)
            result = "done" if answer.status < 300 else f"refused with {answer.status}"
            return answer
        finally:
            _tell(request, wants_token(), result)

    app.middlewares.append(told)


def name_change(request: web.Request, text: str) -> None:
    """Say what a path does not: the text must be made of checked values only."""
    request[_DETAIL] = text


def _tell(request: web.Request, wants_token: bool, result: str) -> None:
    with_what = "a token" if "Authorization" in request.headers else "a session"
    by = f"with {with_what}" if wants_token else "without a token"
    detail = request.get(_DETAIL)
    what = f"{request.method} {request.rel_url.raw_path[:_MOST_PATH]}" + (f" ({detail})" if detail else "")
    _log.info("%s by %s %s: %s", what, request.remote or "a closed connection", by, result)
