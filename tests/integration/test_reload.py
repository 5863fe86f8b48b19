"""A running gateway takes another configuration, and loses nothing by it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from proxy.config.wiring import build_topology
from proxy.control.reload import LOOK_SECONDS, Reloader, first_config
from tests.http1 import chunk, last_chunk
from tests.integration.answers import DONE, chat_answer, chat_events, event, sse_head, usage_of
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.load import (
    all_up,
    chat_bytes,
    client_of,
    eventually,
    id_of,
    paced,
    requests_in_turn,
    stream,
    watched,
    worker_of,
)
from tests.integration.raw_client import Answer, End, RawClient
from tests.integration.scene import CHAT, chat_body
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Script, Send, Step, Until
from tests.proxy.fleets import a_file, names, running_fleet

PLAIN = [Send(chat_answer("x", usage=usage_of(5, 1)))]
ADOPTION_SECONDS = 0.7  # serving processes look for news twice a second
OK = {"result": "ok"}
FAILED = {"result": "failed"}


def name_of(worker: ScriptedWorker) -> str:
    return worker.url.removeprefix("http://")


def models(*workers: ScriptedWorker, **settings: Any) -> list[dict[str, Any]]:
    """All in one pool that goes by load, so that equal requests reach everybody."""
    pool = {"name": "default", "policy": "least-load", "workers": [worker.url for worker in workers]}
    return [{"name": "tiny", "pools": [pool], **settings}]


def write(gateway: Gateway, **changes: Any) -> None:
    """Put another configuration in the file's place, as an editor does: a new file under the old name."""
    if "limits" in changes:
        changes["limits"] = {"drain_grace_seconds": 0, **changes["limits"]}
    gateway.config.update(changes)
    fresh = gateway.config_path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(gateway.config))
    fresh.replace(gateway.config_path)


async def reloads(gateway: Gateway, **labels: str) -> float:
    return (await gateway.metrics()).value("ridgeline_reloads_total", **labels)


async def reloaded(gateway: Gateway, *, result: dict[str, str] = OK, **changes: Any) -> None:
    """Change the configuration, ask for it with SIGHUP, and wait until it is in force everywhere."""
    before = await reloads(gateway, **result)
    if changes:
        write(gateway, **changes)
    gateway.supervisor.send_signal(signal.SIGHUP)
    await gateway.metrics_when(lambda metrics: metrics.value("ridgeline_reloads_total", **result) == before + 1, 10.0)
    if result is OK:
        await asyncio.sleep(ADOPTION_SECONDS)


async def ask(gateway: Gateway, count: int = 1, **headers: str) -> list[Answer]:
    """So many plain requests on one connection."""
    async with await RawClient.connect(gateway.base_url) as client:
        return [await client.request("POST", CHAT, chat_body(stream=False), headers.items()) for _ in range(count)]


async def workers_asked(gateway: Gateway) -> set[str]:
    """Which workers answer now."""
    return {worker_of(answer) for answer in await ask(gateway, 8)}


def held(may_end: asyncio.Event) -> list[Step]:
    """A stream that waits in its middle."""
    first, *rest = chat_events(["one", "two"], usage=usage_of(5, 2, 0))
    events = [Send(chunk(event(item))) for item in rest]
    return [
        Send(sse_head()),
        Send(chunk(event(first))),
        events[0],
        Until(may_end),
        *events[1:],
        Send(chunk(DONE)),
        Send(last_chunk()),
    ]


@pytest.fixture
async def gateway(worker: ScriptedWorker, other_worker: ScriptedWorker) -> AsyncIterator[Gateway]:
    """A gateway with one worker; the other one is there to be added."""
    worker.script = other_worker.script = PLAIN
    async with running_gateway({"models": models(worker)}) as one:
        await all_up(one, 1)
        yield one


