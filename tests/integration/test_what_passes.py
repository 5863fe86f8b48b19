"""What passes between clients and workers and what does not: headers, request ids, hosts, paths."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.answers import plain
from tests.integration.keyed_scene import ANSWER, BODY, KEY, WORKER_KEY, ids_once_quiet, running_keyed_scene
from tests.integration.scene import CHAT, Scene
from tests.integration.scripted_worker import Received
from tests.integration.steps import Send

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway with keys, a worker key, and short limits for what clients send."""
    async with running_keyed_scene() as one:
        yield one


async def sent_to_worker(scene: Scene, headers: list[tuple[str, str]]) -> Received:
    seen = await scene.ask(ANSWER, body=BODY, headers=headers)
    assert seen.answer.status == 200
    return scene.arrivals(seen.record["request_id"])[0]


async def test_headers_that_go_to_the_worker(scene: Scene) -> None:
    """End-to-end headers pass, equal names kept; those of the connection, credentials and cookies do not."""
    request = await sent_to_worker(
        scene,
        [
            ("X-Kept", "one"),
            ("X-Kept", "two"),
            ("X-Secret", "for the gateway"),
            ("Connection", "keep-alive, x-secret"),
            ("Keep-Alive", "timeout=5"),
            ("TE", "trailers"),
            ("Trailer", "X-Later"),
            ("Proxy-Authorization", "Basic abc"),
            ("Proxy-Connection", "keep-alive"),
            ("Upgrade", "h2c"),
            ("Cookie", "session=1"),
            ("Api-Key", "sk-azure"),
            ("X-Api-Key", "sk-anthropic"),
            ("Accept-Encoding", "gzip, br"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("User-Agent", "test/1"),
        ],
    )
    names = [name for name, _ in request.head.headers]

    assert [value for name, value in request.head.headers if name == "x-kept"] == ["one", "two"]
    assert request.headers["authorization"] == f"Bearer {WORKER_KEY}"
    assert request.headers["host"] == scene.worker.url[7:]
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["user-agent"] == "test/1"
    assert request.headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert request.headers["content-type"] == "application/json"
    for name in (
        *("x-secret", "keep-alive", "te", "trailer", "proxy-authorization", "proxy-connection", "upgrade"),
        *("cookie", "api-key", "x-api-key"),
    ):
        assert name not in names, name
    for name in ("authorization", "host", "content-length", "x-request-id", "accept-encoding"):
        assert names.count(name) == 1, name
    assert KEY.encode() not in request.head.raw


async def test_headers_that_come_from_the_worker(scene: Scene) -> None:
    """The same on the way back; what the gateway says itself is not doubled."""
    headers = [
        ("x-kept", "one"),
        ("x-kept", "two"),
        ("x-secret", "for the gateway"),
        ("connection", "keep-alive, x-secret"),
        ("keep-alive", "timeout=5"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("proxy-authenticate", "Basic"),
        ("trailer", "x-later"),
        ("upgrade", "h2c"),
        ("x-request-id", "the-workers"),
        ("x-ridgeline-worker", "forged"),
        ("server-timing", "x;dur=1"),
        ("retry-after", "3"),
    ]
    seen = await scene.ask([Send(plain(200, {"choices": []}, headers))], body=BODY)
    assert seen.answer.head is not None
    got = list(seen.answer.head.headers)
    names = [name for name, _ in got]

    assert [value for name, value in got if name == "x-kept"] == ["one", "two"]
    for name in ("x-secret", "keep-alive", "set-cookie", "proxy-authenticate", "trailer", "upgrade"):
        assert name not in names, name
    assert [value for name, value in got if name == "x-request-id"] == [seen.record["request_id"]]
    assert [value for name, value in got if name == "x-ridgeline-worker"] == [seen.record["worker"]]
    assert names.count("server-timing") == 1
    assert names.count("content-length") + names.count("transfer-encoding") == 1
    assert seen.answer.head.get("retry-after") == "3"
    assert WORKER_KEY.encode() not in seen.answer.raw


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        (["abc-DEF_1.2:3"], True),
        (["x" * 128], True),
        (["x" * 129], False),
        (["has blank"], False),
        (["a\tb"], False),
        (["caf\xe9"], False),
        (["x" * 7000], False),
        (["../../etc"], False),
        (['"quoted"'], False),
        ([""], False),
        (["one", "two"], False),
    ],
)
async def test_a_request_id_is_kept_only_if_it_is_safe(scene: Scene, given: list[str], is_kept: bool) -> None:
    """A short plain id goes through to the worker, the answer and the record; any other is replaced by a new one."""
    before = len(scene.worker.requests)
    fields = [*(("X-Request-Id", text) for text in given), *scene.headers]
    async with await scene.connect() as client:
        answer = await client.request("POST", CHAT, BODY, fields)
    assert answer.head is not None
    used = answer.head.get("x-request-id")
    assert used is not None
    [request] = scene.worker.requests[before:]

    assert answer.status == 200
    assert (used in given) is is_kept
    assert [value for name, value in request.head.headers if name == "x-request-id"] == [used]
    assert (await scene.record(used))["status"] == 200
    assert used.isascii()
    assert used.replace("-", "").replace("_", "").replace(".", "").replace(":", "").isalnum()


