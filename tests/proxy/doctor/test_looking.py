"""`ridgeline doctor` against workers and gateways that are well, unwell or something else, on loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from proxy.config.settings import parse_config
from proxy.doctor.asking import in_thread
from proxy.doctor.finding import Severity
from proxy.doctor.findings import find
from proxy.doctor.looking import Patience, observe
from tests.integration.gateway import free_ports
from tests.telemetry.dcgm_pages import a_page

KEY = "hunter2-hunter2"
PAGE = """\
vllm:num_requests_running{engine="0"} 0.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:kv_cache_usage_perc{engine="0"} 0.0
"""
PATIENT = Patience(first=20.0, page=20.0, completion=20.0, all_workers=60.0)  # nothing here waits for it but a busy machine
SHORT = Patience(first=1.0)


def a_vllm(
    *names: str, key: str | None = None, details: object = None, completions: list[object] | None = None
) -> web.Application:
    """What a worker answers, as far as it is looked at. What it is asked to complete is added to `completions`."""
    app = web.Application()
    asked = [] if completions is None else completions

    def refuses(request: web.Request) -> bool:
        return key is not None and request.headers.get("Authorization") != f"Bearer {key}"

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def models(request: web.Request) -> web.Response:
        if refuses(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"data": [{"id": name, "root": "org/m", "max_model_len": 8192} for name in names]})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    async def completion(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"usage": {"prompt_tokens": 1, "prompt_tokens_details": details}})

    app.router.add_get("/health", health)
    app.router.add_get("/version", version)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", metrics)
    app.router.add_post("/v1/completions", completion)
    return app


def a_website() -> web.Application:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text=f"<html>{request.headers.get('Authorization')}</html>", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    return app


def a_gateway(state: object) -> web.Application:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def tell(_: web.Request) -> web.Response:
        return web.json_response(state)

    app = web.Application()
    app.router.add_get("/livez", ok)
    app.router.add_get("/readyz", ok)
    app.router.add_get("/api/state", tell)
    return app


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    async with TestServer(app, host="127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.port}"


@asynccontextmanager
async def a_raw_server(reply: bytes | None) -> AsyncIterator[str]:
    """Takes connections and says this, or nothing at all."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if reply is None:
            await reader.read()
        else:
            writer.write(reply)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def a_config(*workers: str, more: str = "", listen: list[str] | None = None) -> str:
    addresses = listen or [f"127.0.0.1:{port}" for port in free_ports(3)]
    names = ("listen", "observe_listen", "admin_listen")
    lines = [f"{name}: {address}" for name, address in zip(names, addresses, strict=True)]
    return "\n".join([*lines, f"models: [{{name: m, workers: [{', '.join(workers)}]}}]", more])


async def codes(text: str, *, patience: Patience = PATIENT, wants_completion: bool = False):
    seen = await observe(parse_config(text, {}, "test"), patience=patience, wants_completion=wants_completion)
    return {found.code: found.severity for found in find(seen)}


HINTS = {"details_unknown": Severity.HINT, "times_unknown": Severity.HINT, "gateway_not_running": Severity.HINT}


async def test_a_good_worker():
    """Of a worker without fault only what cannot be seen is told, and it is not asked to generate anything."""
    asked: list[object] = []
    async with served(a_vllm("other", "m", completions=asked)) as url:
        assert await codes(a_config(url)) == HINTS
    assert asked == []


@pytest.mark.parametrize(
    ("details", "code"), [(None, "details_off"), ({"cached_tokens": 0}, None)], ids=["without details", "with details"]
)
async def test_probe_asks_for_one_token(details, code):
    """With --probe one completion of one token is asked for, and tells whether the flag is set."""
    asked: list[object] = []
    async with served(a_vllm("m", details=details, completions=asked)) as url:
        found = await codes(a_config(url), wants_completion=True)
    assert found.keys() == {code, "times_off", "gateway_not_running"} - {None}
    assert asked == [{"model": "m", "prompt": "Hello", "max_tokens": 1}]