async def test_workers_come_and_go(gateway: Gateway, worker: ScriptedWorker, other_worker: ScriptedWorker) -> None:
    """An added worker gets requests; a removed one no new ones, while the stream it has runs to its end and is counted."""
    assert await workers_asked(gateway) == {name_of(worker)}
    await reloaded(gateway, models=models(worker, other_worker))
    assert await workers_asked(gateway) == {name_of(worker), name_of(other_worker)}

    may_end = asyncio.Event()
    worker.script = other_worker.script = held(may_end)
    running = await RawClient.connect(gateway.base_url)
    seen = len(worker.requests)
    await running.send(chat_bytes())
    start = await running.read_until(b'"one"')
    removed, kept = (worker, other_worker) if len(worker.requests) > seen else (other_worker, worker)
    worker.script = other_worker.script = PLAIN
    before = await gateway.metrics()

    await reloaded(gateway, models=models(kept))
    assert await workers_asked(gateway) == {name_of(kept)}
    may_end.set()
    answer = await running.read_answer(start=start)
    running.close()

    assert answer.end is End.COMPLETE
    assert answer.body.endswith(DONE)
    (record,) = [each for each in await gateway.records(25) if each["request_id"] == id_of(answer)]
    assert (record["outcome"], record["worker"], record["completion_tokens"]) == ("ok", name_of(removed), 2)
    after = await gateway.metrics()
    counted = [
        metrics.value("ridgeline_requests_total", endpoint="chat", outcome="ok", pool="default") for metrics in (before, after)
    ]
    assert counted == [16, 25]
    assert after.value("ridgeline_ttft_seconds_count") == 1
    assert {sample.labels["worker"] for sample in after["ridgeline_in_flight_requests"]} == {name_of(kept)}
    assert after.total("ridgeline_in_flight_requests") == 0


async def test_a_worker_that_comes_back_during_its_stream_has_no_debts(
    gateway: Gateway, worker: ScriptedWorker, other_worker: ScriptedWorker
) -> None:
    """Removed and added again while it streams, a worker ends with nothing in flight, and is chosen like any other."""
    may_end = asyncio.Event()
    worker.enqueue(held(may_end))
    async with await RawClient.connect(gateway.base_url) as running:
        await running.send(chat_bytes(max_tokens=5000))
        start = await running.read_until(b'"one"')
        await reloaded(gateway, models=models(other_worker))
        await reloaded(gateway, models=models(other_worker, worker))
        may_end.set()
        assert (await running.read_answer(start=start)).end is End.COMPLETE

    metrics = await gateway.metrics()
    assert {sample.value for sample in metrics["ridgeline_in_flight_requests"]} == {0}
    assert {sample.value for sample in metrics["ridgeline_in_flight_tokens"]} == {0}
    assert await workers_asked(gateway) == {name_of(worker), name_of(other_worker)}


async def test_keys_are_rotated(gateway: Gateway) -> None:
    """From one reload to the next an old key is refused and a new one accepted, also on a kept connection."""

    def key(text: str) -> dict[str, str]:
        return {"name": f"app-{text}", "sha256": sha256(text.encode()).hexdigest()}

    async with await RawClient.connect(gateway.base_url) as client:

        async def statuses() -> list[int]:
            answers = [
                await client.request("POST", CHAT, chat_body(stream=False), [("Authorization", f"Bearer {text}")])
                for text in ("old", "new")
            ]
            return [answer.status for answer in answers]

        assert await statuses() == [200, 200]  # no keys: open
        await reloaded(gateway, keys=[key("old")])
        assert await statuses() == [200, 401]
        await reloaded(gateway, keys=[key("old"), key("new")])
        assert await statuses() == [200, 200]
        await reloaded(gateway, keys=[key("new")])
        assert await statuses() == [401, 200]
        await reloaded(gateway, keys=[{**key("new"), "models": ["tiny"]}, key("old")])
        assert await statuses() == [200, 200]

    metrics = await gateway.metrics()
    assert metrics.total("ridgeline_key_requests_total", key="app-new", outcome="ok") == 3
    assert metrics.value("ridgeline_key_tokens_total", key="app-new", kind="prompt") == 15
    assert metrics.total("ridgeline_rejections_total", reason="auth") == 2
    assert metrics.total("ridgeline_requests_total", endpoint="chat") == 10


async def test_limits_pools_and_names_change(gateway: Gateway, worker: ScriptedWorker, other_worker: ScriptedWorker) -> None:
    """Limits hold from then on, aliases lead to the model, and pools take what their range holds."""
    body = chat_body(stream=False, max_tokens=500)

    async def status(model: str = "tiny") -> tuple[int, str]:
        async with await RawClient.connect(gateway.base_url) as client:
            answer = await client.request("POST", CHAT, {**body, "model": model})
        assert answer.head is not None
        return answer.status, answer.head.get("x-ridgeline-pool") or ""

    assert await status() == (200, "default")
    await reloaded(gateway, limits={"body_bytes": 50})
    assert await status() == (413, "")

    pools = [
        {"name": "long", "workers": [other_worker.url], "max_total_tokens": 100_000},
        {"name": "short", "workers": [worker.url], "max_total_tokens": 100},
    ]
    await reloaded(gateway, limits={}, models=[{"name": "tiny", "aliases": ["other"], "pools": pools}])
    assert [await status(name) for name in ("tiny", "other", "third")] == [(200, "long"), (200, "long"), (404, "")]
    assert json.loads(other_worker.requests[-1].body)["model"] == "tiny"
    body["max_tokens"] = 5
    assert await status() == (200, "short")

    await reloaded(gateway, models=models(worker, name="renamed"))
    assert [await status(name) for name in ("tiny", "renamed")] == [(404, ""), (200, "default")]


