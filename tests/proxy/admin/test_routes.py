"""The admin listener: who may change the fleet, with what, and what comes back."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from proxy.admin.access import AdminAccess
from proxy.admin.routes import admin_app
from proxy.admin.token import AdminRules
from proxy.control.fleet import Fleet
from tests.proxy.fleets import a_topology, names, running_fleet

TWO = a_topology({"default": ["w-0", "w-1"]})


class Admin:
    """A client of the admin routes of a fleet."""

    def __init__(self, client: TestClient, fleet: Fleet) -> None:
        self.client = client
        self.fleet = fleet

    async def call(self, method: str, path: str, json: object = None, **headers: str) -> ClientResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.client.request(method, path, json=json, headers=named)
        await answer.read()
        return answer

    async def add(self, **fields: object) -> ClientResponse:
        return await self.call("POST", "/api/workers", {"model": "m", "url": "http://127.0.0.1:99", **fields})

    @property
    def workers(self) -> list[str]:
        return names(self.fleet.topology)


Start = Callable[..., Awaitable[Admin]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def make(address: str = "127.0.0.1:8081", token: str | None = None) -> Admin:
            fleet = await stack.enter_async_context(running_fleet(tmp_path, TWO))
            rules = AdminRules() if token is None else AdminRules(digests=(sha256(token.encode()).digest(),))
            app = admin_app(fleet._view, fleet, address, access=AdminAccess(address, rules))
            return Admin(await stack.enter_async_context(TestClient(TestServer(app))), fleet)

        yield make


@pytest.fixture
async def admin(start: Start) -> Admin:
    return await start()


async def test_a_worker_is_added(admin):
    """The pool is named `default` and the worker after its address, unless said otherwise; the new state comes back."""
    answer = await admin.add()

    assert answer.status == 200
    assert [worker["worker"] for worker in (await answer.json())["pools"][0]["workers"]] == ["w-0", "w-1", "127.0.0.1:99"]
    assert admin.workers == ["w-0", "w-1", "127.0.0.1:99"]


async def test_a_worker_with_a_path_can_be_removed(admin):
    """Names with a slash or a blank are reachable when they are escaped."""
    for fields in ({"url": "http://127.0.0.1:99/sub"}, {"name": "my worker", "url": "http://127.0.0.1:98"}):
        assert (await admin.add(**fields)).status == 200

    for name in ("127.0.0.1:99/sub", "my worker"):
        assert (await admin.call("DELETE", f"/api/workers/{quote(name, safe='')}")).status == 200

    assert admin.workers == ["w-0", "w-1"]


async def test_a_worker_is_drained_and_resumed_and_removed(admin):
    """Each answers with the state after the change."""
    drained = await (await admin.call("POST", "/api/workers/w-1/drain")).json()
    resumed = await (await admin.call("POST", "/api/workers/w-1/resume")).json()
    removed = await (await admin.call("DELETE", "/api/workers/w-1")).json()

    def shown(state: dict) -> list[tuple[str, bool]]:
        return [(worker["worker"], worker["is_draining"]) for worker in state["pools"][0]["workers"]]

    assert shown(drained) == [("w-0", False), ("w-1", True)]
    assert shown(resumed) == [("w-0", False), ("w-1", False)]
    assert shown(removed) == [("w-0", False)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "other"}, "no pool"),
        ({"pool": "other"}, "no pool"),
        ({"name": "w-0"}, "'w-0' already"),
        ({"url": "http://127.0.0.1:1"}, "already"),
        ({"url": "ftp://127.0.0.1:99"}, "ftp"),
        ({"url": "http://user:s3cret@127.0.0.1:99"}, "user or password"),
        ({"url": ""}, "empty"),
        ({"url": 5}, "url"),
        ({"extra": 1}, "extra"),
    ],
)
async def test_what_makes_no_sense_is_refused(admin, fields, said):
    """With 400 and the reason as JSON; nothing has changed, and no secret of a URL comes back."""
    answer = await admin.add(**fields)

    assert answer.status == 400
    text = (await answer.json())["error"]
    assert said in text
    assert "s3cret" not in text
    assert admin.workers == ["w-0", "w-1"]


@pytest.mark.parametrize("name", ["a\nb", " a", "wörk", "a" * 201, "a\u2028b"])
async def test_a_name_has_to_be_one_that_a_file_could_have(admin, name):
    """It becomes a label and travels in a header, whoever gave it."""
    assert (await admin.add(name=name)).status == 400
    assert admin.workers == ["w-0", "w-1"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b'{"model": "m"}', b'{"model":"\\ud800","url":"http://a"}']
)
async def test_a_body_that_cannot_be_read_is_refused(admin, body):
    """It is the caller's mistake."""
    answer = await admin.client.post("/api/workers", data=body, headers={"Content-Type": "application/json"})

    assert answer.status == 400


async def test_unknown_and_last_workers(admin):
    """404 for a worker that is not there, 409 for the last one of a pool."""
    for method, path in (("POST", "nix/drain"), ("POST", "nix/resume"), ("DELETE", "nix")):
        assert (await admin.call(method, f"/api/workers/{path}")).status == 404
    assert (await admin.call("DELETE", "/api/workers/w-0")).status == 200
    assert (await admin.call("DELETE", "/api/workers/w-1")).status == 409
    assert admin.workers == ["w-1"]


async def test_an_unknown_worker_named_last_worker_is_unknown(admin):
    """The status does not depend on what a name reads like."""
    assert (await admin.call("DELETE", "/api/workers/last%20worker")).status == 404


