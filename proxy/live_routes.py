"""The live page's routes on the admin listener, and who may read there.

A page of a foreign site must not be able to read anything here through a name that it makes point to this machine (DNS
rebinding): what is asked for must be asked for by address, as localhost, or by this machine's own name.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from proxy.live import LiveFeed

_INDEX = {
    "/": "the live page",
    "/metrics": "all figures, for Prometheus",
    "/api/fleet": "pools and workers now, with their figures of the last one to two minutes",
    "/api/stream": "the same and finished requests as server-sent events: fleet, records",
    "/api/records": "the last 100 requests, newest first",
    "/api/state": "pools and workers with their load",
    "/api/workers": "every worker; POST adds one, POST {name}/drain and {name}/resume, DELETE {name}",
    "/api/chains": "calls that belong together",
    "/api/drifts": "system prompts that have changed",
    "/api/advice": "what recent requests suggest to set otherwise",
    "/api/calibrations": "what workers are held against; POST {name}/accept",
}


def add_live(app: web.Application, feed: LiveFeed) -> None:
    """Add the page and its calls to the admin listener's routes."""

    async def index(_: web.Request) -> web.Response:
        return _json(msgspec.json.encode(_INDEX))

    async def fleet(_: web.Request) -> web.Response:
        return _json(await feed.fleet())

    async def close(_: web.Application) -> None:
        feed.close()

    app.router.add_get("/api", index)
    app.router.add_get("/api/", index)
    app.router.add_get("/api/fleet", fleet)
    app.router.add_get("/api/stream", feed.stream, allow_head=False)
    app.on_shutdown.append(close)


def own_names_only(listens_on: str) -> Middleware:
    """Refuse what was asked for by somebody else's name; ``listens_on`` is a host.

    What Prometheus and probes read stays open to any name where the listener is not on loopback.
    """
    names = {"localhost", listens_on.lower(), socket.gethostname().lower()}
    open_paths = frozenset() if is_loopback(listens_on) else frozenset({"/metrics", "/livez", "/readyz"})

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in open_paths and not _is_own(request.headers.get("Host", ""), names):
            text = "the Host header names another machine; ask by address or as localhost, through a tunnel or port-forward\n"
            raise web.HTTPForbidden(text=text)
        return await handler(request)

    return check


def is_loopback(host: str) -> bool:
    """Whether this host is the machine itself, by address or name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_of(header: str) -> str:
    """The host of a Host header, in lower case, without port and brackets."""
    name, _, port = header.rpartition(":")
    return (name if name and port.isdigit() else header).strip("[]").lower()


def _is_own(header: str, names: set[str]) -> bool:
    host = host_of(header)
    try:
        ip_address(host)
    except ValueError:
        return host.removesuffix(".") in names
    return True


def _json(body: bytes) -> web.Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(body=body, content_type="application/json", headers=headers)