async def test_a_bad_file_changes_nothing(gateway: Gateway) -> None:
    """Each kind of bad file is counted and told once, with what was wrong, and the gateway serves on as it was."""
    good = gateway.config_path.read_bytes()
    bad = {
        b"": "",
        good + b"modles: []\n": "modles",
        good[: good.index(b"models") + 20]: "",
        b"\xff\xfe": "",
        good.replace(b"http://", b"ftp://"): "ftp",
        good + b"worker_key: ${NOT_SET_ANYWHERE}\n": "NOT_SET_ANYWHERE",
    }
    for count, (content, said) in enumerate(bad.items(), start=1):
        before = len(gateway.stderr)
        gateway.config_path.write_bytes(content)
        await reloaded(gateway, result=FAILED)
        told = gateway.stderr[before:]
        assert told.count("the old one stays in force") == 1
        assert said in told
        assert await reloads(gateway, **FAILED) == count
    gateway.config_path.unlink()
    await reloaded(gateway, result=FAILED)
    assert "No such file" in gateway.stderr

    assert [answer.status for answer in await ask(gateway, 3)] == [200, 200, 200]
    assert await reloads(gateway, **OK) == 0
    gateway.config_path.write_bytes(good)
    await reloaded(gateway)


async def test_a_changed_file_is_noticed(gateway: Gateway, worker: ScriptedWorker, other_worker: ScriptedWorker) -> None:
    """Nobody has to say so: a file in the old one's place, one that was away for a while, and a link that is swung."""

    async def noticed(result: dict[str, str], count: int) -> None:
        await gateway.metrics_when(lambda metrics: metrics.value("ridgeline_reloads_total", **result) == count, 4.0)

    write(gateway, models=models(other_worker))
    await noticed(OK, 1)
    await asyncio.sleep(ADOPTION_SECONDS)
    assert await workers_asked(gateway) == {name_of(other_worker)}

    gateway.config_path.unlink()
    await asyncio.sleep(LOOK_SECONDS + 0.3)
    write(gateway, models=models(worker, other_worker))
    await noticed(OK, 2)

    path, folder = gateway.config_path, gateway.config_path.parent
    for version, workers in (("1", (worker, other_worker)), ("2", (worker,))):
        (folder / f"..{version}").mkdir()
        text = yaml.safe_dump({**gateway.config, "models": models(*workers)})
        (folder / f"..{version}" / path.name).write_text(text)
    (folder / "..data").symlink_to("..1")
    (folder / "link").symlink_to(Path("..data") / path.name)
    (folder / "link").replace(path)
    await asyncio.sleep(LOOK_SECONDS + 0.3)
    assert await reloads(gateway, **OK) == 2  # the same content is no change
    (folder / "..data_tmp").symlink_to("..2")
    (folder / "..data_tmp").replace(folder / "..data")
    await noticed(OK, 3)
    await asyncio.sleep(ADOPTION_SECONDS)
    assert await workers_asked(gateway) == {name_of(worker)}

    path.unlink()
    path.write_text("models: [")
    await noticed(FAILED, 1)
    await asyncio.sleep(LOOK_SECONDS + 0.3)
    assert await reloads(gateway, **FAILED) == 1  # told once


async def test_probes_go_on_over_reloads(gateway: Gateway, worker: ScriptedWorker, other_worker: ScriptedWorker) -> None:
    """After five reloads each worker is still asked every five seconds, by one probe, and taken out when it dies."""
    for count in range(5):
        workers = (worker, other_worker) if count % 2 == 0 else (worker,)
        await reloaded(gateway, models=models(*workers), limits={"connect_seconds": 1 + count})
    probed, since = len(other_worker.probes), time.monotonic()

    await worker.stop()
    metrics = await gateway.metrics_when(
        lambda metrics: metrics.value("ridgeline_worker_up", worker=name_of(worker)) == 0, 13.0
    )
    assert metrics.value("ridgeline_worker_up", worker=name_of(other_worker)) == 1
    assert await workers_asked(gateway) == {name_of(other_worker)}
    await worker.start()
    asked = [probe for probe in other_worker.probes[probed:] if probe.path == "/health"]
    most = (time.monotonic() - since) / 4.5 + 1
    assert 1 <= len(asked) <= most
    assert gateway.stderr.count(f"{name_of(worker)} is down") == 1


