"""Who may use the admin listener: tokens, sessions of browsers, names and origins."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from socket import gethostname

import pytest
from aiohttp import ClientResponse, DummyCookieJar, web
from aiohttp.test_utils import TestClient, TestServer

from dashboards.live.assets import assets
from proxy.admin.access import COOKIE, SESSION_SECONDS, AdminAccess
from proxy.admin.login import add_login
from proxy.admin.token import AdminRules, digest_of

TOKEN, OTHER = "correct-horse-battery", "staple-correct-horse"
RULES = AdminRules(digests=(digest_of(TOKEN),))
PUBLIC = "0.0.0.0:8081"


class Caller:
    """Somebody who calls a guarded application; keeps no cookies by itself."""

    def __init__(self, client: TestClient, access: AdminAccess) -> None:
        self.client = client
        self.access = access
        self.now = 0.0

    async def call(self, method: str = "GET", path: str = "/api/state", **more: object) -> ClientResponse:
        answer = await self.client.request(method, path, allow_redirects=False, **more)
        await answer.read()
        return answer

    async def status(self, token: str | None = None, **headers: str) -> int:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        return (await self.call(headers=sent)).status

    async def log_in(self, token: str = TOKEN) -> str:
        answer = await self.call("POST", "/login", data={"token": token})
        assert answer.status == 303
        assert answer.headers["Location"] == "/"
        return answer.headers["Set-Cookie"]


Start = Callable[..., Awaitable[Caller]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async with AsyncExitStack() as stack:

        async def make(address: str = PUBLIC, rules: AdminRules = RULES) -> Caller:
            access = AdminAccess(address, rules, clock=lambda: caller.now)
            app = web.Application()
            access.guard(app)
            add_login(app, access)
            for path in ("/", "/api/state", "/livez", "/readyz", "/metrics"):
                app.router.add_get(path, ok)
            app.router.add_post("/api/workers", ok)
            caller = Caller(await stack.enter_async_context(TestClient(TestServer(app), cookie_jar=DummyCookieJar())), access)
            return caller

        yield make


async def test_a_token_is_asked_for(start):
    """Without one, with another, or in another place than the header: 401 with the way to send it, as JSON."""
    caller = await start()

    assert await caller.status(TOKEN) == 200
    for token in (None, OTHER, TOKEN[:-1], TOKEN + "x", "", TOKEN.upper()):
        assert await caller.status(token) == 401
    assert await caller.status(Authorization=f"Basic {TOKEN}") == 401
    answer = await caller.call(path=f"/api/state?token={TOKEN}")
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer ")
    assert "Bearer TOKEN" in (await answer.json())["error"]


async def test_everything_but_the_probes_is_guarded(start):
    """Metrics, the page, paths that are not there; a kubelet has no token."""
    caller = await start()

    for path in ("/", "/metrics", "/api/state", "/nothing", "/livez/"):
        assert (await caller.call(path=path)).status == 401
    for path in ("/livez", "/readyz", "/login"):
        assert (await caller.call(path=path)).status == 200


@pytest.mark.parametrize("address", ["127.0.0.1:8081", "[::1]:8081", "localhost:8081"])
async def test_on_loopback_a_token_is_wanted_where_one_is_configured(start, address):
    """Others on the machine may reach it too."""
    assert await (await start(address)).status() == 401
    open_one = await start(address, AdminRules())
    assert await open_one.status() == 200
    assert (await open_one.call(path="/login")).headers["Location"] == "/"


async def test_two_tokens_are_valid_and_a_reload_changes_them(start):
    """So that one is replaced while the other is in use; a session ends with the token it was begun with."""
    caller = await start()
    session = (await caller.log_in()).split(";")[0]
    assert await caller.status(Cookie=session) == 200

    caller.access.follow(AdminRules(digests=(digest_of(TOKEN), digest_of(OTHER))))
    assert [await caller.status(token) for token in (TOKEN, OTHER)] == [200, 200]
    assert await caller.status(Cookie=session) == 200

    caller.access.follow(AdminRules(digests=(digest_of(OTHER),)))
    assert [await caller.status(token) for token in (TOKEN, OTHER)] == [401, 200]
    assert await caller.status(Cookie=session) == 401


async def test_tokens_of_a_file_change_with_it(start, tmp_path: Path, caplog):
    """As a mounted secret does. One that has become bad leaves the tokens that were read before, and is told once."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    caller = await start(rules=AdminRules(file=file))
    assert [await caller.status(token) for token in (TOKEN, OTHER)] == [200, 401]

    file.write_text(f"{OTHER}\n{TOKEN}\n")
    assert [await caller.status(token) for token in (TOKEN, OTHER)] == [200, 200]
    caplog.clear()
    file.write_text("short\n")
    assert [await caller.status(token) for token in (TOKEN, OTHER)] == [200, 200]
    file.unlink()
    assert [await caller.status(token) for token in (TOKEN, OTHER)] == [200, 200]

    assert [record.message.split(": ")[1] for record in caplog.records] == [
        "a token in the file is shorter than 16 characters, which can be guessed; make one",
        "No such file or directory; the tokens read before stay valid",
    ]


