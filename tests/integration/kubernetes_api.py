"""The part of a Kubernetes API server that EndpointSlices are listed and watched with, as its documentation describes it.

Versions rise with every change; a list comes in pages of one snapshot; a watch begins behind a version and gets what came
after it, bookmarks in between, and 410 when that has been forgotten, as a status or as an event of a stream that has begun.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

SERVICE, NAMESPACE = "vllm", "default"
PATH = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
HTTP_PORT = ({"name": "http", "port": 8000, "protocol": "TCP"},)


def endpoint(
    address: str,
    pod: str | None = None,
    *,
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
) -> dict[str, Any]:
    """An endpoint as the API shows it."""
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    whole: dict[str, Any] = {
        "addresses": [address],
        "conditions": {name: value for name, value in conditions.items() if value is not None},
        "nodeName": "node-1",
    }
    if pod is not None:
        whole["targetRef"] = {"kind": "Pod", "namespace": NAMESPACE, "name": pod, "uid": f"uid-of-{pod}"}
    return whole


def a_slice(
    name: str,
    *endpoints: Mapping[str, Any],
    version: str = "",
    address_type: str = "IPv4",
    ports: Sequence[Mapping[str, Any]] | None = HTTP_PORT,
) -> dict[str, Any]:
    """A slice as the API shows it."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": SERVICE},
            "resourceVersion": version,
        },
        "addressType": address_type,
        "endpoints": list(endpoints) or None,
        "ports": None if ports is None else list(ports),
    }


def status_of(code: int, reason: str, message: str = "") -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code}


class KubernetesApi:
    """An async context: a server on loopback."""

    def __init__(self) -> None:
        self.token: str | None = None  # the only one that is accepted; None: none is asked for
        self.failing: int | None = None  # the status that everything is answered with
        self.gone_by_event = False  # 410 as an event of a stream that has begun
        self.most_per_page = 500
        self.piece_bytes: int | None = None  # how a watch is cut; None: at its lines
        self.watch_seconds = 300.0  # after which a watch is ended, if not sooner by the client's own word
        self.lists: list[tuple[float, dict[str, str]]] = []  # when, and the query
        self.watches: list[tuple[float, dict[str, str]]] = []
        self.port = 0
        self._slices: dict[str, dict[str, Any]] = {}
        self._version = 1000
        self._oldest = 1000  # versions before it are forgotten
        self._events: list[tuple[int, dict[str, Any]]] = []
        self._watchers: set[asyncio.Queue[bytes | None]] = set()
        self._open: set[web.StreamResponse] = set()
        self._transports: set[asyncio.BaseTransport] = set()
        self._runner: web.AppRunner | None = None

    def __repr__(self) -> str:
        return f"<KubernetesApi {self.url}, version {self._version}, {len(self._watchers)} watches>"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def watching(self) -> int:
        """How many watches are open now."""
        return len(self._watchers)

    def put(self, name: str, *endpoints: Mapping[str, Any], **settings: Any) -> None:
        """Create a slice or put another in its place, and tell all who watch."""
        self._version += 1
        kind = "MODIFIED" if name in self._slices else "ADDED"
        self._slices[name] = a_slice(name, *endpoints, version=str(self._version), **settings)
        self._tell(kind, self._slices[name])

    def delete(self, name: str) -> None:
        self._version += 1
        gone = self._slices.pop(name)
        self._tell("DELETED", {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self._version)}})

    def bookmark(self) -> None:
        """Tell who watches how far everything is, other objects included."""
        self._version += 50
        mark = a_slice("", version=str(self._version))
        mark["metadata"] = {"resourceVersion": str(self._version)}
        self._send({"type": "BOOKMARK", "object": mark})

    def forget(self) -> None:
        """What came before now is not known any more."""
        self._version += 1
        self._oldest = self._version
        self._events.clear()

    def cut(self) -> None:
        """Break off every connection."""
        for transport in list(self._transports):
            if isinstance(transport, asyncio.Transport):
                transport.abort()

    def end_watches(self) -> None:
        """End every watch as a server does when its time is over."""
        for watcher in self._watchers:
            watcher.put_nowait(None)

    def _tell(self, kind: str, about: dict[str, Any]) -> None:
        event = {"type": kind, "object": about}
        self._events.append((self._version, event))
        self._send(event)

    def _send(self, event: dict[str, Any]) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(json.dumps(event).encode() + b"\n")

    async def __aenter__(self) -> KubernetesApi:
        app = web.Application()
        app.router.add_get(PATH, self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        self.end_watches()
        self.cut()
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self._transports.add(request.transport)
        query = dict(request.query)
        assert query.pop("labelSelector") == f"kubernetes.io/service-name={SERVICE}"
        (self.watches if "watch" in query else self.lists).append((time.monotonic(), query))
        if self.failing is not None:
            return web.json_response(status_of(self.failing, "Failing", "as told"), status=self.failing)
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response(status_of(401, "Unauthorized"), status=401)
        return await self._watch(request, query) if "watch" in query else self._list(query)

    def _list(self, query: dict[str, str]) -> web.Response:
        version, start = self._version, 0
        if (more := query.get("continue")) is not None:
            version, start = map(int, more.split("-"))
            if version < self._oldest:
                return web.json_response(status_of(410, "Expired", "The provided continue parameter is too old"), status=410)
        most = min(int(query["limit"]), self.most_per_page)
        names = sorted(self._slices)
        meta = {"resourceVersion": str(version)}
        if start + most < len(names):
            meta["continue"] = f"{version}-{start + most}"
        items = [self._slices[name] for name in names[start : start + most]]
        return web.json_response({"kind": "EndpointSliceList", "metadata": meta, "items": items})

    async def _watch(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        assert query["allowWatchBookmarks"] == "true"
        since = int(query["resourceVersion"])
        gone = status_of(410, "Expired", f"too old resource version: {since} ({self._oldest})")
        if since < self._oldest and not self.gone_by_event:
            return web.json_response(gone, status=410)
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Transfer-Encoding": "chunked"})
        await response.prepare(request)
        if since < self._oldest:
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for version, event in self._events:
            if version > since:
                queue.put_nowait(json.dumps(event).encode() + b"\n")
        self._watchers.add(queue)
        try:
            async with asyncio.timeout(min(self.watch_seconds, float(query["timeoutSeconds"]))):
                while (line := await queue.get()) is not None:
                    size = self.piece_bytes or len(line)
                    for start in range(0, len(line), size):
                        await response.write(line[start : start + size])
                        await asyncio.sleep(0)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self._watchers.discard(queue)
        return response