@pytest.mark.parametrize(
    ("make", "more", "code"),
    [
        (partial(a_vllm, "m", key=KEY), "", "key_missing"),
        (partial(a_vllm, "m", key=KEY), "worker_key: another", "key_refused"),
        (partial(a_vllm, "other"), "", "model_not_listed"),
        (a_website, "", "worker_not_vllm"),
    ],
)
async def test_a_worker_at_fault(make, more, code):
    """A key that is missing or wrong, a model that is not there and another program are told from each other."""
    async with served(make()) as url:
        assert (await codes(a_config(url, more=more)))[code] is Severity.ERROR


async def test_workers_of_a_prefill_stage_are_looked_at():
    """Listed or found, with the key of the pool that they compute for: without them that pool computes everything itself."""
    async with served(a_vllm("m", key=KEY)) as url, served(a_vllm("m", key=KEY)) as stage:
        pool = f'{{name: p, workers: ["{url}"], prefill: {{workers: ["{stage}"]}}, worker_key: {KEY}}}'
        config = parse_config(a_config().replace("workers: []", f"pools: [{pool}]"), {}, "test")
        seen = await observe(config, patience=PATIENT)
        assert [(one.target.pool, one.target.url) for one in seen.workers] == [("p", url), ("p-prefill", stage)]
        assert {found.code: found.severity for found in find(seen)} == HINTS

        found_stage = pool.replace(f'["{stage}"]', "{dns: no-such-host.invalid, port: 8000}")
        config = parse_config(a_config().replace("workers: []", f"pools: [{found_stage}]"), {}, "test")
        assert (await observe(config, patience=PATIENT)).unseen_pools == ("m/p-prefill",)


async def test_the_right_key_is_sent():
    """A worker that wants the configured key gets it."""
    async with served(a_vllm("m", key=KEY)) as url:
        assert await codes(a_config(url, more=f"worker_key: {KEY}")) == HINTS


@pytest.mark.parametrize("reply", [b"SSH-2.0-OpenSSH_9.6\r\n", b""], ids=["no HTTP", "closing"])
async def test_what_is_no_worker(reply):
    """What speaks something else or closes at once is told."""
    async with a_raw_server(reply) as url:
        assert (await codes(a_config(url)))["worker_broken"] is Severity.ERROR


