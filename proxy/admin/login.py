"""The form that a browser sends the admin token with, so that no address ever holds it, and the session it gets for it."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

from aiohttp import web

from proxy.admin.access import COOKIE, LOGIN, LOGOUT, SESSION_SECONDS, AdminAccess

_MOST_FORM_BYTES = 4096
# The colours are those of the live page; its style sheet is not for whoever has not signed in.
_STYLE = """
:root{color-scheme:light dark;--bg:#f5f5f2;--surface:#ffffff;--ink:#1a2027;--muted:#5b6671;--line:#e2e3de;--strong-line:#c9ccc6;
--accent:#1f5f8b;--on-accent:#fff;--critical:#b3261e;--critical-soft:#fbe6e3;--shadow:0 1px 2px rgb(20 30 40 / 6%);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
@media(prefers-color-scheme:dark){:root{--bg:#101418;--surface:#181d22;--ink:#e7ebee;--muted:#9ba6b0;--line:#283038;
--strong-line:#3a444e;--accent:#7cb8e0;--on-accent:#101418;--critical:#ff8a7e;--critical-soft:#3d201d;--shadow:none}}
*{box-sizing:border-box}
body{margin:0;min-height:100vh;display:grid;place-items:center;padding:16px;background:var(--bg);color:var(--ink)}
form{display:grid;gap:12px;width:100%;max-width:360px;padding:24px;background:var(--surface);border:1px solid var(--line);
border-radius:10px;box-shadow:var(--shadow)}
h1{display:flex;align-items:center;gap:9px;margin:0 0 4px;font-size:18px;letter-spacing:-.01em}
svg{width:26px;height:26px;color:var(--accent)}
circle{fill:#e08a1e}
p{margin:0}
.muted{font-size:13px;color:var(--muted)}
[role=alert]{padding:8px 12px;border-radius:7px;background:var(--critical-soft);color:var(--critical);font-weight:550}
label{font-weight:560}
input,button{font:inherit;width:100%;padding:9px 12px;border-radius:7px}
input{color:var(--ink);background:var(--bg);border:1px solid var(--strong-line)}
button{cursor:pointer;border:1px solid var(--accent);background:var(--accent);color:var(--on-accent);font-weight:600}
button:hover{filter:brightness(1.08)}
a{color:var(--accent)}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
"""
_STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
_TOLD = "<!-- what is wrong -->"
_PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Ridgeline: sign in</title>
<style>{_STYLE}</style>
</head>
<body>
<form method="post" action="{LOGIN}">
<h1><svg viewBox="0 0 32 32" aria-hidden="true"><path d="M2 26 L13 10 H30" fill="none" stroke="currentColor" stroke-width="3.4"
stroke-linecap="round" stroke-linejoin="round"/><circle cx="13" cy="10" r="3.6"/></svg>Ridgeline</h1>
{_TOLD}<label for="token">Admin token</label>
<input id="token" name="token" type="password" autocomplete="current-password" aria-describedby="whence" required autofocus>
<p id="whence" class="muted">As <code>admin_token</code> of the gateway's configuration has it.</p>
<button>Sign in</button>
<p class="muted">Signed in already? <a href="/">Go on</a></p>
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
    text = _PAGE.replace(_TOLD, f'<p role="alert">{told}</p>\n' if told else "")
    return web.Response(status=status, text=text, content_type="text/html", headers={"Content-Security-Policy": _POLICY})
