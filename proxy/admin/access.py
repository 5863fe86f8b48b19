"""Guards the admin listener: which names it answers to, from where it may be called, and with which token.

A browser that is made to visit a foreign page must not see or change anything here: the Host has to be one of ours, which a
name that was made to point here is not, the Origin, if there is one, has to be the same, and a change has to be JSON, which
no form can send. Where a token is wanted, programs send it as Bearer and people once to a form, which gives their browser a
session (`proxy.admin.login`). Off loopback nothing is answered without one.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from time import monotonic

from aiohttp import web
from aiohttp.typedefs import Middleware

from proxy.admin.token import AdminRules, is_one_of, read_tokens
from proxy.config.errors import RefusedError

_log = logging.getLogger(__name__)

COOKIE = "ridgeline_admin"
SESSION_SECONDS = 12 * 3600
STILL_LET_IN: web.RequestKey[Callable[[], bool]] = web.RequestKey("STILL_LET_IN")
"""Under this a guarded request has a call that says whether it would be let in now, for answers that go on."""
LOGIN, LOGOUT = "/login", "/logout"
_OPEN = frozenset({"/livez", "/readyz", LOGIN, LOGOUT})  # answered without a token
_FORMS = frozenset({LOGIN, LOGOUT})
_MOST_SESSIONS = 100
_TELL_SECONDS = 60.0
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class _Session:
    ends_at: float
    token: bytes  # digest of the one that it was begun with: it ends with that


class AdminAccess:
    """One per admin listener, which is bound to ``address`` (HOST:PORT). Sessions end with the process."""

    def __init__(self, address: str, rules: AdminRules | None = None, clock: Callable[[], float] = monotonic) -> None:
        host = address.rpartition(":")[0].strip("[]").lower()
        self._is_private = _is_loopback(host)
        # A service name in a cluster points to these.
        self._by_any_name = frozenset() if self._is_private else frozenset({"/metrics", "/livez", "/readyz"})
        self._own_names = {"localhost", host, socket.gethostname().lower()}
        self._rules = rules or AdminRules()
        self._clock = clock
        self._sessions: dict[bytes, _Session] = {}  # by the hash of what the browser has
        self._of_file: tuple[bytes, ...] = ()
        self._seen_file: tuple[object, ...] | None = None
        self._refused = 0  # wrong tokens not told of yet
        self._told_at: float | None = None

    def __repr__(self) -> str:
        return f"<AdminAccess, {'a token is wanted' if self.wants_token else 'open'}, {len(self._sessions)} sessions>"

    def follow(self, rules: AdminRules) -> None:
        """Another configuration is in force."""
        if rules.file != self._rules.file:
            self._of_file, self._seen_file = (), None
        self._rules = rules

    @property
    def wants_token(self) -> bool:
        """Whether calls need a token; without any, a listener off loopback answers nobody."""
        return self._rules.wants_token

    def guard(self, app: web.Application) -> None:
        """Put everything that an application answers behind the checks."""
        app.middlewares.append(self._middleware())
        app.on_response_prepare.append(_add_headers)

    def begin_session(self, token: str) -> str | None:
        """What a browser is given for a token; None if that is not valid."""
        digest = is_one_of(token, self._digests())
        now = self._clock()
        if digest is None:
            self._note_wrong(now)
            return None
        self._sessions = {key: session for key, session in self._sessions.items() if session.ends_at > now}
        if len(self._sessions) >= _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        self._sessions[_key(cookie)] = _Session(now + SESSION_SECONDS, digest)
        return cookie

    def end_session(self, cookie: str) -> None:
        """Whoever still has it is asked for a token again."""
        self._sessions.pop(_key(cookie), None)

    def _middleware(self) -> Middleware:
        @web.middleware
        async def guarded(request: web.Request, handler: _Handler) -> web.StreamResponse:
            self._check_origin(request)
            if request.path not in _OPEN:
                self._check_token(request)
                request[STILL_LET_IN] = lambda: self._is_let_in(request)
            if request.path not in _FORMS and request.can_read_body and request.content_type != "application/json":
                raise web.HTTPUnsupportedMediaType(text="send application/json\n")
            return await handler(request)

        return guarded

    def _check_origin(self, request: web.Request) -> None:
        """Raises the HTTP error for a call by a name that is not ours, or from a page of another origin."""
        host = request.headers.get("Host", "")
        name = (host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host).strip("[]").lower().removesuffix(".")
        is_named = name in self._rules.hosts
        # No page can have an address as its name and be of another origin.
        if not (is_named or name in self._own_names or _is_address(name) or request.path in self._by_any_name):
            raise web.HTTPForbidden(text="the Host header has a name that is not among admin_hosts\n")
        origin = request.headers.get("Origin")
        if origin is not None:
            own = {f"{request.scheme}://{host}"} | (
                {f"https://{host}"} if is_named else set()
            )  # where something ends TLS before us
            if origin not in own:
                raise web.HTTPForbidden(text="a page of another origin may not call this listener\n")
        is_followed_link = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.method == "GET"
        if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site") and not is_followed_link:
            raise web.HTTPForbidden(text="a page of another origin may not call this listener\n")

    def _check_token(self, request: web.Request) -> None:
        """Raises the HTTP error for a call without a valid token or session."""
        if self._is_let_in(request):
            return
        if not self.wants_token:
            raise web.HTTPForbidden(text="this listener is not on loopback and has no admin_token: it answers nobody\n")
        if _bearer(request) is not None:
            self._note_wrong(self._clock())
        if request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
            raise web.HTTPSeeOther(LOGIN)
        raise web.HTTPUnauthorized(
            headers={"WWW-Authenticate": 'Bearer realm="ridgeline admin"'},
            text=json.dumps({"error": "the admin token is wanted; send it as 'Authorization: Bearer TOKEN'"}),
            content_type="application/json",
        )

    def _is_let_in(self, request: web.Request) -> bool:
        if not self.wants_token:
            return self._is_private
        token, cookie = _bearer(request), request.cookies.get(COOKIE)
        if token is not None:
            return is_one_of(token, self._digests()) is not None
        session = None if cookie is None else self._sessions.get(_key(cookie))
        return session is not None and session.ends_at > self._clock() and session.token in self._digests()

    def _digests(self) -> tuple[bytes, ...]:
        """The tokens that are valid now. Those of a file that has become unreadable stay."""
        file = self._rules.file
        if file is None:
            return self._rules.digests
        try:
            status = file.stat()
            seen = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen_file:
                self._of_file, self._seen_file = read_tokens(file), seen
        except (OSError, RefusedError) as error:
            reason = f"{error.wrong}; {error.right}" if isinstance(error, RefusedError) else (error.strerror or "unreadable")
            if self._seen_file != (reason,):
                _log.error("admin_token_file: %s; the tokens read before stay valid", reason)
                self._seen_file = (reason,)
        return (*self._rules.digests, *self._of_file)

    def _note_wrong(self, now: float) -> None:
        self._refused += 1
        if self._told_at is None or now - self._told_at >= _TELL_SECONDS:
            _log.warning("the admin listener refused a wrong token, %d since this was last said", self._refused)
            self._refused, self._told_at = 0, now


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in (
        ("Cache-Control", "no-store"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Referrer-Policy", "same-origin"),  # with no-referrer browsers send forms with the Origin `null`
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
    ):
        response.headers.setdefault(name, value)


def _bearer(request: web.Request) -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _key(cookie: str) -> bytes:
    return sha256(cookie.encode("utf-8", "replace")).digest()


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host by this name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