@asynccontextmanager
async def under_load(gateway: Gateway, clients: int) -> AsyncIterator[Callable[[], int]]:
    """Requests and streams without a pause; every one must go well. Gives how many did, which is final after the block."""
    is_over = asyncio.Event()
    done = 0

    async def go_on() -> None:
        nonlocal done
        client, _ = await client_of(gateway)
        async with client:
            while not is_over.is_set():
                (plain,) = await requests_in_turn(client, 1)
                streamed = await stream(gateway)
                assert (plain.status, streamed.status, streamed.end) == (200, 200, End.COMPLETE)
                assert streamed.body.endswith(DONE)
                done += 2

    tasks = [asyncio.create_task(go_on()) for _ in range(clients)]
    try:
        yield lambda: done
    finally:
        is_over.set()
        await asyncio.gather(*tasks)


def some_streams(request: Received) -> Script:
    return paced(5, 0.02) if b'"stream": true' in request.body else PLAIN


async def test_counters_never_go_back(worker: ScriptedWorker, other_worker: ScriptedWorker) -> None:
    """Reloads that change the layout, one after another, two processes, load all the time: nothing fails and all is counted."""
    worker.script = other_worker.script = some_streams
    async with running_gateway({"models": models(worker)}, processes=2) as gateway:
        await all_up(gateway, 2)
        async with watched(gateway) as watch, under_load(gateway, 8) as done:
            for count in range(4):
                workers = (other_worker, worker) if count % 2 == 0 else (worker,)
                keys = {} if count < 2 else {"limits": {"connect_seconds": count}}
                await reloaded(gateway, models=models(*workers), **keys)
            write(gateway, models=models(other_worker, worker))
            gateway.supervisor.send_signal(signal.SIGHUP)  # two at once
            await asyncio.sleep(0.1)
            write(gateway, models=models(worker))
            gateway.supervisor.send_signal(signal.SIGHUP)
            await asyncio.sleep(1.5)
        metrics = await gateway.metrics()
        print(f"\n{done()} requests over six reloads, {watch.scrapes} scrapes")

        assert watch.went_back == []
        assert watch.misses == []
        assert watch.scrapes > 30
        assert metrics.total("ridgeline_requests_total", endpoint="chat", outcome="ok") == done()
        assert metrics.total("ridgeline_requests_total", endpoint="chat") == done()
        assert metrics.total("ridgeline_in_flight_requests") == 0
        assert metrics.value("ridgeline_reloads_total", result="ok") == 6


