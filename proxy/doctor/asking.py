"""One HTTP question, bounded in time and size, whoever is asked and whatever comes back."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from ssl import SSLContext
from time import time
from typing import Any, TypeVar

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from proxy.doctor.observations import Answer, Failure, Reply

MOST_BODY_BYTES = 4 * 1024 * 1024
T = TypeVar("T")


def open_session() -> aiohttp.ClientSession:
    """Return a session for `ask`, to be closed by the caller. No proxy of the environment, no cookies, no kept connection."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True, resolver=_Resolver()),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    seconds: float,
    *,
    key: str | None = None,
    body: Mapping[str, Any] | None = None,
    tls: SSLContext | bool = True,
    server_name: str | None = None,
) -> Reply:
    """Ask once: GET, or POST of a JSON body. ``key`` is sent as Bearer; redirects are not followed.

    Whatever goes wrong is a `Failure`; nothing is raised.
    """
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        async with session.request(
            "GET" if body is None else "POST",
            URL(url, encoded=True),
            headers=headers,
            json=body,
            allow_redirects=False,
            ssl=tls,
            server_hostname=server_name,
            timeout=aiohttp.ClientTimeout(total=seconds, connect=0.9 * seconds),
        ) as response:
            at = time()
            content = bytearray()
            async for data in response.content.iter_any():
                content += data
                if len(content) > MOST_BODY_BYTES:
                    return Failure.BROKEN
            return Answer(status=response.status, body=bytes(content), date=response.headers.get("Date"), at=at)
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError):
        return Failure.UNTRUSTED
    except aiohttp.ConnectionTimeoutError:
        return Failure.UNREACHABLE
    except TimeoutError:
        return Failure.SILENT
    except aiohttp.ClientConnectorDNSError:
        return Failure.UNRESOLVED
    except aiohttp.ClientConnectorError as error:
        return Failure.REFUSED if error.errno == errno.ECONNREFUSED else Failure.UNREACHABLE
    except (aiohttp.ClientError, OSError, ValueError):
        return Failure.BROKEN


async def in_thread(call: Callable[[], T]) -> T:
    """Call in a thread that nobody waits for at the end: a name server that does not answer must not hold us up.

    Raises OSError as the call does.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: OSError | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # without an error it is a result

    def run() -> None:
        result: T | None = None
        fault: OSError | None = None
        try:
            result = call()
        except OSError as error:
            fault = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, fault)

    threading.Thread(target=run, daemon=True).start()
    return await done


class _Resolver(AbstractResolver):
    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        found = await in_thread(partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM))
        return [
            ResolveResult(
                hostname=host, host=str(where[0]), port=int(where[1]), family=kind, proto=proto, flags=socket.AI_NUMERICHOST
            )
            for kind, _, proto, _, where in found
        ]

    async def close(self) -> None:
        pass
