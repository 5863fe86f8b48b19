"""The form that a browser sends the admin token with, so that no address ever holds it, and the session it gets for it."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

from aiohttp import web

from proxy.admin.access import COOKIE, LOGIN, LOGOUT, SESSION_SECONDS, AdminAccess

_MOST_FORM_BYTES = 4096
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;display:grid;place-items:center;min-height:90vh;margin:0 1rem}"
    "form{display:grid;gap:.75rem;width:min(22rem,90vw)}h1{font-size:1.25rem;margin:0}"
    "input,button{font:inherit;padding:.5rem .75rem}p{margin:0}"
)
_STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
_PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>Ridgeline: sign in</title>
<style>{_STYLE}</style>
</head>
<body>
<form method="post" action="{LOGIN}">
<h1>Ridgeline</h1>
<label for="token">Admin token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Sign in</button>
%s<p>Signed in already? <a href="/">Go on</a></p>
</form>
</body>
</html>
"""


def add_login(app: web.Application, access: AdminAccess) -> None:
    """Add the routes of the form. They do nothing where no token is wanted."""

    async def show(_: web.Request) -> web.StreamResponse:
        if not access.wants_token:
            raise web.HTTPSeeOther("/")
        return _page(200)

    async def log_in(request: web.Request) -> web.StreamResponse:
        if not access.wants_token:
            raise web.HTTPSeeOther("/")
        if request.content_type != "application/x-www-form-urlencoded":
            raise web.HTTPUnsupportedMediaType(text="send a form\n")
        if request.content_length is None or request.content_length > _MOST_FORM_BYTES:
            raise web.HTTPRequestEntityTooLarge(_MOST_FORM_BYTES, request.content_length or 0)
        try:
            token = (await request.post()).get("token")
        except (LookupError, ValueError, web.RequestPayloadError):  # no such coding, or bytes that are none of it
            raise web.HTTPBadRequest(text="send a form in UTF-8\n") from None
        cookie = access.begin_session(token) if isinstance(token, str) else None
        if cookie is None:
            return _page(401, "This is not a valid token.")
        response = web.HTTPSeeOther("/")
        is_secure = request.headers.get("Origin", request.scheme).startswith("https")
        response.set_cookie(
            COOKIE, cookie, max_age=SESSION_SECONDS, path="/", secure=is_secure, httponly=True, samesite="Strict"
        )
        raise response

    async def log_out(request: web.Request) -> web.StreamResponse:
        access.end_session(request.cookies.get(COOKIE, ""))
        response = web.HTTPSeeOther(LOGIN)
        response.del_cookie(COOKIE, path="/")
        raise response

    app.router.add_get(LOGIN, show)
    app.router.add_post(LOGIN, log_in)
    app.router.add_post(LOGOUT, log_out)


def _page(status: int, told: str | None = None) -> web.Response:
    text = _PAGE % (f'<p role="alert">{told}</p>\n' if told else "")
    return web.Response(status=status, text=text, content_type="text/html", headers={"Content-Security-Policy": _POLICY})