async def call(gateway: Gateway, method: str, path: str, json: Any = None, **headers: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.request(method, gateway.admin_url + path, json=json, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def control_killed(gateway: Gateway) -> None:
    """Kill the control process and wait for the next one."""
    before = gateway.processes.control
    assert before is not None
    os.kill(before, signal.SIGKILL)
    await eventually(lambda: gateway.processes.control not in (None, before))
    await gateway.ready(gateway.observe_url, 5.0)


async def test_changes_by_hand_survive_control(gateway: Gateway, worker: ScriptedWorker, other_worker: ScriptedWorker) -> None:
    """Workers added, drained and removed through the admin listener stay so when control dies, and over a reload."""
    added = await call(gateway, "POST", "/api/workers", {"model": "tiny", "url": other_worker.url, "name": "by-hand"})
    assert added[0] == 200
    await asyncio.sleep(ADOPTION_SECONDS)
    assert await workers_asked(gateway) == {name_of(worker), "by-hand"}
    assert (await call(gateway, "POST", f"/api/workers/{name_of(worker)}/drain"))[0] == 200
    await asyncio.sleep(ADOPTION_SECONDS)
    assert await workers_asked(gateway) == {"by-hand"}

    await control_killed(gateway)

    state = json.loads((await call(gateway, "GET", "/api/state"))[1])
    shown = {each["worker"]: each["is_draining"] for each in state["pools"][0]["workers"]}
    assert shown == {name_of(worker): True, "by-hand": False}
    await reloaded(gateway, limits={"connect_seconds": 2})
    assert await workers_asked(gateway) == {"by-hand"}
    assert (await call(gateway, "POST", f"/api/workers/{name_of(worker)}/resume"))[0] == 200
    assert (await call(gateway, "DELETE", "/api/workers/by-hand"))[0] == 200
    await asyncio.sleep(ADOPTION_SECONDS)
    assert await workers_asked(gateway) == {name_of(worker)}

    address = gateway.config["admin_listen"].rpartition(":")[2]
    for status, headers in (
        (403, {"Host": f"evil.example:{address}"}),
        (403, {"Origin": "http://evil.example"}),
        (415, {"Content-Type": "text/plain"}),
        (200, {"Host": f"localhost:{address}", "Origin": f"http://localhost:{address}"}),
    ):
        new = {"model": "tiny", "url": "http://127.0.0.1:9"}
        data, whole = json.dumps(new), {"Content-Type": "application/json", **headers}
        async with (
            aiohttp.ClientSession(trust_env=False) as session,
            session.post(gateway.admin_url + "/api/workers", data=data, headers=whole) as answer,
        ):
            assert answer.status == status


async def test_a_public_admin_listener_wants_its_token(worker: ScriptedWorker) -> None:
    """Bound to all addresses it shows and changes for those who have it; the observers' is open. A reload replaces it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first, second = ({"Authorization": f"Bearer {token}"} for token in ("a-first-s3cret-token", "a-second-s3cret-token"))
    settings = {"models": models(worker), "admin_listen": f"0.0.0.0:{port}"}
    environ = {"ADMIN_TOKEN": "a-first-s3cret-token"}
    async with running_gateway({**settings, "admin_token": "${ADMIN_TOKEN}"}, environ=environ) as gateway:
        gateway.admin_url = f"http://127.0.0.1:{port}"
        await all_up(gateway, 1)
        drain, add = f"/api/workers/{name_of(worker)}/drain", {"model": "tiny", "url": "http://127.0.0.1:9"}

        for headers in ({}, second):
            assert (await call(gateway, "GET", "/api/state", **headers))[0] == 401
            assert (await call(gateway, "POST", "/api/workers", add, **headers))[0] == 401
            assert (await call(gateway, "POST", drain, **headers))[0] == 401
        assert (await call(gateway, "GET", "/api/state", **first))[0] == 200
        assert (await call(gateway, "POST", "/api/workers", add, **first))[0] == 200
        assert (await gateway.get(gateway.observe_url + "/metrics"))[0] == 200

        await reloaded(gateway, **settings, admin_token="a-second-s3cret-token")
        assert (await call(gateway, "GET", "/api/state", **first))[0] == 401
        assert (await call(gateway, "GET", "/api/state", **second))[0] == 200
        assert "s3cret" not in gateway.stderr


async def test_control_comes_back_under_another_file(
    gateway: Gateway, worker: ScriptedWorker, other_worker: ScriptedWorker
) -> None:
    """A control process that is started again and finds a new file puts it in force without a counter going back."""
    await ask(gateway, 20)
    async with watched(gateway, 0.01) as watch:
        await asyncio.sleep(0.2)
        write(gateway, models=models(worker, other_worker))
        await control_killed(gateway)
        await asyncio.sleep(2 * LOOK_SECONDS + 1.5)

    assert watch.went_back == []
    assert await workers_asked(gateway) == {name_of(worker), name_of(other_worker)}


async def test_control_comes_back_under_a_bad_file(gateway: Gateway) -> None:
    """The old configuration stays in force over a restart of control too: there are metrics, and the fault is told."""
    good = gateway.config_path.read_text()
    gateway.config_path.write_text("models: [")
    try:
        await control_killed(gateway)
    finally:
        gateway.config_path.write_text(good)

    assert (await gateway.get(gateway.observe_url + "/metrics"))[0] == 200
    assert [answer.status for answer in await ask(gateway)] == [200]


async def test_a_file_that_changed_during_the_start_is_noticed(tmp_path: Path) -> None:
    """What was written after control had read the file, and before it began to look for changes, is in force soon."""
    path = tmp_path / "gateway.yaml"
    path.write_text(a_file({"default": ["w-0"]}))
    config, text = first_config(path, {}, tmp_path)
    async with running_fleet(tmp_path, build_topology(config)) as fleet:
        path.write_text(a_file({"default": ["w-0", "w-1"]}))
        task = asyncio.create_task(Reloader(path, {}, config, fleet, text=text).run())
        await asyncio.sleep(2 * LOOK_SECONDS + 0.5)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    assert names(fleet.topology) == ["w-0", "w-1"]
