"""Workers behind a Kubernetes service: its EndpointSlices, listed once and then watched.

A client of our own for two calls of one API. Whatever fails, the workers that are known stay: a watch that ends is taken up
where it was, one that the server has forgotten begins with a list, and only a whole list or an event takes a worker away.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import aiohttp
import msgspec

from proxy.config.found import ACCOUNT, KubernetesConfig, namespace_of
from proxy.discovery.found import SourceError
from proxy.discovery.slices import (
    Lines,
    Slice,
    Status,
    by_name,
    read_event,
    read_list,
    read_slice,
    read_status,
    workers_of,
)
from proxy.discovery.source import Listener, Pause

_PAGE = 500  # slices in one answer
_MOST_PAGE_BYTES = 64 * 1024 * 1024
_LIST_SECONDS = 30.0
_WATCH_SECONDS = (240, 360)  # asked for; replicas are not to come back all at once
_SILENT_SECONDS = 150.0  # a server sends a bookmark about every minute; a watch that says nothing is taken up anew
_LEAST_WATCH_SECONDS = 1.0  # a watch that ends sooner is followed by a pause
_GONE = 410


class _GoneError(Exception):
    """The server does not know any more what came after the version that was asked for: everything is listed anew."""


class _RefusedError(SourceError):
    """The server answered, and with an error. ``retry_after_seconds``: when it wants to be asked again, if it says so."""

    def __init__(self, text: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_seconds = retry_after_seconds


class KubernetesSource:
    """Lists and watches the slices of one service."""

    def __init__(
        self,
        *,
        api: str,
        service: str,
        namespace: str,
        port: int | str | None = None,
        scheme: str = "http",
        token_file: Path | None = None,
        ca_file: Path | None = None,
        pause: Pause | None = None,
        silent_seconds: float = _SILENT_SECONDS,
    ) -> None:
        self._url = f"{api}/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"
        self._name = f"service {namespace}/{service}"
        self._selector = f"kubernetes.io/service-name={service}"
        self._port = port
        self._scheme = scheme
        self._token_file = token_file
        self._ca_file = ca_file
        self._pause = pause or Pause(0.5, 30.0)
        self._silent_seconds = silent_seconds
        self._slices: dict[str, Slice] = {}
        self._version: str | None = None  # of the last list or event; None: to be listed

    def __repr__(self) -> str:
        return f"<KubernetesSource {self._name} at {self._version}>"

    @classmethod
    def of(
        cls,
        settings: KubernetesConfig,
        environ: Mapping[str, str] | None = None,
        account: Path = ACCOUNT,
        *,
        scheme: str = "http",
    ) -> KubernetesSource:
        """What the settings say, and what Kubernetes tells a pod where they say nothing."""
        environ = os.environ if environ is None else environ
        api, host = settings.api, environ.get("KUBERNETES_SERVICE_HOST")
        if api is None and host:
            port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443"
            api = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        token = Path(settings.token_file) if settings.token_file else account / "token" if settings.api is None else None
        ca = Path(settings.ca_file) if settings.ca_file else account / "ca.crt" if settings.api is None else None
        return cls(
            api=api or "",
            service=settings.service,
            namespace=namespace_of(settings, account),
            port=settings.port,
            scheme=scheme,
            token_file=token,
            ca_file=ca,
        )

    async def run(self, listener: Listener) -> None:
        """List and watch until cancelled."""
        while True:
            seconds = 0.0
            try:
                async with self._session() as session:
                    while True:
                        await self._turn(session, listener)
            except _GoneError:
                self._version = None
                seconds = self._pause.after_failure()  # no failure; but a server that says so always is not asked in a loop
            except _RefusedError as error:
                listener.failed(f"{self._name}: {error}")
                seconds = max(self._pause.after_failure(), error.retry_after_seconds or 0.0)
            except SourceError as error:
                listener.failed(f"{self._name}: {error}")
                seconds = self._pause.after_failure()
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError, msgspec.MsgspecError) as error:
                listener.failed(f"{self._name}: {_in_words(error)}")
                seconds = self._pause.after_failure()
            await asyncio.sleep(seconds)

    async def _turn(self, session: aiohttp.ClientSession, listener: Listener) -> None:
        """List if need be, then watch until the server ends it."""
        if self._version is None:
            self._slices, self._version = await self._list(session)
            self._tell(listener)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            await self._watch(session, listener)
        finally:
            if loop.time() - began_at >= _LEAST_WATCH_SECONDS:
                self._pause.after_success()
        if loop.time() - began_at < _LEAST_WATCH_SECONDS:
            await asyncio.sleep(self._pause.after_failure())

    def _tell(self, listener: Listener) -> None:
        """What the slices come to. Ones that make no sense do not end the watch, by which they may be mended."""
        try:
            workers = workers_of(self._slices.values(), self._port, self._scheme)
        except SourceError as error:
            listener.failed(f"{self._name}: {error}")
        else:
            listener.found(workers)

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        return aiohttp.ClientSession(timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())

    def _asking(self) -> dict[str, object]:
        """What goes with each call, read anew: tokens are replaced every hour, and certificates at times."""
        if not self._url.startswith("http"):
            raise SourceError(
                "Kubernetes does not say where its API server is, so the gateway does not run in a pod; set `api`"
            )
        headers = {"Accept": "application/json", "User-Agent": "ridgeline"}
        if self._token_file is not None:
            token = _text_of(self._token_file)
            if not token:
                raise SourceError(f"there is no token in {self._token_file}")
            headers["Authorization"] = f"Bearer {token}"
        asking: dict[str, object] = {"headers": headers, "allow_redirects": False}
        if self._url.startswith("https:"):
            try:
                asking["ssl"] = ssl.create_default_context(cafile=self._ca_file)
            except (OSError, ssl.SSLError) as error:
                raise SourceError(f"the certificates in {self._ca_file} cannot be read: {error.strerror}") from None
        return asking

    async def _list(self, session: aiohttp.ClientSession) -> tuple[dict[str, Slice], str]:
        """All slices, page by page, and the version to watch from."""
        slices: dict[str, Slice] = {}
        more: str | None = None
        while True:
            query = {"labelSelector": self._selector, "limit": str(_PAGE), **({"continue": more} if more else {})}
            timeout = aiohttp.ClientTimeout(total=_LIST_SECONDS, sock_connect=10.0)
            async with session.get(self._url, params=query, timeout=timeout, **self._asking()) as answer:  # type: ignore[arg-type]
                await _check(answer)
                body = await answer.content.read(_MOST_PAGE_BYTES)  # one read gives what is there
                while not answer.content.at_eof() and len(body) < _MOST_PAGE_BYTES:
                    body += await answer.content.read(_MOST_PAGE_BYTES)
            page = read_list(body)
            slices |= by_name(page.items or ())
            more = page.metadata.continue_
            if not more:
                return slices, page.metadata.resourceVersion

    async def _watch(self, session: aiohttp.ClientSession, listener: Listener) -> None:
        """Follow what changes until the server ends the watch, or says nothing for too long."""
        query = {
            "labelSelector": self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),  # noqa: S311 -- jitter
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=self._silent_seconds)
        async with session.get(self._url, params=query, timeout=timeout, **self._asking()) as answer:  # type: ignore[arg-type]
            await _check(answer)
            self._tell(listener)  # what is known holds again, if it did not
            lines = Lines()
            try:
                async for data in answer.content.iter_any():
                    if any([self._take(line) for line in lines.feed(data)]):  # noqa: C419 -- all of them
                        self._tell(listener)
            except aiohttp.SocketTimeoutError:
                return  # perhaps cut off: taken up where it was

    def _take(self, line: bytes) -> bool:
        """One event; whether it changed a slice. Raises `_GoneError`, or `SourceError` for what the server says went wrong."""
        event = read_event(line)
        if event.type == "ERROR":
            _raise(read_status(event.object))
        about = read_slice(event.object)
        name = about.metadata.name
        if event.type in ("ADDED", "MODIFIED"):
            is_change = self._slices.get(name) != about
            self._slices[name] = about
        elif event.type == "DELETED":
            is_change = self._slices.pop(name, None) is not None
        else:
            is_change = False  # a bookmark: nothing but a version
        self._version = about.metadata.resourceVersion or self._version
        return is_change


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status == 200:
        return
    try:
        status = read_status(await answer.content.read(64 * 1024))
    except msgspec.MsgspecError:
        status = Status()
    after = answer.headers.get("Retry-After", "")
    _raise(msgspec.structs.replace(status, code=answer.status), float(after) if after.isdecimal() and len(after) < 4 else None)


def _raise(status: Status, retry_after_seconds: float | None = None) -> None:
    if status.code == _GONE or status.reason in ("Expired", "Gone"):
        raise _GoneError
    mend = {
        401: "it does not accept the token",
        403: "the account may not list and watch endpointslices there; give it a role that may",
        404: "it has no EndpointSlices there",
    }.get(status.code, (status.message or status.reason or "it does not say why")[:200])
    raise _RefusedError(f"the API server answers {status.code}: {mend}", retry_after_seconds)


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _in_words(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return "the API server's certificate is not one of those it is checked with"
        case aiohttp.ClientConnectorError():
            return f"the API server cannot be reached ({error.os_error.strerror or 'no connection'})"
        case TimeoutError():
            return "the API server does not answer in time"
        case msgspec.MsgspecError():
            return "the API server sends what cannot be read"
    return f"the connection to the API server broke off ({type(error).__name__})"