async def test_a_browser_signs_in_with_a_form(start):
    """The session cannot be read by scripts or sent by other sites, ends after a while, and can be ended."""
    caller = await start()
    turned_away = await caller.call(path="/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (turned_away.status, turned_away.headers["Location"]) == (303, "/login")

    cookie = await caller.log_in()
    name, *flags = (part.strip().lower() for part in cookie.split(";"))
    assert name.startswith(f"{COOKIE}=")
    assert {"httponly", "samesite=strict", "path=/"} <= set(flags)
    assert "secure" not in flags
    assert TOKEN not in cookie

    session = cookie.split(";")[0]
    assert await caller.status(Cookie=session) == 200
    assert await caller.status(Cookie=f"{COOKIE}={TOKEN}") == 401
    caller.now = SESSION_SECONDS + 1
    assert await caller.status(Cookie=session) == 401

    session = (await caller.log_in()).split(";")[0]
    assert (await caller.call("POST", "/logout", headers={"Cookie": session})).status == 303
    assert await caller.status(Cookie=session) == 401


async def test_the_form_refuses(start, caplog):
    """A wrong token with the form once more, and what is no form; wrong tokens are told, but not one by one."""
    caller = await start()
    for token in (OTHER, "", "<b>"):
        answer = await caller.call("POST", "/login", data={"token": token})
        assert answer.status == 401
        assert "Set-Cookie" not in answer.headers
        assert "<b>" not in await answer.text()
    assert (await caller.call("POST", "/login", json={"token": TOKEN})).status == 415
    assert (await caller.call("POST", "/login", data={"token": "x" * 5000})).status == 413
    assert (await caller.call("POST", "/login", data={"token": TOKEN}, headers={"Origin": "http://evil.example"})).status == 403
    assert len(caplog.records) == 1
    assert OTHER not in caplog.text


async def test_bytes_that_are_no_text_are_a_wrong_token(start, caplog):
    """Refused as any other, and told no more often: what nobody was let in for must not fill the log with faults of ours."""
    caller = await start()
    address = caller.client.server
    for _ in range(2):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(
            b"GET /api/state HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n"
        )
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()
    form = "application/x-www-form-urlencoded"
    for media, body in (
        (form, b"token=\xff"),
        (f"{form}; charset=none", b"token=x"),
        (f"{form}; charset=base64", b"token=x"),
    ):
        answer = await caller.call("POST", "/login", data=body, headers={"Content-Type": media})
        assert answer.status == 400
    assert [record.name for record in caplog.records if record.levelname == "ERROR"] == []
    assert len([record for record in caplog.records if record.name == "proxy.admin.access"]) == 1


async def test_the_form_may_do_nothing_else(start):
    """Its policy allows its own style and to be sent to where it came from."""
    caller = await start()
    answer = await caller.call(path="/login")
    policy, text = answer.headers["Content-Security-Policy"], await answer.text()

    style = re.search("<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    assert f"style-src 'sha256-{b64encode(sha256(style[1].encode()).digest()).decode()}'" in policy
    assert {"default-src 'none'", "form-action 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    assert "<script" not in text
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "same-origin"  # with `no-referrer` a browser would send Origin: null


async def test_the_form_has_the_colours_of_the_page(start):
    """By light and by dark: each colour that both style sheets name is the same in both."""
    caller = await start()
    form = await (await caller.call(path="/login")).text()
    page = assets()["style.css"].body.decode()

    for of_form, of_page in zip(_colours(form), _colours(page)[:2], strict=True):
        shared = of_form.keys() & of_page.keys()
        assert len(shared) >= 8
        assert {name: of_form[name] for name in shared} == {name: of_page[name] for name in shared}


def _colours(text: str) -> list[dict[str, str]]:
    """The values of the style's variables: those of light, then those that are others by dark."""
    return [
        dict(re.findall(r"(--[\w-]+):\s*([^;}]+)", block.replace("\n", "")))
        for block in re.findall(r":root\s*\{(.*?)\}", text, re.DOTALL)
    ]


async def test_sessions_are_bounded(start):
    """The oldest gives way."""
    caller = await start()
    sessions = [caller.access.begin_session(TOKEN) for _ in range(101)]

    assert await caller.status(Cookie=f"{COOKIE}={sessions[0]}") == 401
    assert await caller.status(Cookie=f"{COOKIE}={sessions[1]}") == 200


@pytest.mark.parametrize("address", ["127.0.0.1:8081", PUBLIC])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8081"},
        {"Host": "localhost.evil.example:8081"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "localhost:8081", "Origin": "https://localhost:8081"},
        {"Host": "localhost:8081", "Origin": "http://localhost:8082"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
)
async def test_a_foreign_page_reads_nothing(start, address, headers):
    """Neither by a name that was made to point here nor from another origin, token or not."""
    assert await (await start(address)).status(TOKEN, **headers) == 403


async def test_names_of_the_listener(start):
    """`localhost`, addresses, the machine's own, and the names that are configured; probes come by any."""
    private, public = (
        await start("127.0.0.1:8081"),
        await start(rules=AdminRules(digests=RULES.digests, hosts=frozenset({"gw.example"}))),
    )

    for host in ("localhost", "LOCALHOST:8081", "127.0.0.1:8081", "127.0.0.2", "[::1]:8081", "[::1]"):
        assert await private.status(TOKEN, Host=host, Origin=f"http://{host}") == 200
    assert await private.status(TOKEN, Host="gw.example") == 403
    assert await private.status(TOKEN, Host=f"{gethostname()}:8081") == 200
    for path, token, status in (("/livez", "", 200), ("/metrics", TOKEN, 200), ("/metrics", OTHER, 401), ("/", TOKEN, 403)):
        sent = {"Host": "gateway.default.svc:8081", "Authorization": f"Bearer {token}"}
        assert (await public.call(path=path, headers=sent)).status == status
    for host in ("10.0.0.5:8081", "[fd00::1]:8081", "GW.example:8081", "gw.example", "localhost:8081"):
        assert await public.status(TOKEN, Host=host) == 200
    # something ends TLS before us, under that name
    assert await public.status(TOKEN, Host="gw.example", Origin="https://gw.example") == 200
    assert await public.status(TOKEN, Host="10.0.0.5", Origin="https://10.0.0.5") == 403


async def test_a_link_from_elsewhere_may_be_followed(start):
    """From a runbook to the page: that reads nothing for the other site."""
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    caller = await start("127.0.0.1:8081", AdminRules())

    assert (await caller.call(path="/", headers=followed)).status == 200
    assert (await caller.call("POST", "/api/workers", headers=followed)).status == 403


async def test_a_listener_off_loopback_without_a_token_answers_nobody(start):
    """As after a reload that has taken the token out while the address stays the one of the start."""
    caller = await start()
    caller.access.follow(AdminRules())

    assert await caller.status() == 403
    assert await caller.status(TOKEN) == 403
    assert (await caller.call(path="/livez")).status == 200


async def test_what_a_form_can_send_changes_nothing(start):
    """A body that is not declared as JSON is refused, with a valid token too."""
    caller = await start()
    allowed = {"Authorization": f"Bearer {TOKEN}"}

    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        sent = await caller.call("POST", "/api/workers", data=b"{}", headers={**allowed, "Content-Type": media})
        assert sent.status == 415
    assert (await caller.call("POST", "/api/workers", json={}, headers=allowed)).status == 200