CHANGES = [
    ("POST", "/api/workers", {"model": "m", "url": "http://127.0.0.1:99"}),
    ("POST", "/api/workers/w-0/drain", None),
    ("POST", "/api/workers/w-0/resume", None),
    ("DELETE", "/api/workers/w-0", None),
]


@pytest.mark.parametrize(("method", "path", "json"), CHANGES)
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
        {"Origin": "http://127.0.0.1:1"},  # another port is another origin
        {"Host": "localhost:8081", "Origin": "https://localhost:8081"},
        {"Host": "localhost:8081", "Origin": "http://localhost:8081.evil.example"},
    ],
)
async def test_a_foreign_page_changes_nothing(admin, method, path, json, headers):
    """Neither a name that was made to point here nor a page of another origin gets through."""
    before = admin.fleet.topology

    answer = await admin.call(method, path, json, **headers)

    assert answer.status == 403
    assert admin.fleet.topology is before


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8081", "127.0.0.1:8081", "127.0.0.2", "[::1]:8081", "[::1]"])
async def test_our_own_names_may_change(admin, host):
    """With a port or without, and a page of the same origin."""
    assert (await admin.call("POST", "/api/workers/w-0/drain", Host=host)).status == 200
    assert (await admin.call("POST", "/api/workers/w-0/resume", Host=host, Origin=f"http://{host}")).status == 200


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_what_a_form_can_send_is_refused(admin, media):
    """A body that is not declared as JSON is not read."""
    body = b'{"model":"m","url":"http://127.0.0.1:99"}'
    for path in ("/api/workers", "/api/workers/w-0/drain"):
        answer = await admin.client.post(path, data=body, headers={"Content-Type": media})
        assert answer.status == 415

    assert admin.workers == ["w-0", "w-1"]


@pytest.mark.parametrize("address", ["0.0.0.0:8081", "10.0.0.5:8081", "[::]:8081", "[fd00::1]:8081"])
async def test_nothing_is_shown_or_changed_from_outside_without_a_token(start, address):
    """Bound to anything but loopback, the listener answers nobody unless it has a token to ask for."""
    admin = await start(address)
    for method, path, json in (*CHANGES, ("GET", "/api/state", None), ("GET", "/metrics", None)):
        assert (await admin.call(method, path, json)).status == 403

    assert (await admin.call("GET", "/livez")).status == 200
    assert admin.fleet.topology == TWO


@pytest.mark.parametrize("address", ["[::1]:8081", "127.0.0.1:1", "localhost:8081"])
async def test_every_loopback_address_may_change(start, address):
    """Whichever it is bound to."""
    admin = await start(address)

    assert (await admin.add()).status == 200


async def test_a_change_that_cannot_be_published_is_told(admin, tmp_path):
    """With 507, and nothing has changed."""
    (tmp_path / "topology.msgpack.new").mkdir()

    answer = await admin.add()

    assert answer.status == 507
    assert admin.workers == ["w-0", "w-1"]


async def test_workers_are_listed_with_their_source(admin):
    """Who named each of them; one that was added here stands beside those of the file."""
    await admin.add()

    answer = await admin.call("GET", "/api/workers")

    assert answer.status == 200
    assert [(each["model"], each["pool"], each["worker"], each["source"]) for each in await answer.json()] == [
        ("m", "default", "w-0", "config"),
        ("m", "default", "w-1", "config"),
        ("m", "default", "127.0.0.1:99", "admin"),
    ]


async def test_other_methods_are_not_allowed(admin):
    """Reading does not change, and there is nothing to put."""
    for method, path in (
        ("PUT", "/api/workers"),
        ("GET", "/api/workers/w-0/drain"),
        ("PUT", "/api/state"),
    ):
        assert (await admin.call(method, path)).status == 405


async def test_changes_by_hand_are_told(admin, caplog):
    """Who, what and the result, one line each; looking is not told, and no worker's name can forge a line."""
    caplog.set_level(logging.INFO, logger="proxy.admin.routes")
    await admin.add(name="w-2")
    await admin.call("POST", "/api/workers/w-1/drain")
    await admin.call("DELETE", f"/api/workers/{quote('x' + chr(10) + 'forged', safe='')}")
    await admin.call("GET", "/api/workers")

    assert [record.getMessage() for record in caplog.records if record.name == "proxy.admin.routes"] == [
        "POST /api/workers (worker w-2 at http://127.0.0.1:99, pool default of m) by 127.0.0.1 without a token: done",
        "POST /api/workers/w-1/drain by 127.0.0.1 without a token: done",
        "DELETE /api/workers/x%0Aforged by 127.0.0.1 without a token: refused with 404",
    ]


async def test_changes_with_a_token_are_told_without_it(start, caplog):
    """Nor what came with a wrong one."""
    caplog.set_level(logging.INFO, logger="proxy.admin.routes")
    admin = await start(token="s3cret-s3cret")
    await admin.call("POST", "/api/workers/w-1/drain", Authorization="Bearer s3cret-s3cret")
    await admin.call("POST", "/api/workers/w-1/resume", Authorization="Bearer wr0ng-wr0ng")

    assert [record.getMessage() for record in caplog.records if record.name == "proxy.admin.routes"] == [
        "POST /api/workers/w-1/drain by 127.0.0.1 with a token: done",
    ]
    assert "s3cret" not in caplog.text
    assert "wr0ng" not in caplog.text
