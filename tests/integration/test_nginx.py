"""nginx in front of the gateway with the configuration that is delivered: streams pass as if it were not there."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT
from tests.http1 import chunk, last_chunk
from tests.integration.answers import DONE, chat_answer, chat_events, event, sse_head, usage_of
from tests.integration.gateway import Gateway, free_ports, running_gateway
from tests.integration.raw_client import RawClient, request_bytes
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.steps import Hang, Send, Until

DELIVERED = ROOT / "deploy/nginx/ridgeline.conf"
CHAT = "/v1/chat/completions"
STREAM = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}

WHOLE = """\
daemon off;
master_process off;
error_log stderr;
pid {folder}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/ridgeline.conf;
}}
"""


@asynccontextmanager
async def nginx_before(gateway: Gateway, folder: Path) -> AsyncIterator[str]:
    """Its base URL, once it listens."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        pytest.skip("nginx is not installed (Debian package nginx-light)")  # a failure under REQUIRE_REAL=1
    (port,) = free_ports(1)
    text = DELIVERED.read_text().replace("127.0.0.1:8080", gateway.base_url.removeprefix("http://"))
    (folder / "ridgeline.conf").write_text(text.replace("listen 80;", f"listen 127.0.0.1:{port};"))
    (folder / "nginx.conf").write_text(WHOLE.format(folder=folder))
    process = await asyncio.create_subprocess_exec(program, "-p", str(folder), "-c", str(folder / "nginx.conf"))
    try:
        async with asyncio.timeout(10):
            while True:
                assert process.returncode is None, "nginx did not start"
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    break
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def test_a_stream_comes_through_event_by_event(worker: ScriptedWorker, tmp_path: Path) -> None:
    """The worker sends its second token only when the client has the first: whoever buffers waits for ever."""
    first, second, *rest = [chunk(event(each)) for each in chat_events(["one", "two"], usage=usage_of(5, 2))]
    tokens = [first + second, *rest]
    may_go_on = [asyncio.Event() for _ in tokens]
    steps = [Send(sse_head())]
    for data, told in zip(tokens, may_go_on, strict=True):
        steps += [Send(data), Until(told)]
    worker.enqueue([*steps, Send(chunk(DONE)), Send(last_chunk())])

    async with (
        running_gateway(workers=[worker.url]) as gateway,
        nginx_before(gateway, tmp_path) as url,
        await RawClient.connect(url) as client,
    ):
        await client.send(request_bytes("POST", CHAT, STREAM | {"stream_options": {"include_usage": True}}))
        async with asyncio.timeout(10):
            seen = b""
            for needle, told in zip((b'"one"', b'"two"', *([b"\n\n"] * (len(tokens) - 2))), may_go_on, strict=True):
                if needle not in seen:
                    seen += await client.read_until(needle)
                told.set()
            rest_of_it = await client.read_until(b"[DONE]")

    assert b"[DONE]" in rest_of_it
    assert b"gzip" not in seen


async def test_a_client_that_leaves_is_not_kept_alive_by_nginx(worker: ScriptedWorker, tmp_path: Path) -> None:
    """The worker's request is aborted, as without nginx."""
    worker.enqueue([Send(sse_head() + chunk(event(chat_events(["one"])[1]))), Hang()])

    async with running_gateway(workers=[worker.url]) as gateway, nginx_before(gateway, tmp_path) as url:
        async with await RawClient.connect(url) as client:
            await client.send(request_bytes("POST", CHAT, STREAM))
            await client.read_until(b'"one"')
        (record,) = await gateway.records(1)

    assert record["outcome"] == "client_gone"


async def test_a_long_prompt_passes(worker: ScriptedWorker, tmp_path: Path) -> None:
    """nginx's own bound is a megabyte, and 413 would come from there."""
    worker.enqueue([Send(chat_answer("ok", usage=usage_of(9, 1)))])
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 3_000_000}]}

    async with (
        running_gateway(workers=[worker.url]) as gateway,
        nginx_before(gateway, tmp_path) as url,
        await RawClient.connect(url) as client,
    ):
        answer = await client.request("POST", CHAT, body)

    assert answer.status == 200
    assert len(worker.requests[0].body) > 3_000_000