async def test_new_request_ids_differ(scene: Scene) -> None:
    """Each request without an id gets one of its own."""
    ids = set()
    async with await scene.connect() as client:
        for _ in range(5):
            answer = await client.request("POST", CHAT, BODY, scene.headers)
            assert answer.head is not None
            ids.add(answer.head.get("x-request-id"))

    assert len(ids) == 5


@pytest.mark.parametrize("host", ["http://elsewhere.test", "https://elsewhere.test:444", "http://127.0.0.1:1"])
async def test_the_host_of_a_target_decides_nothing(scene: Scene, host: str) -> None:
    """A target in absolute form is answered like its path; nothing goes to the host that it names."""
    seen = await scene.ask(ANSWER, body=BODY, path=host + CHAT)

    assert seen.answer.status == 200
    [request] = scene.arrivals(seen.record["request_id"])
    assert (request.path, request.headers["host"]) == (CHAT, scene.worker.url[7:])


TRICKS = [
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/v1/chat/completions/",
    "/v1/chat/../chat/completions",
    "/v1/./chat/completions",
    "/x/../v1/chat/completions",
    "/%761/chat/completions",
    "/v1%2Fchat/completions",
    "/v1/chat%2fcompletions",
    "/v1/%2e%2e/v1/chat/completions",
    "/v1/chat/completions%00",
    "/v1/chat/completions%20",
    "/v1/chat/completions;x=1",
    "/V1/chat/completions",
    "/v1/chat/Completions",
    "/v1/chat/completions.",
    "/v1/chat/completions/../../../metrics",
    "/metrics",
    "/sleep",
    "/v1/load_lora_adapter",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/",
    "/v1",
    "/..",
    "http://x//v1/chat/completions",
    "http://x",
]


@pytest.mark.parametrize("path", TRICKS)
async def test_only_the_plain_paths_exist(scene: Scene, path: str) -> None:
    """Any other spelling of a path, and any path that only workers know, is 404 or 401 and reaches no worker."""
    for method in ("POST", "GET"):
        seen = await scene.ask(ANSWER, body=BODY, path=path, method=method)
        assert (seen.answer.status, seen.answer.json()["error"]["code"]) == (404, "not_found")
        assert seen.record["endpoint"] == "other"
        assert scene.arrivals(seen.record["request_id"]) == []
    async with await scene.connect() as client:
        answer = await client.request("POST", path, BODY)
    assert answer.status in (401, 404)


@pytest.mark.parametrize(
    "name", ["", "nobody", "..", "%2e%2e", "%2e%2e%2fchat%2fcompletions", "tiny/", "tiny%00", "%ff", "%zz"]
)
async def test_a_model_that_is_not_there(scene: Scene, name: str) -> None:
    """The name behind the models' path is only looked up: any that is not configured is 404 and reaches no worker."""
    seen = await scene.ask(ANSWER, path=f"/v1/models/{name}", method="GET")

    assert seen.answer.status == 404
    assert seen.answer.json()["error"]["code"] in {"model_not_found", "not_found"}
    assert scene.arrivals(seen.record["request_id"]) == []


async def test_a_query_is_not_part_of_the_path(scene: Scene) -> None:
    """A query does not hide a path, and does not travel to the worker."""
    seen = await scene.ask(ANSWER, body=BODY, path=CHAT + "?api-version=1&x=/../")

    assert seen.answer.status == 200
    assert scene.arrivals(seen.record["request_id"])[0].path == CHAT


async def test_models_and_probes(scene: Scene) -> None:
    """The models are listed and shown to those with a key; the probes of the process need none and have no record."""
    async with await scene.connect() as client:
        listed = await client.request("GET", "/v1/models", headers=scene.headers)
        shown = await client.request("GET", "/v1/models/tiny", headers=scene.headers)
        hidden = await client.request("GET", "/v1/models")
        probes = [await client.request("GET", path) for path in ("/livez", "/readyz", "/health")]

    assert [model["id"] for model in listed.json()["data"]] == ["tiny"]
    assert shown.json() == listed.json()["data"][0]
    assert hidden.status == 401
    assert [probe.status for probe in probes] == [200] * 3


async def test_nothing_is_left_in_flight(scene: Scene) -> None:
    """After all of the above every count is back at zero and each record stands for one request."""
    ids = await ids_once_quiet(scene)

    assert len(ids) == len(set(ids))
