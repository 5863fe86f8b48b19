"""TLS through a whole gateway: on its listeners, and towards workers that are trusted or not."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.certificates import Authority
from tests.integration.answers import chat_answer, chat_events, stream_of, usage_of
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.load import eventually
from tests.integration.scene import CHAT, chat_body
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.steps import Send, Wait

pytestmark = pytest.mark.integration

PLAIN = [Send(chat_answer("x", usage=usage_of(4, 2)))]


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server_context(pair: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)
    return context


def client_of(ca: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca.file))


@asynccontextmanager
async def asked(gateway: Gateway, trust: ssl.SSLContext | bool = True, **fields: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(gateway.base_url + CHAT, json=chat_body(**{"stream": False, **fields}), ssl=trust) as answer,
    ):
        yield answer


def shown(gateway: Gateway, url: str, ca: Authority) -> tuple[str, ...]:
    """The names in the certificate that a listener shows."""
    host, _, port = url.rpartition("/")[2].rpartition(":")
    with (
        socket.create_connection((host, int(port)), 5) as plain,
        client_of(ca).wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        names = (wrapped.getpeercert() or {}).get("subjectAltName", ())
        return tuple(str(name) for kind, name in names if kind == "DNS")


async def test_all_listeners_speak_tls_and_renew_their_certificates(ca: Authority) -> None:
    """A stream that runs while the certificate changes goes on to its end; a bad pair changes nothing and is told."""
    certificate, key = ca.issue("a", "127.0.0.1", "first.example")
    files = {"certificate": str(certificate), "key": str(key)}
    async with (
        ScriptedWorker() as worker,
        running_gateway(dict.fromkeys(("tls", "observe_tls", "admin_tls"), files), workers=[worker.url]) as gateway,
    ):
        events = chat_events(list("abcdefgh"), usage=usage_of(4, 8))
        worker.script = lambda _: stream_of(events, gap_seconds=0.5)
        await eventually(lambda: "clients https://" in gateway.stderr)
        for url in (gateway.base_url, gateway.observe_url, gateway.admin_url):
            assert url.startswith("https://")
            assert await asyncio.to_thread(shown, gateway, url, ca) == ("first.example",)

        async with asked(gateway, client_of(ca), stream=True) as answer:
            assert answer.status == 200
            await answer.content.readany()
            new = ca.issue("b", "127.0.0.1", "second.example")
            new[0].replace(certificate)
            await eventually(lambda: "is not that of" in gateway.stderr)
            assert await asyncio.to_thread(shown, gateway, gateway.base_url, ca) == ("first.example",)
            new[1].replace(key)
            await eventually(lambda: gateway.stderr.count("is shown from now on") == 3)
            await asyncio.sleep(0.6)
            for url in (gateway.base_url, gateway.observe_url, gateway.admin_url):
                assert await asyncio.to_thread(shown, gateway, url, ca) == ("second.example",)
            assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")

        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            async with asked(gateway):
                pass


def beginning_of_a_handshake() -> bytes:
    """What a client says first."""
    said = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="a").do_handshake()
    return said.read()


async def ends_after(address: list[str], pieces: Iterable[bytes]) -> float:
    """How many seconds a connection lives whose client sends these, ten a second, and nothing else."""
    reader, writer = await asyncio.open_connection(*address)
    began = time.monotonic()

    async def trickle() -> None:
        with suppress(OSError):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.1)

    async with asyncio.timeout(15), asyncio.TaskGroup() as group:
        sending = group.create_task(trickle())
        with suppress(ConnectionResetError):
            while await reader.read(1000):
                pass
        sending.cancel()
    writer.close()
    return time.monotonic() - began


@pytest.mark.parametrize("event_loop", ["uvloop", "asyncio"])
async def test_what_is_no_tls_ends(ca: Authority, event_loop: str) -> None:
    """Plain HTTP and old versions get no answer; a handshake that is not finished ends with the time for a head.

    Whether its client says nothing, a part, byte after byte, or all but the end; others are served meanwhile.
    """
    certificate, key = ca.issue("a")
    config = {"tls": {"certificate": str(certificate), "key": str(key)}, "limits": {"request_head_seconds": 1}}
    environ = {"RIDGELINE_EVENT_LOOP": event_loop}
    hello = beginning_of_a_handshake()
    async with (
        ScriptedWorker(lambda _: PLAIN) as worker,
        running_gateway(config, workers=[worker.url], environ=environ) as gateway,
        asyncio.TaskGroup() as group,
    ):
        address = gateway.config["listen"].split(":")
        ways = ([], [hello[:50]], [hello[at : at + 1] for at in range(len(hello))], [hello])
        lives = [group.create_task(ends_after(address, way)) for way in ways]
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"HTTP/1.1 200" not in await asyncio.wait_for(reader.read(), 5)
        writer.close()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(*address, ssl=old)
        async with asked(gateway, client_of(ca)) as answer:
            assert answer.status == 200
        assert [0.8 < await life < 3 for life in lives] == [True] * 4, lives


async def test_a_client_that_leaves_is_noticed_behind_tls(ca: Authority) -> None:
    """And its worker's request ends at once, as without."""
    certificate, key = ca.issue("a")
    config = {"tls": {"certificate": str(certificate), "key": str(key)}}
    async with ScriptedWorker(lambda _: [Wait(30.0)]) as worker, running_gateway(config, workers=[worker.url]) as gateway:
        async with asyncio.TaskGroup() as group:

            async def leaving() -> None:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.5), asked(gateway, client_of(ca)):
                        pass

            group.create_task(leaving())
        await eventually(lambda: worker.open_connections <= 1)
        records = await gateway.records()
        assert records[0]["outcome"] == "client_gone"