async def test_the_exporter_of_a_workers_gpus_is_looked_at():
    """By the URL that the configuration gives for this worker; that its labels fit no GPU is told."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=a_page(2))

    exporter = web.Application()
    exporter.router.add_get("/metrics", page)
    async with served(a_vllm("m")) as url, served(exporter) as gpus:
        port = gpus.rpartition(":")[2]
        for gpu, code in ((1, {}), (5, {"dcgm_labels": Severity.WARNING})):
            worker = f'{{url: "{url}", dcgm: {{url: "http://{{host}}:{port}/metrics", labels: {{gpu: {gpu}}}}}}}'
            assert await codes(a_config(worker)) == HINTS | code


async def test_a_hanging_worker():
    """A worker that takes connections and says nothing is told within the time that is given."""
    async with a_raw_server(None) as url:
        assert (await codes(a_config(url), patience=SHORT))["worker_silent"] is Severity.ERROR


async def test_a_page_without_end():
    """A page that never ends is read up to a bound."""

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    app = web.Application()
    app.router.add_get("/health", flood)
    async with served(app) as url:
        assert (await codes(a_config(url)))["worker_broken"] is Severity.ERROR


async def test_workers_without_a_connection():
    """Refused connections and unknown host names are told from each other, in one look."""
    found = await codes(a_config(f"http://127.0.0.1:{unused_port()}", "http://no-such-host.invalid:8000"))
    assert found["worker_refused"] is found["worker_unresolved"] is Severity.ERROR


async def test_many_hanging_workers():
    """When more workers hang than can be waited for, the look ends and says which it had no time for."""
    async with a_raw_server(None) as url:
        port = url.rpartition(":")[2]
        workers = [f"http://127.0.0.1:{port}/w{number}" for number in range(200)]
        config = parse_config(a_config(*workers), {}, "test")
        patience = Patience(first=0.5, page=0.1, all_workers=0.8)
        seen = await observe(config, patience=patience)
    found = {found.code: len(found.subjects) for found in find(seen)}
    assert found["worker_not_looked_at"] >= 200 - 2 * 64
    assert sum(found.get(f"worker_{what}", 0) for what in ("silent", "unreachable", "not_looked_at")) == 200


async def test_a_port_that_is_taken():
    """Of a gateway that does not run, an address that another program has is found."""
    async with a_raw_server(b"") as taken, served(a_vllm("m")) as url:
        listen = [taken.removeprefix("http://"), *(f"127.0.0.1:{port}" for port in free_ports(2))]
        found = await codes(a_config(url, listen=listen))
    assert found["address_in_use"] is Severity.ERROR


async def test_a_running_gateway():
    """A running gateway is asked for its state instead of its addresses being tried; a worker it calls down is found."""
    async with served(a_vllm("m")) as url:
        workers = [{"worker": url.removeprefix("http://"), "url": url, "is_up": False, "is_draining": False}]
        state = {"version": "1", "serving_processes": 1, "pools": [{"model": "m", "pool": "default", "workers": workers}]}
        async with served(a_gateway(state)) as one, served(a_gateway(state)) as two, served(a_gateway(state)) as three:
            listen = [address.removeprefix("http://") for address in (one, two, three)]
            found = await codes(a_config(url, listen=listen))
    assert found == {"details_unknown": Severity.HINT, "times_unknown": Severity.HINT, "worker_down": Severity.WARNING}


async def test_workers_that_a_running_gateway_has_found():
    """They are looked at like those of a list, without a key; those on their way out are left alone."""
    keys: list[str | None] = []
    vllm = a_vllm("m")

    @web.middleware
    async def note(request: web.Request, handler):
        keys.append(request.headers.get("Authorization"))
        return await handler(request)

    vllm.middlewares.append(note)
    async with served(vllm) as url:
        workers = [
            {"worker": "pod-a", "url": url, "is_up": True, "is_draining": False},
            {"worker": "pod-b", "url": f"http://127.0.0.1:{unused_port()}", "is_up": None, "is_draining": True},
        ]
        state = {"version": "1", "serving_processes": 1, "pools": [{"model": "m", "pool": "default", "workers": workers}]}
        async with served(a_gateway(state)) as one, served(a_gateway(state)) as two, served(a_gateway(state)) as three:
            listen = [address.removeprefix("http://") for address in (one, two, three)]
            text = a_config(listen=listen, more=f"worker_key: {KEY}").replace("workers: []", "workers: {dns: h, port: 1}")
            seen = await observe(parse_config(text, {}, "test"), patience=PATIENT)
    assert [worker.target.worker for worker in seen.workers] == ["pod-a"]
    assert keys
    assert set(keys) == {None}
    assert "workers_not_known" not in {found.code for found in find(seen)}

    state["pools"][0]["workers"] = []
    async with served(a_gateway(state)) as one, served(a_gateway(state)) as two, served(a_gateway(state)) as three:
        listen = [address.removeprefix("http://") for address in (one, two, three)]
        text = a_config(listen=listen).replace("workers: []", "workers: {dns: h, port: 1}")
        seen = await observe(parse_config(text, {}, "test"), patience=PATIENT)
    assert {found.code: found.severity for found in find(seen)}["no_workers"] is Severity.ERROR

    text = a_config().replace("workers: []", "workers: {dns: no-such-host.invalid, port: 8000}")
    found = await codes(text)
    assert found == {"gateway_not_running": Severity.HINT, "workers_not_known": Severity.HINT}


async def test_a_thread_is_not_waited_for():
    """A call that blocks gives up its place when the time is over; its own errors are raised."""
    blocked = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_thread(blocked.wait)
    blocked.set()
    with pytest.raises(OSError, match="gone"):
        await in_thread(lambda: (_ for _ in ()).throw(OSError("gone")))