@pytest.mark.parametrize(
    ("names", "settings", "is_expired", "why"),
    [
        (("127.0.0.1",), {"ca": True}, False, None),
        (("worker.example",), {"ca": True, "server_name": "worker.example"}, False, None),
        (("other.example",), {"verify": False}, False, None),
        (("other.example",), {"ca": True}, False, "IP address mismatch"),
        (("127.0.0.1",), {"ca": True}, True, "certificate has expired"),
        (("127.0.0.1",), {}, False, "unable to get local issuer certificate"),
    ],
    ids=["trusted", "by another name", "not verified", "wrong name", "expired", "unknown CA"],
)
async def test_workers_are_trusted_or_not(
    ca: Authority, names: tuple[str, ...], settings: dict[str, Any], is_expired: bool, why: str | None
) -> None:
    """One that is not gets no request and no key: 502 with a code of its own, and no word of hosts or files."""
    pair = ca.issue("w", *names, is_expired=is_expired)
    if "ca" in settings:
        settings = {**settings, "ca": str(ca.file)}
    config = {"worker_tls": settings, "worker_key": "k-s3cret", "retries": {"max_attempts": 1}}
    async with (
        ScriptedWorker(lambda _: PLAIN, tls=server_context(pair)) as worker,
        running_gateway(config, workers=[worker.url]) as gateway,
    ):
        if why is None:
            async with asked(gateway) as answer:
                assert answer.status == 200
            await gateway.metrics_when(lambda metrics: metrics.total("ridgeline_worker_up") == 1)
            await gateway.metrics_when(lambda metrics: metrics.value("ridgeline_worker_running_requests") >= 0)
            return
        async with asked(gateway) as answer:
            text = await answer.text()
            status, code = answer.status, (await answer.json())["error"]["code"]
        # Once its probe has failed, it is not asked any more.
        assert (status, code) in {(502, "worker_not_trusted"), (503, "no_worker")}
        assert "127.0.0.1" not in text
        assert why not in text
        assert worker.requests == worker.probes == []
        records = await gateway.records()
        assert status == 503 or why in records[0]["fault"]
        await eventually(lambda: f"is down: its certificate is not trusted: {why}" in gateway.stderr, 30.0)


async def test_the_gateway_shows_workers_its_certificate(ca: Authority) -> None:
    """To those that want one; without it there is no connection."""
    context = server_context(ca.issue("w", "127.0.0.1"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(ca.file)
    certificate, key = ca.issue("g", "gateway.example")
    async with ScriptedWorker(lambda _: PLAIN, tls=context) as worker:
        tls = {"ca": str(ca.file), "certificate": str(certificate), "key": str(key)}
        async with running_gateway({"worker_tls": tls}, workers=[worker.url]) as gateway, asked(gateway) as answer:
            assert answer.status == 200


async def test_a_reload_with_bad_files_changes_nothing(ca: Authority) -> None:
    """All of it or nothing holds for certificates, too."""
    async with (
        ScriptedWorker(lambda _: PLAIN, tls=server_context(ca.issue("w"))) as worker,
        running_gateway({"worker_tls": {"ca": str(ca.file)}}, workers=[worker.url]) as gateway,
    ):
        gateway.config["worker_tls"] = {"ca": "/nowhere/ca.pem"}
        gateway.config_path.write_text(yaml.safe_dump(gateway.config))
        gateway.supervisor.send_signal(signal.SIGHUP)
        await eventually(lambda: "/nowhere/ca.pem cannot be read" in gateway.stderr)
        async with asked(gateway) as answer:
            assert answer.status == 200
